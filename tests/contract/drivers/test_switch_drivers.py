"""Tests of every switch driver on an emulated switch of each platform. An *open trunk* carries all VLANs."""

from contextlib import suppress
from typing import Any

import pytest
from support.emulators import EMULATED_PLATFORMS as EMULATED
from support.emulators import OPEN_BY_LIST as CAN_BE_OPEN
from support.emulators.switch_bench import (
    POOL,
    MakeBench,
    SwitchBench,
    driver_for,
    get_ssh_line,
    short_forms,
    vlan_line_pattern,
)
from support.emulators.switch_device import EmulatedPort

from sbf_service.drivers.contract import SwitchScope
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.port_use import PortUse
from virtcloud.model.switch_state import SwitchDifference, SwitchWanted, compare_switch
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet

NO_VLANS = VlanSet()
ALLOW = {
    "cisco_ios": "allowed vlan add",
    "cisco_nxos": "allowed vlan add",
    "arista_eos": "allowed vlan add",
    "dell_force10": "^tagged",
    "dell_os10": "^switchport trunk allowed",
    "hp_procurve": "^vlan .* tagged",
    "aruba_aoscx": "^vlan trunk allowed (?!1$)",
    "hp_comware": "^port trunk permit",
    "sonic": "member add",
    "arista_eapi": "allowed vlan add",
    "cisco_iosxr": "(?s)^edit-config.* l2transport",
    "juniper_junos": "(?s)^load-configuration.*vlan members",
}
REMOVE = {
    "cisco_ios": "allowed vlan (remove|none)",
    "cisco_nxos": "allowed vlan (remove|none)",
    "arista_eos": "allowed vlan (remove|none)",
    "dell_force10": "^no tagged",
    "dell_os10": "^no switchport trunk allowed",
    "hp_procurve": "^no vlan .* tagged",
    "aruba_aoscx": "^no vlan trunk allowed",
    "hp_comware": "^undo port trunk permit vlan (?!1$|all)",
    "sonic": "member del",
}
OTHER_FORMS = {
    "cisco_ios": ("Gi1/0/1", "gigabitethernet1/0/2"),
    "cisco_nxos": ("Eth1/1", "ethernet1/2"),
    "arista_eos": ("Et1", "eth2"),
    "dell_force10": ("Te0/0", "TenGig0/1"),
    "dell_os10": ("eth1/1/1", "Ethernet1/1/2"),
    "hp_procurve": ("1", "2"),
    "aruba_aoscx": ("1/1/1", "1/1/2"),
    "hp_comware": ("XGE1/0/1", "ten-gigabitethernet1/0/2"),
    "sonic": ("Ethernet0", "ethernet4"),
    "arista_eapi": ("Et1", "eth2"),
    "cisco_iosxr": ("Gi0/0/0/0", "gigabitethernet0/0/0/1"),
    "juniper_junos": ("ge-0/0/0.0", "GE-0/0/1"),
}
QUERIES = {"juniper_junos": "^get-configuration database", "arista_eapi": "^show vlan$", "cisco_iosxr": "^get-config"}
HOLD_SESSIONS = [name for name in EMULATED if name != "arista_eapi"]
"""Platforms whose driver holds a session. A driver over HTTP holds no session."""
ATOMIC = [name for name in EMULATED if SWITCH_PLATFORMS[name].capabilities.atomic]
LINE_BY_LINE = [name for name in EMULATED if name not in ATOMIC]
WITH_PORT_MODE = [name for name in LINE_BY_LINE if DIALECTS[name].allow[0] == "interface {port}"]


def allow(platform: str) -> str:
    """Return a pattern of the line that allows VLANs on a port: from `ALLOW`, or else from the dialect's templates."""
    return ALLOW.get(platform) or vlan_line_pattern(DIALECTS[platform].allow)


@pytest.fixture(params=list(EMULATED))
def platform(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def bench(platform: str, make_bench: MakeBench) -> SwitchBench:
    return make_bench(platform)


def test_a_new_switch_carries_no_managed_vlan(bench: SwitchBench) -> None:
    carried = bench.read()
    assert carried.vlans == NO_VLANS
    assert carried.ports == {bench.a: NO_VLANS, bench.b: NO_VLANS}
    assert bench.switch.saves == 0


def test_a_difference_is_applied_and_reversed_without_other_changes(bench: SwitchBench) -> None:
    """Unmanaged ports and VLANs stay byte-identical (docs/explanation/invariants.md, 4)."""
    bench.switch.running.vlans |= {50: "other"}
    other = bench.switch.running.ports[bench.other]
    other.mode, other.allowed = "trunk", {50}
    assert not bench.converge("112", "112,120")
    assert (bench.carries(bench.names[0]), bench.carries(bench.names[1])) == ({112}, {112, 120})
    allowed = bench.switch.running.ports[bench.names[0]].allowed
    assert allowed is not None
    allowed.add(50)
    assert not bench.converge("", "120")
    before = bench.switch.running_config()
    assert not bench.converge("130-135,140", "120")
    assert bench.carries(bench.names[0]) == {130, 131, 132, 133, 134, 135, 140}
    assert not bench.converge("", "120")
    assert bench.switch.running_config() == before
    assert 50 in (bench.switch.running.ports[bench.names[0]].allowed or ())
    assert bench.carries(bench.other) == set()


def test_no_port_is_open_after_its_last_vlan_leaves(bench: SwitchBench) -> None:
    bench.converge("112", "112")
    assert not bench.converge()
    assert bench.carries(bench.names[0]) == set()
    assert all(bench.switch.running.ports[name].allowed is not None for name in bench.names)
    assert POOL.isdisjoint(bench.switch.running.vlans)


@pytest.mark.parametrize("platform", CAN_BE_OPEN)
def test_an_open_trunk_never_carries_a_new_vlan(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    all_vlans = set(range(1, 4095)) if platform == "hp_comware" else None
    for name in bench.names:
        bench.switch.running.ports[name] = EmulatedPort(mode="trunk", allowed=all_vlans)
    assert bench.read().open == (bench.a, bench.b)
    bench.switch.timeline.clear()
    assert not bench.converge("112", "")
    states = [state.get(bench.names[1], set()) & POOL for _, state in bench.switch.timeline]
    assert not any(states)
    assert all(state.get(bench.names[0], set()) & POOL <= {112} for _, state in bench.switch.timeline)


@pytest.mark.parametrize("platform", CAN_BE_OPEN)
def test_a_pool_of_one_vlan_also_closes_an_open_trunk(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    all_vlans = set(range(1, 4095)) if platform == "hp_comware" else None
    bench.switch.running.ports[bench.names[0]] = EmulatedPort(mode="trunk", allowed=all_vlans)
    scope = SwitchScope((bench.a,), VlanSet([112]))
    wanted = SwitchWanted(ports={bench.a: VlanSet([112])})
    bench.driver.apply(compare_switch(wanted, bench.driver.read(scope)))
    assert (bench.switch.running.ports[bench.names[0]].allowed or set()) - {1} == {112}


def test_100_vlans_need_one_save_and_few_lines(bench: SwitchBench) -> None:
    """Each new VLAN needs a line for its name. Lines for ports contain ranges where the platform supports them."""
    bench.read()
    before = len(bench.switch.commands)
    assert not bench.converge("100-199", "100-199")
    assert bench.switch.saves == 1
    changes = sum(not line.startswith("show") for line in bench.switch.commands[before:])
    dialect = DIALECTS.get(bench.switch.platform)
    has_ranges = dialect is None or any(line.endswith("{vlans}") for line in dialect.allow)
    assert changes <= (100 * 3 + 30 if has_ranges else 1000)


def test_scattered_vlans_are_sent_in_several_lines(bench: SwitchBench) -> None:
    scattered = ",".join(str(number) for number in range(100, 200, 2))
    assert not bench.converge(scattered)
    assert bench.carries(bench.names[0]) == set(range(100, 200, 2))


@pytest.mark.parametrize("platform", LINE_BY_LINE)
def test_a_refused_line_does_not_stop_the_other_lines(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    bench.switch.fail("refuse", allow(bench.switch.platform))
    with pytest.raises(Refused, match=r"switch sw1: sent '.*', the device answered .*(?i:invalid|error|unrecognized)"):
        bench.converge("112", "112")
    assert bench.carries(bench.names[1]) == {112}
    assert not bench.converge("112", "112")


@pytest.mark.parametrize("platform", WITH_PORT_MODE)
def test_a_refused_port_does_not_stop_other_ports(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    # On IOS, a port without a configured mode can negotiate a trunk that carries all VLANs. If the device refuses to
    # empty this port's list of allowed VLANs, the driver adds no VLAN to any port. So this test configures the mode.
    if platform == "cisco_ios":
        bench.switch.configure(f"interface {bench.names[0]}", "switchport mode access")
    bench.switch.fail("refuse", rf"^interface .*{bench.names[0][-3:]}$", times=1 if DIALECTS[platform].prepare else 2)
    with pytest.raises(Refused, match="switch sw1: sent 'interface "):
        bench.converge("112", "112,120")
    assert bench.carries(bench.names[1]) == {112, 120}
    assert not bench.converge("112", "112,120")


@pytest.mark.parametrize("platform", ATOMIC)
def test_a_refused_line_changes_nothing_on_an_atomic_switch(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    before = bench.switch.running_config()
    bench.switch.fail("refuse", allow(bench.switch.platform))
    with pytest.raises(Refused, match=r"switch sw1: the switch answered .*(?i:invalid|error|unrecognized)"):
        bench.converge("112", "112")
    assert bench.switch.running_config() == before
    assert not bench.converge("112", "112")


@pytest.mark.parametrize("platform", ATOMIC)
def test_a_change_with_ignored_lines_is_reverted(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    before = bench.switch.running_config()
    bench.switch.fail("ignore", allow(bench.switch.platform), times=100)
    with pytest.raises(Refused, match=r"sw1: .*wanted VLAN 112 tagged, found none in the reading after the commit"):
        bench.converge("112")
    assert bench.switch.running_config() == before


@pytest.mark.parametrize("platform", LINE_BY_LINE)
def test_a_device_that_ignores_accepted_lines_is_detected(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    bench.switch.fail("ignore", allow(bench.switch.platform), times=100)
    remaining = bench.converge("112")
    assert remaining.add == {bench.a: VlanSet([112])}


@pytest.mark.parametrize("done", [False, True])
def test_the_next_session_completes_the_change_of_a_lost_session(bench: SwitchBench, done: bool) -> None:
    bench.switch.fail("disconnect", allow(bench.switch.platform), done=done)
    with pytest.raises(Unreachable, match="sw1"):
        bench.converge("112,120", "112")
    assert not bench.converge("112,120", "112")
    assert bench.carries(bench.names[0]) == {112, 120}


def test_an_unknown_answer_is_unsafe_and_nothing_is_changed(bench: SwitchBench) -> None:
    dialect = DIALECTS.get(bench.switch.platform)
    shown = f"^{dialect.show[0].split()[0]} " if dialect else QUERIES[bench.switch.platform]
    bench.switch.fail("print", shown, text="\x01 what the manual does not say", times=10)
    before = bench.switch.running_config()
    with pytest.raises(Unsafe, match=r"sw1.*cannot parse.*what the manual does not say"):
        bench.converge("112")
    assert bench.switch.running_config() == before


@pytest.mark.parametrize("platform", HOLD_SESSIONS)
def test_the_driver_needs_only_one_session(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform, sessions=1)
    bench.read()
    before = bench.switch.logins
    assert not bench.converge("112", "112")
    assert not bench.converge()
    assert bench.switch.logins == before
    second = driver_for(bench.switch, bench.a, read_timeout=0.5)
    with pytest.raises(Unreachable):
        second.read(bench.managed)


def test_the_driver_reconnects_after_the_device_forgets_a_lost_session(make_bench: MakeBench) -> None:
    bench = make_bench("dell_os10", sessions=1, linger=60)
    bench.switch.fail("disconnect", ALLOW["dell_os10"])
    with pytest.raises(Unreachable, match="ended the session"):
        bench.converge("112")
    with pytest.raises(Unreachable):
        bench.converge("112")
    bench.switch.lost.clear()
    assert not bench.converge("112")


def test_an_idle_session_ended_by_the_device_is_reopened(make_bench: MakeBench) -> None:
    bench = make_bench("arista_eos")
    bench.read()
    before = bench.switch.logins
    bench.switch.hang_up()
    session: Any = get_ssh_line(bench.driver)._session
    session.remote_conn_pre.get_transport().join(5)
    assert bench.read().vlans == NO_VLANS
    assert bench.switch.logins > before


def test_the_driver_reads_the_saved_configuration_after_a_reboot(bench: SwitchBench) -> None:
    bench.converge("112", "112")
    bench.converge("", "")
    bench.switch.running.vlans[140] = "unsaved"
    bench.converge("150")
    bench.switch.reboot()
    with suppress(Unreachable):  # the driver may detect the end of the session before or after the next command
        bench.read()
    assert bench.read().ports[bench.a] == VlanSet([150])
    assert not bench.converge("112")


def test_every_form_of_a_ports_name_is_accepted(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    bench.a, bench.b = map(PortName, OTHER_FORMS.get(platform) or short_forms(platform))
    assert not bench.converge("112", "120")
    assert [bench.carries(name) for name in bench.names] == [{112}, {120}]


def test_an_untagged_pool_vlan_on_a_managed_trunk_is_unsafe(bench: SwitchBench) -> None:
    bench.switch.running.vlans[112] = "other"
    port = bench.switch.running.ports[bench.names[0]]
    port.native, port.mode = 112, "access" if bench.switch.platform != "hp_procurve" else port.mode
    with pytest.raises(Unsafe, match=r"found it untagged"):
        bench.read()


@pytest.mark.parametrize(
    ("platform", "number"), [("cisco_ios", 1006), ("cisco_nxos", 3968), ("arista_eos", 1006), ("arista_eapi", 1006)]
)
def test_a_reserved_vlan_is_refused_without_a_change(platform: str, number: int, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    before = bench.switch.running_config()
    bench.read()
    with pytest.raises(Refused, match=f"wanted VLAN {number}, which the switch reserves"):
        bench.driver.apply(SwitchDifference(create=VlanSet([number])))
    assert bench.switch.running_config() == before


@pytest.mark.parametrize(
    "platform",
    ["cisco_ios", "cisco_nxos", "arista_eos", "arista_eapi", "cisco_iosxr", "dell_os10", "aruba_aoscx", "hp_comware"],
)
def test_a_missing_port_is_unsafe(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    with pytest.raises(Unsafe, match="expected a port Ethernet9/9"):
        bench.driver.read(SwitchScope((PortName("Ethernet9/9"),), POOL))


def test_a_missing_released_port_can_be_forgotten(make_bench: MakeBench) -> None:
    """A removed line card can be reinserted with its configuration, so SBF forgets a missing port only on request."""
    scope = SwitchScope((), POOL, returned={PortName("Ethernet9/9"): PortUse()})
    with pytest.raises(Unsafe, match=r"expected a port Ethernet9/9.*virtcloud element release .* Ethernet9/9 --forget"):
        make_bench("cisco_ios").driver.read(scope)
