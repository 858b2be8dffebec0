import re

import pytest

from virtcloud.agent.network import names
from virtcloud.model.values import ClusterKey


def test_an_interface_is_named_by_uplink_and_vlan() -> None:
    assert names.tagged_interface_name("eth0", 100) == "eth0.100"


def test_a_name_of_fifteen_characters_is_left_as_it_is() -> None:
    assert names.tagged_interface_name("enp65s0f0x", 1234) == "enp65s0f0x.1234"


def test_a_long_uplink_is_shortened_the_same_way_every_time() -> None:
    assert names.tagged_interface_name("enp65s0f0np0", 1234) == "enp65~a64b.1234"


def test_two_long_uplinks_that_begin_alike_get_different_names() -> None:
    assert names.tagged_interface_name("enp65s0f0np0", 1234) != names.tagged_interface_name("enp65s0f1np1", 1234)


@pytest.mark.parametrize("vlan", [1, 99, 4094])
def test_no_interface_is_named_with_more_than_fifteen_characters(vlan: int) -> None:
    made = [
        names.tagged_interface_name("a" * 15, vlan),
        names.bridge_name(vlan),
        names.guest_port_name("c" * 36, "g" * 32, vlan),
    ]
    assert max(map(len, [*made, *(names.temporary_name(one, vlan) for one in made)])) <= 15


def test_a_bridge_tells_its_vlan() -> None:
    assert [names.vlan_of_bridge(name) for name in ("br100", "br0", "br", "virbr0", "br100x")] == [
        100,
        None,
        None,
        None,
        None,
    ]


def test_equal_guest_names_have_different_ports_per_cluster() -> None:
    assert names.guest_port_name("a", "g1", 100) != names.guest_port_name("b", "g1", 100)


def test_a_guest_port_is_known_by_its_vlan() -> None:
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
def test_only_our_mark_makes_an_interface_ours(alias: str | None, cluster: str | None) -> None:
    assert names.cluster_of_alias(alias) == cluster


def test_a_jobs_files_are_named_by_its_key() -> None:
    assert names.file_name("12.pbs") == "12.pbs"


def test_file_names_of_long_keys_are_unique_and_short() -> None:
    """The longest key is that of a job on a server whose name has 255 characters."""
    made = {names.file_name(f"{number}.{'x' * 255}.{end}") for number in (12, 13) for end in ("cz", "sk")}
    assert len(made) == 4
    assert max(len(f"/run/virtcloud/jobs/.relay-{one}") for one in made) <= 107
    assert not any(re.fullmatch(ClusterKey.pattern, one) for one in made)


def test_a_domain_is_named_by_cluster_and_guest() -> None:
    assert names.domain_name("4c1f", "g1") == "vc-4c1f-g1"


def test_a_long_domain_name_is_shortened_and_stays_its_own() -> None:
    first, second = names.domain_name("x" * 60, "g1"), names.domain_name("x" * 59 + "y", "g1")
    assert (len(first), first != second) == (30, True)
