"""Tests of access ports on an emulated switch of each platform.

An access port carries at most one VLAN, untagged. During a move between two VLANs, the port carries no third VLAN.
An *open trunk* carries all VLANs.
"""

from dataclasses import replace

import pytest
from support.emulators import EMULATED_PLATFORMS as EMULATED
from support.emulators import OPEN_BY_LIST
from support.emulators.switch_bench import POOL, MakeBench, SwitchBench
from support.emulators.switch_device import EmulatedPort

from sbf_service.drivers.contract import SwitchScope
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.switch_state import SwitchDifference, SwitchWanted, compare_switch
from virtcloud.model.vlans import VlanSet

LISTS = [name for name in OPEN_BY_LIST if SWITCH_PLATFORMS[name].capabilities.access]
"""Platforms that support access ports, and on which a trunk without a VLAN list carries every VLAN."""
JOIN = {
    "cisco_ios": "access vlan 112",
    "cisco_nxos": "access vlan 112",
    "arista_eos": "access vlan 112",
    "aruba_aoscx": "^vlan access 112",
    "dell_force10": "^untagged",
    "dell_os10": "access vlan 112",
    "hp_comware": "^port access vlan 112",
    "hp_procurve": "untagged",
}
"""For each platform on which SBF shuts unused access ports: a pattern of the command that puts a port into VLAN 112."""


@pytest.fixture
def bench(platform: str, make_bench: MakeBench) -> SwitchBench:
    return make_bench(platform)


@pytest.fixture(params=[name for name in EMULATED if SWITCH_PLATFORMS[name].capabilities.access])
def platform(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def converge(bench: SwitchBench, b: str = "", a: str = "") -> SwitchDifference:
    """Configure the access port with the VLAN in ``b``, and the trunk with the VLANs in ``a``.

    Return the applied difference.
    """
    wanted = SwitchWanted(ports={bench.a: VlanSet.parse(a), bench.b: VlanSet.parse(b)}, access=(bench.b,))
    managed = SwitchScope((bench.a, bench.b), POOL, wanted.access)
    difference = compare_switch(wanted, bench.driver.read(managed))
    if difference:
        bench.driver.apply(difference)
        bench.driver.save()
    assert not compare_switch(wanted, bench.driver.read(managed))
    return difference


def untagged(bench: SwitchBench) -> int | None:
    return bench.switch.untagged().get(bench.names[1])


def visited_vlans(bench: SwitchBench) -> list[int | None]:
    """Return the VLANs of the access port since the last call. Successive equal VLANs count once."""
    states = [state.get(bench.names[1]) for state in bench.switch.untagged_timeline]
    bench.switch.untagged_timeline.clear()
    return [vlan for index, vlan in enumerate(states) if index == 0 or states[index - 1] != vlan]


def test_an_access_port_without_a_cluster_is_in_no_vlan(bench: SwitchBench) -> None:
    converge(bench)
    assert (untagged(bench), bench.carries(bench.names[1])) == (None, set())


def test_an_access_port_is_never_in_a_second_vlan(bench: SwitchBench) -> None:
    converge(bench)
    visited_vlans(bench)
    converge(bench, "112", a="112,120")
    converge(bench, "120", a="120")
    converge(bench)
    is_atomic = SWITCH_PLATFORMS[bench.switch.platform].capabilities.atomic
    assert visited_vlans(bench) == ([112, 120, None] if is_atomic else [None, 112, None, 120, None])
    assert not bench.switch.running.vlans.keys() & POOL


def test_an_access_port_change_needs_one_save_only(bench: SwitchBench) -> None:
    converge(bench, "112", a="112")
    saves = bench.switch.saves
    converge(bench, "", a="112")
    assert bench.carries(bench.names[0]) == {112}
    assert bench.switch.saves == saves + 1


def test_a_managed_trunk_becomes_an_access_port(bench: SwitchBench) -> None:
    bench.converge("", "112,120")
    converge(bench, "112")
    assert (untagged(bench), bench.carries(bench.names[1])) == (112, set())


def test_an_access_port_without_a_cluster_becomes_a_managed_trunk(bench: SwitchBench) -> None:
    converge(bench, "112")
    converge(bench)
    bench.switch.running.ports[
        bench.names[1]
    ].down = False  # SBF shut the port down, and an administrator later enables the port
    assert not bench.converge("112", "112,120")
    assert bench.carries(bench.names[1]) == {112, 120}


@pytest.mark.parametrize("platform", LISTS)
def test_an_open_trunk_is_closed_before_a_vlan_is_created(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    all_vlans = set(range(1, 4095)) if platform == "hp_comware" else None
    bench.switch.running.ports[bench.names[1]] = EmulatedPort(mode="trunk", allowed=all_vlans)
    bench.switch.timeline.clear()
    assert bench.b in converge(bench, "112").close
    assert not any(state.get(bench.names[1], set()) & POOL for _, state in bench.switch.timeline)


def test_a_port_in_a_foreign_vlan_is_unsafe_and_unchanged(bench: SwitchBench) -> None:
    bench.switch.running.vlans[50] = "other"
    port = bench.switch.running.ports[bench.names[1]]
    port.native, port.mode = 50, port.mode if bench.switch.platform == "hp_procurve" else "access"
    before = bench.switch.running_config()
    with pytest.raises(
        Unsafe, match=r"switch sw1, access port .*: expected at most one managed VLAN, untagged, found VLAN 50"
    ):
        converge(bench, "112")
    assert bench.switch.running_config() == before


def test_a_port_that_another_user_shut_stays_shut(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    converge(bench, "112")
    bench.switch.running.ports[bench.names[1]].down = True
    assert not converge(bench, "112")
    managed = replace(bench.managed, access=(bench.b,))
    assert bench.driver.read(managed).down == (bench.b,)
    assert bench.switch.running.ports[bench.names[1]].down


def test_a_port_that_sbf_shut_down_is_enabled(make_bench: MakeBench) -> None:
    """SBF was killed between ``shutdown`` and ``no shutdown``. SBF's record of shut ports contains the port."""
    bench = make_bench("cisco_ios")
    converge(bench, "112")
    bench.switch.running.ports[bench.names[1]].down = True
    managed = replace(bench.managed, access=(bench.b,), shut=frozenset({bench.b}))
    wanted = SwitchWanted(ports={bench.a: VlanSet(), bench.b: VlanSet([112])}, access=(bench.b,))
    observed = bench.driver.read(managed)
    assert observed.down == ()
    bench.driver.apply(compare_switch(wanted, observed))
    assert untagged(bench) == 112


@pytest.mark.parametrize("platform", JOIN)
def test_a_port_outside_its_vlan_stays_shut(bench: SwitchBench) -> None:
    """An enabled port would be in the default VLAN or in its former VLAN."""
    converge(bench)
    visited_vlans(bench)
    bench.switch.fail("refuse", JOIN[bench.switch.platform])
    with pytest.raises(Refused):
        converge(bench, "112", a="120")
    assert visited_vlans(bench) == [None]
    assert bench.switch.running.ports[bench.names[1]].down
    assert bench.carries(bench.names[0]) == {120}
