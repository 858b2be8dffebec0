"""Tests of foreign VLANs on every kind of switch.

Drivers find a foreign VLAN by its name or by its ports, and leave the VLAN unchanged.
"""

from dataclasses import replace

import pytest
from support.emulators import EMULATED_PLATFORMS as EMULATED
from support.emulators import OPEN_BY_LIST as LISTS
from support.emulators.foreign_use import occupy
from support.emulators.switch_bench import MakeBench, SwitchBench

from sbf_service.domain.ownership import mark_foreign_vlans
from virtcloud.model.switch_state import SwitchObserved, SwitchWanted, compare_switch
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet

SHOW_NO_NAMES = frozenset({"hp_comware", "sonic"})
"""Platforms on which SBF cannot read the names of VLANs. Only SBF's record shows which VLANs SBF created."""
SWITCHES = [name for name in EMULATED if name != "cisco_iosxr"]
"""All platforms except IOS-XR. On an IOS-XR router, one VLAN ID on two ports means two VLANs."""


@pytest.fixture(params=SWITCHES)
def bench(request: pytest.FixtureRequest, make_bench: MakeBench) -> SwitchBench:
    return make_bench(request.param)


@pytest.fixture(params=LISTS)
def list_bench(request: pytest.FixtureRequest, make_bench: MakeBench) -> SwitchBench:
    return make_bench(request.param)


def observe(bench: SwitchBench, created: str = "") -> SwitchObserved:
    return mark_foreign_vlans(bench.read(), VlanSet.parse(created))


def converge(bench: SwitchBench, a: str, created: str = "") -> None:
    wanted = SwitchWanted(ports={bench.a: VlanSet.parse(a), bench.b: VlanSet()})
    difference = compare_switch(wanted, observe(bench, created))
    if difference:
        bench.driver.apply(difference)


def find_foreign(bench: SwitchBench, created: str = "") -> list[tuple[int, tuple[str, ...]]]:
    return [(int(entry.vlan), tuple(entry.ports)) for entry in observe(bench, created).foreign]


def unmanaged_port(bench: SwitchBench) -> str:
    return bench.other.replace(" ", "")


def test_a_foreign_vlan_is_found_by_its_name(bench: SwitchBench) -> None:
    occupy(bench.switch, vlans={150: "offices"})
    (found,) = observe(bench).foreign
    expected = None if bench.switch.platform in SHOW_NO_NAMES else "offices"
    assert (found.vlan, found.name, found.ports) == (150, expected, ())


def test_a_foreign_access_port_makes_its_vlan_foreign(bench: SwitchBench) -> None:
    converge(bench, "150")
    occupy(bench.switch, access={bench.other: 150})
    assert find_foreign(bench, "150") == [(150, (unmanaged_port(bench),))]


def test_a_foreign_trunk_with_a_list_makes_its_vlans_foreign(bench: SwitchBench) -> None:
    converge(bench, "150-151")
    occupy(bench.switch, trunks={bench.other: {150}})
    assert find_foreign(bench, "150-151") == [(150, (unmanaged_port(bench),))]


def test_a_foreign_trunk_of_every_vlan_makes_no_vlan_foreign(list_bench: SwitchBench) -> None:
    converge(list_bench, "150")
    occupy(list_bench.switch, trunks={list_bench.other: "all"})
    assert find_foreign(list_bench, "150") == []


def test_a_created_vlan_is_recognized_without_the_record(bench: SwitchBench) -> None:
    converge(bench, "150-151")
    unnamed = [] if bench.switch.platform not in SHOW_NO_NAMES else [(150, ()), (151, ())]
    assert find_foreign(bench) == unnamed
    assert find_foreign(bench, "150-151") == []


def test_foreign_configuration_is_unchanged_after_a_clusters_life(bench: SwitchBench) -> None:
    occupy(bench.switch, vlans={150: "offices", 152: "labs"}, access={bench.other: 150})
    recorder = bench.switch.record_changes(bench.names, {151})
    converge(bench, "150-152")
    assert bench.carries(bench.names[0]) == {151}
    converge(bench, "", "151")
    assert recorder.changes == []
    assert {vlan: name for vlan, name in bench.switch.running.vlans.items() if vlan >= 150} == {
        150: "offices",
        152: "labs",
    }


def test_the_members_of_an_aggregate_are_not_foreign(bench: SwitchBench) -> None:
    converge(bench, "150")
    occupy(bench.switch, trunks={bench.other: {150}})
    managed = replace(bench.managed, members=(bench.managed.ports[0], PortName(unmanaged_port(bench))))
    assert mark_foreign_vlans(bench.driver.read(managed), VlanSet([150])).foreign == ()
