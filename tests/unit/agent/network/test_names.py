import re

import pytest

from virtcloud.agent.network import names
from virtcloud.model.values import ClusterKey


def test_a_tagged_interfaces_name_has_uplink_and_vlan_id() -> None:
    assert names.tagged_interface_name("eth0", 100) == "eth0.100"


def test_a_name_of_fifteen_characters_is_not_shortened() -> None:
    assert names.tagged_interface_name("enp65s0f0x", 1234) == "enp65s0f0x.1234"


def test_a_long_uplink_name_is_shortened() -> None:
    assert names.tagged_interface_name("enp65s0f0np0", 1234) == "enp65~a64b.1234"


def test_shortened_names_of_different_uplinks_differ() -> None:
    assert names.tagged_interface_name("enp65s0f0np0", 1234) != names.tagged_interface_name("enp65s0f1np1", 1234)


@pytest.mark.parametrize("vlan", [1, 99, 4094])
def test_interface_names_have_at_most_fifteen_characters(vlan: int) -> None:
    generated = [
        names.tagged_interface_name("a" * 15, vlan),
        names.bridge_name(vlan),
        names.guest_port_name("c" * 36, "g" * 32, vlan),
    ]
    assert max(map(len, [*generated, *(names.temporary_name(name, vlan) for name in generated)])) <= 15


def test_the_vlan_id_is_parsed_from_a_bridges_name() -> None:
    assert [names.vlan_of_bridge(name) for name in ("br100", "br0", "br", "virbr0", "br100x")] == [
        100,
        None,
        None,
        None,
        None,
    ]


def test_guests_of_the_same_name_have_different_ports() -> None:
    assert names.guest_port_name("a", "g1", 100) != names.guest_port_name("b", "g1", 100)


def test_a_guest_port_is_recognised_with_its_vlan_id() -> None:
    port = names.guest_port_name("a", "g1", 100)
    assert (names.is_guest_port(port), names.is_guest_port(port, 100), names.is_guest_port(port, 10)) == (
        True,
        True,
        False,
    )


@pytest.mark.parametrize("name", ["vnet0", "vc100", "vc100-xyz", "eth0"])
def test_other_interfaces_are_no_guest_ports(name: str) -> None:
    assert not names.is_guest_port(name)


@pytest.mark.parametrize(
    ("alias", "cluster"), [("virtcloud:4c1f", "4c1f"), ("uplink to praha", None), ("", None), (None, None)]
)
def test_only_an_ownership_alias_contains_a_cluster(alias: str | None, cluster: str | None) -> None:
    assert names.cluster_of_alias(alias) == cluster


def test_the_name_of_a_jobs_file_is_its_key() -> None:
    assert names.file_name("12.pbs") == "12.pbs"


def test_file_names_of_long_keys_are_unique_and_short() -> None:
    """The longest key is the key of a job on a server whose name has 255 characters."""
    generated = {names.file_name(f"{number}.{'x' * 255}.{end}") for number in (12, 13) for end in ("cz", "sk")}
    assert len(generated) == 4
    assert max(len(f"/run/virtcloud/jobs/.relay-{name}") for name in generated) <= 107
    assert not any(re.fullmatch(ClusterKey.pattern, name) for name in generated)


def test_a_domains_name_has_cluster_and_guest() -> None:
    assert names.domain_name("4c1f", "g1") == "vc-4c1f-g1"


def test_shortened_domain_names_are_unique() -> None:
    first, second = names.domain_name("x" * 60, "g1"), names.domain_name("x" * 59 + "y", "g1")
    assert (len(first), first != second) == (30, True)
