from typing import Any

import pytest

from sbf_service.domain.addressing import (
    NetworkAddresses,
    check_guests_differ,
    choose_device_addresses,
    plan_member,
    plan_network,
)
from sbf_service.domain.subnets import SPECIAL_NETWORKS, NetworkIdentity, check_addresses, make_subnets
from virtcloud.jobs import request_values
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import BadInput, NoAddressFree
from virtcloud.model.guest_spec import Guest

DEMO = NetworkIdentity("alice", "demo", 0)


def guests(count: int, *addresses: str, prefix: str = "g") -> list[dict[str, object]]:
    listed = [*([address] for address in addresses), *([] for _ in range(count - len(addresses)))]
    return [{"name": f"{prefix}{n}", "host": "h1", "image": "x", "addresses": own} for n, own in enumerate(listed, 1)]


def spec(count: int, *addresses: str, **changes: object) -> ClusterSpec:
    return ClusterSpec.model_validate({"owner": "alice", "guests": guests(count, *addresses)} | changes)


def planned(wanted: ClusterSpec, *, batch: bool = False) -> list[tuple[str, ...]]:
    return [guest.addresses for guest in plan_network(wanted, DEMO, batch=batch).guests]


def joined(
    count: int, *used: str, root: ClusterSpec | None = None, batch: bool = False, **changes: object
) -> list[tuple[str, ...]]:
    """Return the addresses of the ``count`` guests of a cluster that joins a network.

    The network's guests have the addresses ``used``. ``root`` is the spec of the cluster that created the network.
    """
    taken = tuple(Guest.model_validate(guest) for guest in guests(len(used), *used))
    network = NetworkAddresses(DEMO, root or ClusterSpec.model_validate({"owner": "alice", "hosts": ["h1"]}), taken)
    member = ClusterSpec.model_validate(
        {"owner": "bob", "joins": "demo", "guests": guests(count, prefix="m")} | changes
    )
    return [guest.addresses for guest in plan_member(member, network, batch=batch).guests]


def test_a_new_network_gets_an_ipv4_and_an_ipv6_subnet() -> None:
    assert planned(spec(2)) == [
        ("10.0.0.1/24", "fdf4:fc8:f5bc::1/64"),
        ("10.0.0.2/24", "fdf4:fc8:f5bc::2/64"),
    ]


def test_two_networks_have_different_ipv6_subnets() -> None:
    others = [
        NetworkIdentity("bob", "demo", 0),
        NetworkIdentity("alice", "test", 0),
        NetworkIdentity("alice", "demo", 1),
    ]
    assert len({make_subnets(identity, 1)[1] for identity in (DEMO, *others)}) == 4


@pytest.mark.parametrize(("count", "subnet"), [(238, "10.0.0.0/24"), (239, "10.0.0.0/23"), (4096, "10.0.0.0/19")])
def test_an_assigned_subnet_has_sixteen_spare_addresses(count: int, subnet: str) -> None:
    assert make_subnets(DEMO, count)[0] == subnet


@pytest.mark.parametrize(
    ("wanted", "addresses"),
    [
        (spec(2, subnets=["10.1.0.0/16"]), [("10.1.0.1/16",), ("10.1.0.2/16",)]),
        (spec(2, subnets=["10.1.0.9/16"]), [("10.1.0.9/16",), ("10.1.0.10/16",)]),
        (spec(2, subnets=["10.9.9.0/31"]), [("10.9.9.0/31",), ("10.9.9.1/31",)]),
        (spec(1, subnets=["fd00::/64", "10.1.0.0/16"]), [("fd00::1/64", "10.1.0.1/16")]),
        (spec(2, "10.1.0.1/16", subnets=["10.1.0.0/16"]), [("10.1.0.1/16",), ("10.1.0.2/16",)]),
    ],
)
def test_requested_subnets_are_assigned_from_their_start(wanted: ClusterSpec, addresses: list[tuple[str, ...]]) -> None:
    assert planned(wanted) == addresses


@pytest.mark.parametrize(
    ("wanted", "batch"), [(spec(2, subnets=[]), False), (spec(2, "192.0.2.1/24"), False), (spec(2), True)]
)
def test_addresses_that_a_user_or_job_chose_are_unchanged(wanted: ClusterSpec, batch: bool) -> None:
    assert plan_network(wanted, DEMO, batch=batch) == wanted


def test_an_address_outside_the_subnets_is_allowed() -> None:
    assert planned(spec(2, "192.0.2.1/24", subnets=["10.1.0.0/16"])) == [("192.0.2.1/24",), ("10.1.0.1/16",)]


def test_a_subnet_that_is_too_small_is_bad_input() -> None:
    message = (
        r"spec.subnets: expected 3 free addresses in subnet 10.1.0.0/30 for 3 guests, got 2: choose a larger subnet"
    )
    with pytest.raises(BadInput, match=message):
        planned(spec(3, subnets=["10.1.0.0/30"]))


def test_the_error_names_the_subnet_if_guests_begin_too_high() -> None:
    message = r"in subnet 10.1.0.254/24 .* got 1: choose a larger subnet, or begin with a lower address: 10.1.0.0/24"
    with pytest.raises(BadInput, match=message):
        planned(spec(2, subnets=["10.1.0.254/24"]))
    with pytest.raises(BadInput, match=r"got 1: choose a larger subnet$"):
        planned(spec(300, subnets=["10.1.0.254/24"]))


def test_two_subnets_of_one_ip_version_are_bad_input() -> None:
    with pytest.raises(ValueError, match="expected at most one subnet of IPv4, got 2"):
        spec(1, subnets=["10.0.0.0/24", "10.1.0.0/24"])


def test_subnets_of_a_member_are_refused() -> None:
    with pytest.raises(ValueError, match="expected the key subnets only for a new network"):
        spec(1, joins="demo", subnets=["10.0.0.0/24"])


@pytest.mark.parametrize("duplicate", [["10.0.0.1/24", "10.0.0.1/16"], ["fd00::1/64", "fd00:0::1/64"]])
def test_guests_with_the_same_address_are_bad_input(duplicate: list[str]) -> None:
    with pytest.raises(
        BadInput, match=r"expected each guest to have its own name and addresses, got address .* g1 and g2"
    ):
        check_guests_differ(spec(2, *duplicate).guests)


@pytest.mark.parametrize(
    ("subnet", "kind"),
    [
        ("0.0.0.0/0", r"unspecified addresses \(0.0.0.0/8\)"),
        ("127.1.0.0/16", "loopback"),
        ("169.254.7.0/24", "link-local"),
        ("224.0.0.0/24", "multicast"),
        ("192.0.0.0/2", "multicast"),
        ("255.255.255.0/24", "reserved"),
        ("::/64", r"unspecified, loopback or IPv4-compatible addresses \(::/96\)"),
        ("::1/128", "loopback"),
        ("::10.0.0.0/120", "IPv4-compatible"),
        ("::ffff:10.0.0.0/120", r"IPv4-mapped addresses \(::ffff:0:0/96\)"),
        ("fe80::/64", "link-local"),
        ("ff02::/64", "multicast"),
    ],
)
def test_a_subnet_of_special_addresses_is_bad_input(subnet: str, kind: str) -> None:
    with pytest.raises(BadInput, match=f"spec.subnets: expected a subnet for guests .* which has .*{kind}"):
        check_addresses(spec(1, subnets=["10.0.0.0/24", subnet] if ":" in subnet else [subnet]))
    with pytest.raises(BadInput, match=f"spec.guests.1.addresses: expected a subnet for guests .*{kind}"):
        check_addresses(spec(2, "10.0.0.1/24", subnet))


@pytest.mark.parametrize("subnet", ["10.0.0.0/8", "192.0.2.0/24", "100.64.0.0/10", "fd00::/64", "2001:db8::/32"])
def test_every_other_subnet_is_allowed(subnet: str) -> None:
    check_addresses(spec(1, subnet, subnets=[subnet]))


def test_hooks_refuse_the_same_special_networks() -> None:
    assert request_values.SPECIAL_NETWORKS == SPECIAL_NETWORKS


def test_a_member_gets_the_addresses_after_the_highest() -> None:
    root = spec(0, hosts=["h1"], subnets=["10.1.0.0/29"])
    assert joined(2, "10.1.0.1/29", "10.1.0.3/29", root=root) == [("10.1.0.4/29",), ("10.1.0.5/29",)]


def test_a_member_gets_lower_addresses_if_no_higher_are_free() -> None:
    root = spec(0, hosts=["h1"], subnets=["10.1.0.0/29"])
    assert joined(2, "10.1.0.1/29", "10.1.0.5/29", root=root) == [("10.1.0.6/29",), ("10.1.0.2/29",)]


def test_a_network_without_subnets_uses_its_guests_subnets() -> None:
    assert joined(1, "192.0.2.7/24", "fd00::1/64") == [("192.0.2.8/24", "fd00::2/64")]


def test_a_network_without_guests_gets_assigned_subnets() -> None:
    assert joined(1) == planned(spec(1))


def test_members_of_a_network_without_addresses_get_none() -> None:
    network = NetworkAddresses(DEMO, spec(1), spec(1).guests)
    member = spec(1, joins="demo")
    assert plan_member(member, network, batch=False) == member


@pytest.mark.parametrize(("batch", "changes"), [(True, {}), (False, {"subnets": []})])
def test_a_member_may_have_no_addresses(batch: bool, changes: dict[str, Any]) -> None:
    assert joined(1, "10.0.0.1/24", batch=batch, **changes) == [()]


def test_a_network_without_free_addresses_refuses_a_member() -> None:
    root = spec(0, hosts=["h1"], subnets=["10.1.0.0/30"])
    message = (
        "network demo: expected 2 free addresses in subnet 10.1.0.0/30 for 2 guests, got 1: choose a larger subnet"
    )
    with pytest.raises(NoAddressFree, match=message):
        joined(2, "10.1.0.1/30", root=root)


def test_the_error_about_a_full_network_counts_all_used_addresses() -> None:
    root = spec(1, "10.1.0.1/29", subnets=["10.1.0.0/29"])
    network = NetworkAddresses(
        DEMO, root, root.guests, devices=("10.1.0.2", "10.1.0.3"), gateways=("10.1.0.4", "10.1.0.5", "10.1.0.6")
    )
    message = "got 0: the network has 1 guest, 2 device addresses and 3 gateway addresses; revoke VPN profiles"
    with pytest.raises(NoAddressFree, match=message):
        choose_device_addresses(network)
