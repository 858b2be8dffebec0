"""Tests that drivers find foreign VLANs on every kind of switch, with the evidence, and leave them unchanged."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from emulators import EMULATED_PLATFORMS as EMULATED
from emulators import OPEN_BY_LIST as LISTS
from emulators.foreign_use import occupy
from emulators.switch_bench import MakeBench, SwitchBench, make_bench_in

from sbf_service.domain.ownership import mark_foreign_vlans
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchObserved, SwitchWanted, compare_switch

SHOW_NO_NAMES = frozenset({"hp_comware", "sonic"})
"""Platforms whose VLANs have no name that SBF reads. Only SBF's record shows which VLANs are SBF's."""
SWITCHES = [name for name in EMULATED if name != "cisco_iosxr"]
"""All platforms except the router, on which the same VLAN ID on another port is another VLAN."""


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    with ExitStack() as stack:
        yield make_bench_in(stack)


@pytest.fixture(params=SWITCHES)
def bench(request: pytest.FixtureRequest, make_bench: MakeBench) -> SwitchBench:
    return make_bench(request.param)


@pytest.fixture(params=LISTS)
def listing(request: pytest.FixtureRequest, make_bench: MakeBench) -> SwitchBench:
    return make_bench(request.param)


def judged(bench: SwitchBench, created: str = "") -> SwitchObserved:
    return mark_foreign_vlans(bench.read(), VlanSet.parse(created))


def converge(bench: SwitchBench, a: str, created: str = "") -> None:
    """Configure those of these VLANs that are free on port a, as a worker with this record does."""
    wanted = SwitchWanted(ports={bench.a: VlanSet.parse(a), bench.b: VlanSet()})
    difference = compare_switch(wanted, judged(bench, created))
    if difference:
        bench.driver.apply(difference)


def foreign(bench: SwitchBench, created: str = "") -> list[tuple[int, tuple[str, ...]]]:
    return [(int(one.vlan), tuple(one.ports)) for one in judged(bench, created).foreign]


def other(bench: SwitchBench) -> str:
    """Return the driver's name of the unmanaged port."""
    return bench.other.replace(" ", "")


def test_a_foreign_vlan_is_found_by_its_name(bench: SwitchBench) -> None:
    occupy(bench.switch, vlans={150: "offices"})
    (found,) = judged(bench).foreign
    expected = None if bench.switch.platform in SHOW_NO_NAMES else "offices"
    assert (found.vlan, found.name, found.ports) == (150, expected, ())


def test_a_foreign_access_port_makes_its_vlan_foreign(bench: SwitchBench) -> None:
    converge(bench, "150")
    occupy(bench.switch, access={bench.other: 150})
    assert foreign(bench, "150") == [(150, (other(bench),))]


def test_a_foreign_trunk_with_a_list_makes_its_vlans_foreign(bench: SwitchBench) -> None:
    converge(bench, "150-151")
    occupy(bench.switch, trunks={bench.other: {150}})
    assert foreign(bench, "150-151") == [(150, (other(bench),))]


def test_a_foreign_trunk_of_every_vlan_makes_none_foreign(listing: SwitchBench) -> None:
    converge(listing, "150")
    occupy(listing.switch, trunks={listing.other: "all"})
    assert foreign(listing, "150") == []


def test_a_created_vlan_is_recognized_without_the_record(bench: SwitchBench) -> None:
    converge(bench, "150-151")
    known = [] if bench.switch.platform not in SHOW_NO_NAMES else [(150, ()), (151, ())]
    assert foreign(bench) == known
    assert foreign(bench, "150-151") == []


def test_foreign_configuration_is_unchanged_after_a_clusters_life(bench: SwitchBench) -> None:
    occupy(bench.switch, vlans={150: "offices", 152: "labs"}, access={bench.other: 150})
    watch = bench.switch.watch(bench.names, {151})
    converge(bench, "150-152")
    assert bench.carries(bench.names[0]) == {151}
    converge(bench, "", "151")
    assert watch.changes == []
    assert {number: name for number, name in bench.switch.running.vlans.items() if number >= 150} == {
        150: "offices",
        152: "labs",
    }


def test_the_members_of_an_aggregate_are_not_foreign(bench: SwitchBench) -> None:
    converge(bench, "150")
    occupy(bench.switch, trunks={bench.other: {150}})
    managed = replace(bench.managed, members=(bench.managed.ports[0], other(bench)))
    assert mark_foreign_vlans(bench.driver.read(managed), VlanSet([150])).foreign == ()
