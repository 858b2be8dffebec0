"""Tests of the IOS dialect on similar switches without their own dialect, and of sessions that are lost at every line.

The driver either works or stops. It never changes foreign configuration, and no other port ever carries a VLAN of SBF.
"""

from contextlib import ExitStack

import pytest
from emulators import EMULATED_PLATFORMS
from emulators.clients import DirectLine
from emulators.ios_clones import CLONES
from emulators.ssh_server import listening
from emulators.switch_bench import SwitchBench, driver_for
from emulators.switch_device import EmulatedSwitch

from sbf_service.domain.ownership import mark_foreign_vlans
from sbf_service.drivers.contract import SwitchDriver
from sbf_service.drivers.switch.command_line_switch import CommandLineSwitch
from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference, SwitchWanted, compare_switch

STOPS = (Refused, Unsafe, Unreachable)
OURS = {112, *range(120, 140, 2)}
ON_A = "112," + ",".join(str(number) for number in range(120, 140, 2))
CUT_AT_EVERY_LINE = ("cisco_ios", "cisco_nxos", "arista_eos", "dell_force10", "dell_os10", "aruba_aoscx")


def furnished(switch: EmulatedSwitch) -> EmulatedSwitch:
    """Configure foreign VLANs and ports on a switch. Return the switch."""
    access, trunk, every = switch.port_names[3:6]
    switch.occupy(vlans={20: "printers", 150: "lab"}, access={access: 150}, trunks={trunk: {20, 150}, every: {20}})
    switch.timeline.clear()
    return switch


def left_to_do(driver: SwitchDriver, bench: SwitchBench) -> SwitchDifference:
    """Return the difference to eleven VLANs on the first port and none on the second."""
    wanted = SwitchWanted(ports={bench.a: VlanSet.parse(ON_A), bench.b: VlanSet()})
    return compare_switch(wanted, mark_foreign_vlans(driver.read(bench.managed), VlanSet(OURS)))


def reached_others(switch: EmulatedSwitch) -> list[tuple[str, str, set[int]]]:
    """Return the lines after which a port other than the first carried a managed VLAN, with the port and the VLANs."""
    first = switch.port_names[0]
    return [
        (line, port, vlans & OURS)
        for line, state in switch.timeline
        for port, vlans in state.items()
        if port != first and vlans & OURS
    ]


@pytest.mark.parametrize("clone", CLONES)
def test_an_ios_like_switch_is_configured_or_left_unchanged(clone: str) -> None:
    with ExitStack() as stack:
        switch = furnished(stack.enter_context(listening(CLONES[clone]())))
        a, b = (PortName(name) for name in switch.port_names[:2])
        bench = SwitchBench(switch, driver_for(switch, a, b, read_timeout=0.5), a, b, switch.port_names[2])
        stack.callback(bench.driver.close)
        watch = switch.watch(ports=bench.names, vlans=OURS)
        try:
            for _ in range(2):
                bench.driver.apply(left_to_do(bench.driver, bench))
            assert bool(left_to_do(bench.driver, bench)) is (bench.carries(bench.names[0]) != OURS)
        except STOPS:
            pass
        assert (watch.changes, reached_others(switch)) == ([], [])


@pytest.mark.parametrize("clone", ["OtherSuccess", "AskingSave"])
def test_an_unknown_answer_to_a_save_is_no_success(clone: str) -> None:
    with ExitStack() as stack:
        switch = furnished(stack.enter_context(listening(CLONES[clone]())))
        port = PortName(switch.port_names[0])
        driver = driver_for(switch, port, read_timeout=0.5)
        stack.callback(driver.close)
        with pytest.raises(STOPS):
            driver.save()


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("platform", CUT_AT_EVERY_LINE)
def test_a_session_can_be_cut_at_every_line(platform: str, done: bool) -> None:
    lines = _lines_after_a_cut(platform, skip=10_000, done=done)
    assert len(lines) > 8
    for skip in range(len(lines)):
        assert _lines_after_a_cut(platform, skip=skip, done=done)


def _lines_after_a_cut(platform: str, skip: int, *, done: bool) -> list[str]:
    """Reconcile and save on a switch whose connection is lost at one line.

    Return the lines that the switch received.
    """
    switch = furnished(EMULATED_PLATFORMS[platform]())
    a, b = (PortName(name.replace(" ", "")) for name in switch.port_names[:2])
    bench = SwitchBench(switch, None, a, b, switch.port_names[2])  # type: ignore[arg-type]
    driver = CommandLineSwitch(Name("sw1"), DIALECTS[platform], DirectLine(switch))
    watch = switch.watch(ports=bench.names, vlans=OURS)
    switch.fail("cut", "", skip=skip, done=done)
    for _ in range(3):
        try:
            driver.apply(left_to_do(driver, bench))
            driver.save()
            break
        except Unreachable:
            continue
    commands = list(switch.commands)
    assert not left_to_do(driver, bench)
    assert (watch.changes, reached_others(switch), switch.unsaved) == ([], [], False)
    return commands
