"""Tests of the IOS dialect on switches that only resemble IOS, and of the loss of a session at each line.

The driver configures a switch that resembles IOS, or raises an error. The driver never changes foreign configuration.
Managed VLANs are wanted only on the first port. No other port ever carries a managed VLAN.
"""

from contextlib import ExitStack

import pytest
from support.emulators import EMULATED_PLATFORMS
from support.emulators.clients import DirectLine
from support.emulators.ios_clones import CLONES
from support.emulators.ssh_server import listening
from support.emulators.switch_bench import SwitchBench, driver_for
from support.emulators.switch_device import EmulatedSwitch

from sbf_service.domain.ownership import mark_foreign_vlans
from sbf_service.drivers.contract import SwitchDriver
from sbf_service.drivers.switch.command_line_switch import CommandLineSwitch
from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.switch_state import SwitchDifference, SwitchWanted, compare_switch
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

DRIVER_ERRORS = (Refused, Unsafe, Unreachable)
MANAGED_VLANS = {112, *range(120, 140, 2)}
WANTED_ON_A = "112," + ",".join(str(number) for number in range(120, 140, 2))
LOST_AT_EVERY_LINE = ("cisco_ios", "cisco_nxos", "arista_eos", "dell_force10", "dell_os10", "aruba_aoscx")


def occupy(switch: EmulatedSwitch) -> EmulatedSwitch:
    access, trunk, other_trunk = switch.port_names[3:6]
    switch.occupy(
        vlans={20: "printers", 150: "lab"}, access={access: 150}, trunks={trunk: {20, 150}, other_trunk: {20}}
    )
    switch.timeline.clear()
    return switch


def remaining_difference(driver: SwitchDriver, bench: SwitchBench) -> SwitchDifference:
    """Return the difference between the observed and the wanted state.

    The wanted state has eleven VLANs on the first port, and no VLAN on the second port.
    """
    wanted = SwitchWanted(ports={bench.a: VlanSet.parse(WANTED_ON_A), bench.b: VlanSet()})
    return compare_switch(wanted, mark_foreign_vlans(driver.read(bench.managed), VlanSet(MANAGED_VLANS)))


def find_leaks(switch: EmulatedSwitch) -> list[tuple[str, str, set[int]]]:
    """Return each line after which a port other than the first port carried managed VLANs.

    Each result contains the line, the port, and these VLANs.
    """
    first = switch.port_names[0]
    return [
        (line, port, vlans & MANAGED_VLANS)
        for line, state in switch.timeline
        for port, vlans in state.items()
        if port != first and vlans & MANAGED_VLANS
    ]


@pytest.mark.parametrize("clone", CLONES)
def test_an_ios_like_switch_is_configured_or_left_unchanged(clone: str) -> None:
    with ExitStack() as stack:
        switch = occupy(stack.enter_context(listening(CLONES[clone]())))
        a, b = (PortName(name) for name in switch.port_names[:2])
        bench = SwitchBench(switch, driver_for(switch, a, b, read_timeout=0.5), a, b, switch.port_names[2])
        stack.callback(bench.driver.close)
        recorder = switch.record_changes(ports=bench.names, vlans=MANAGED_VLANS)
        try:
            for _ in range(2):
                bench.driver.apply(remaining_difference(bench.driver, bench))
            assert bool(remaining_difference(bench.driver, bench)) is (bench.carries(bench.names[0]) != MANAGED_VLANS)
        except DRIVER_ERRORS:
            pass
        assert (recorder.changes, find_leaks(switch)) == ([], [])


@pytest.mark.parametrize("clone", ["OtherSuccess", "AskingSave"])
def test_an_unknown_answer_to_a_save_is_no_success(clone: str) -> None:
    with ExitStack() as stack:
        switch = occupy(stack.enter_context(listening(CLONES[clone]())))
        port = PortName(switch.port_names[0])
        driver = driver_for(switch, port, read_timeout=0.5)
        stack.callback(driver.close)
        with pytest.raises(DRIVER_ERRORS):
            driver.save()


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("platform", LOST_AT_EVERY_LINE)
def test_a_session_can_be_lost_at_every_line(platform: str, done: bool) -> None:
    lines = _reconcile_with_lost_session(platform, skip=10_000, done=done)
    assert len(lines) > 8
    for skip in range(len(lines)):
        assert _reconcile_with_lost_session(platform, skip=skip, done=done)


def _reconcile_with_lost_session(platform: str, skip: int, *, done: bool) -> list[str]:
    """Reconcile and save on a switch that ends the session after ``skip`` lines. Return the received lines."""
    switch = occupy(EMULATED_PLATFORMS[platform]())
    a, b = (PortName(name.replace(" ", "")) for name in switch.port_names[:2])
    bench = SwitchBench(switch, None, a, b, switch.port_names[2])  # type: ignore[arg-type]
    driver = CommandLineSwitch(Name("sw1"), DIALECTS[platform], DirectLine(switch))
    recorder = switch.record_changes(ports=bench.names, vlans=MANAGED_VLANS)
    switch.fail("disconnect", "", skip=skip, done=done)
    for _ in range(3):
        try:
            driver.apply(remaining_difference(driver, bench))
            driver.save()
            break
        except Unreachable:
            continue
    commands = list(switch.commands)
    assert not remaining_difference(driver, bench)
    assert (recorder.changes, find_leaks(switch), switch.unsaved) == ([], [], False)
    return commands
