from typing import Any

import pytest

from virtcloud.jobs.job_cluster_spec import JobNetwork, JobRun, build_cluster_spec, parse_network
from virtcloud.jobs.request import parse_request
from virtcloud.jobs.request_values import RequestError
from virtcloud.model.cluster import ClusterSpec

RUN = JobRun("12.pbssrv", "alice", ("n1", "n2"), 3600)


def addresses(
    line: str, run: JobRun = RUN, network: JobNetwork | None = None, plan: str | None = None
) -> list[list[str]]:
    return [guest["addresses"] for guest in build_cluster_spec(parse_request(line), run, network, plan)["guests"]]


def test_guests_and_addresses_are_numbered_host_by_host() -> None:
    spec = ClusterSpec.model_validate(
        build_cluster_spec(parse_request("image=debian12:guests=2:mem=1gb:subnet=10.0.0.0/24"), RUN)
    )
    assert [(guest.name, guest.host, guest.addresses) for guest in spec.guests] == [
        ("g1", "n1", ("10.0.0.1/24",)),
        ("g2", "n1", ("10.0.0.2/24",)),
        ("g3", "n2", ("10.0.0.3/24",)),
        ("g4", "n2", ("10.0.0.4/24",)),
    ]
    assert (spec.owner, spec.hosts, spec.guests[0].memory_mb) == ("alice", ("n1", "n2"), 1024)


def test_the_lease_is_walltime_plus_setup_time_plus_five_minutes() -> None:
    assert build_cluster_spec(parse_request("image=a"), RUN._replace(setup_s=120))["lease_s"] == 3600 + 120 + 300


def test_a_new_networks_spec_contains_name_vlan_and_shares() -> None:
    spec = build_cluster_spec(parse_request("image=a:name=mine:vlan=112:share=bob+carol"), RUN)
    assert (spec["name"], spec["vlan"], spec["shares_with"]) == ("mine", 112, ["bob", "carol"])
    assert "joins" not in spec


def test_limits_filters_and_reach_are_in_the_spec() -> None:
    line = "image=a:disk=1gb:pids=500:bandwidth=100:filters=addresses:reach=plzen+praha"
    spec = ClusterSpec.model_validate(build_cluster_spec(parse_request(line), RUN))
    limits = {(guest.disk_mb, guest.pids, guest.bandwidth_mbit) for guest in spec.guests}
    assert (limits, spec.filters, spec.sites) == ({(1024, 500, 100)}, "addresses", ("plzen", "praha"))


def test_requested_services_of_hosts_are_in_the_spec() -> None:
    spec = ClusterSpec.model_validate(build_cluster_spec(parse_request("image=a:services=dhcp+metadata"), RUN))
    assert spec.host_services == ("dhcp", "metadata")


def test_a_job_may_ask_for_gateways() -> None:
    spec = ClusterSpec.model_validate(build_cluster_spec(parse_request("image=a:vpn=yes"), RUN))
    assert (spec.vpn, "vpn" in build_cluster_spec(parse_request("image=a:vpn=no"), RUN)) == (True, False)


def test_without_a_subnet_the_default_is_used() -> None:
    assert addresses("image=a") == [["10.0.0.1/24"], ["10.0.0.2/24"]]
    assert addresses("image=a", plan="192.168.7.0/24") == [["192.168.7.1/24"], ["192.168.7.2/24"]]


def test_a_too_small_default_subnet_is_widened() -> None:
    run = RUN._replace(hosts=tuple(f"n{number}" for number in range(150)))
    assigned = addresses("image=a:guests=2", run)
    assert (assigned[0], assigned[299]) == (["10.0.0.1/23"], ["10.0.1.44/23"])


@pytest.mark.parametrize(
    ("subnet", "first", "second"),
    [
        ("10.0.0.50/24", ["10.0.0.50/24"], ["10.0.0.51/24"]),
        ("[fd00::/64]", ["fd00::1/64"], ["fd00::2/64"]),
        ("10.0.0.0/31", ["10.0.0.0/31"], ["10.0.0.1/31"]),
        ("[10.0.0.0/24+fd00::5/64]", ["10.0.0.1/24", "fd00::5/64"], ["10.0.0.2/24", "fd00::6/64"]),
    ],
)
def test_a_subnet_may_name_the_first_address(subnet: str, first: list[str], second: list[str]) -> None:
    assert addresses(f"image=a:subnet={subnet}") == [first, second]


@pytest.mark.parametrize(
    ("subnet", "free"), [("10.0.0.0/30", 2), ("10.0.0.254/24", 1), ("10.0.0.255/24", 0), ("10.0.0.0/32", 1)]
)
def test_a_too_small_subnet_is_rejected_with_both_counts(subnet: str, free: int) -> None:
    with pytest.raises(RequestError) as caught:
        addresses(f"image=a:guests=2:subnet={subnet}")
    message = f"vcluster: subnet: expected 4 free addresses for guests, got {subnet} with {free}"
    assert str(caught.value) == message


def cluster(key: str, *guests: tuple[str, list[str]]) -> dict[str, Any]:
    return {"key": key, "spec": {"guests": [{"name": name, "addresses": given} for name, given in guests]}}


ROOT = cluster("7.pbssrv", ("g1", ["10.0.0.1/24", "fd00::1/64"]), ("g2", ["10.0.0.2/24", "fd00::2/64"]))
MEMBER = cluster("9.pbssrv", ("j9-g1", ["10.0.0.40/24"]))


def test_a_joining_job_prefixes_its_guests_with_its_number() -> None:
    spec = build_cluster_spec(parse_request("image=a:net=mine"), RUN, parse_network([ROOT, MEMBER], "12.pbssrv"))
    assert (spec["joins"], [guest["name"] for guest in spec["guests"]]) == ("7.pbssrv", ["j12-g1", "j12-g2"])
    ClusterSpec.model_validate({key: value for key, value in spec.items() if key != "joins"})


def test_a_joining_job_continues_after_the_highest_address() -> None:
    assigned = addresses("image=a:net=mine", network=parse_network([ROOT, MEMBER], "12.pbssrv"))
    assert assigned == [["10.0.0.41/24", "fd00::3/64"], ["10.0.0.42/24", "fd00::4/64"]]


def test_a_member_that_is_listed_first_is_not_the_network() -> None:
    """SBF lists clusters by creation time.

    If the database's clock was set back, a cluster that joined a network can precede the cluster that created the
    network.
    """
    network = parse_network(
        [{**MEMBER, "network": "7.pbssrv"}, {**ROOT, "other_addresses": ["10.0.0.41"]}], "12.pbssrv"
    )
    assert network is not None
    assert (network.key, network.others) == ("7.pbssrv", ("10.0.0.41",))


def test_a_joining_job_uses_lower_addresses_if_higher_are_used() -> None:
    network = JobNetwork("7.pbssrv", ("10.0.0.0/29",), ("10.0.0.1", "10.0.0.6"))
    assert addresses("image=a:net=mine", network=network) == [["10.0.0.2/29"], ["10.0.0.3/29"]]


def test_a_joining_job_skips_addresses_of_gateways() -> None:
    """New guests get free addresses above the highest address of a guest, and then free lower addresses.

    In this test, a gateway has 10.0.0.5.
    """
    root = {"key": "7.pbssrv", "spec": {"guests": [{"name": "g1", "addresses": ["10.0.0.4/29"]}]}}
    network = parse_network([{**root, "other_addresses": ["10.0.0.5"]}], "12.pbssrv")
    assert addresses("image=a:net=mine", network=network) == [["10.0.0.6/29"], ["10.0.0.1/29"]]


def test_a_joining_job_skips_addresses_in_use() -> None:
    assigned = addresses("image=a:net=mine:subnet=10.0.0.39/24", network=parse_network([ROOT, MEMBER], "12.pbssrv"))
    assert assigned == [["10.0.0.39/24"], ["10.0.0.41/24"]]


def test_a_network_without_addresses_gets_the_default_subnet() -> None:
    network = parse_network([cluster("7.pbssrv")], "12.pbssrv")
    assert addresses("image=a:net=mine", network=network) == [["10.0.0.1/24"], ["10.0.0.2/24"]]


@pytest.mark.parametrize(
    ("subnets", "expected"),
    [(["192.168.5.0/24"], [["192.168.5.2/24"], ["192.168.5.3/24"]]), ([], [[], []])],
)
def test_guests_use_the_subnets_of_a_network_without_guests(subnets: list[str], expected: list[list[str]]) -> None:
    spec = {"subnets": subnets, "router_addresses": ["192.168.5.1/24"]}
    network = parse_network([{"key": "net", "spec": spec}], "12.pbssrv")
    assert addresses("image=a:net=net", network=network) == expected


def test_a_repeated_join_returns_the_same_addresses() -> None:
    line, before = "image=a:net=mine", [ROOT]
    first = build_cluster_spec(parse_request(line), RUN, parse_network(before, "12.pbssrv"))
    after = [*before, {"key": "12.pbssrv", "spec": first}, MEMBER]
    assert build_cluster_spec(parse_request(line), RUN, parse_network(after, "12.pbssrv")) == first


def test_a_missing_network_is_parsed_as_none() -> None:
    assert parse_network([], "12.pbssrv") is None
