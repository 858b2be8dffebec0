"""Tests of devices that restart between a reading and a change. The device then receives no line of the change.

The configuration after the restart may differ from the reading: a port may carry all VLANs, or may have a configuration
that SBF did not make.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.emulators import EMULATED_PLATFORMS as EMULATED
from support.emulators.edge_bench import ATTACH, PAIRS, TRANSPORTS, EdgeBench, emulate_edge, make_ready
from support.emulators.edge_bench import edge_driver_for as edge_driver
from support.emulators.switch_bench import SwitchBench, make_bench_in

from sbf_service.drivers.transport.device_session import DetectsSessionLoss
from virtcloud.model.edge import EdgeDifference
from virtcloud.model.errors import Refused, Unreachable
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.transport import Transport
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet

STATELESS = frozenset({"arista_eapi"})
"""Platforms with a new connection for each request. Their drivers hold no session that a restart could end."""
CHANGE = SwitchDifference(create=VlanSet.parse("101"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def wait_until_lost(driver: object) -> None:
    assert isinstance(driver, DetectsSessionLoss)
    deadline = time.monotonic() + 10
    while not driver.is_lost():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read_and_restart(bench: SwitchBench) -> SwitchBench:
    bench.read()
    bench.switch.reboot(boot="empty")
    if bench.switch.platform not in STATELESS:
        wait_until_lost(bench.driver)
    return bench


def make_edge_bench(stack: ExitStack, platform: str) -> EdgeBench:
    device = stack.enter_context(emulate_edge(platform))
    kind = next(kind for name, kind in PAIRS if name == platform)
    transport = Transport.model_validate({"name": kind, **TRANSPORTS[kind]})
    ports = (PortName(device.port_names[1]), PortName(device.port_names[2]))
    make_ready(device, *ports)
    driver = edge_driver(device, transport, *ports)
    stack.callback(driver.close)
    return EdgeBench(device, driver, transport, ports)


@pytest.mark.parametrize("platform", EMULATED)
def test_a_switch_restarted_after_the_reading_is_not_changed(platform: str, stack: ExitStack) -> None:
    bench = read_and_restart(make_bench_in(stack)(platform))
    with pytest.raises(
        Unreachable, match=r"switch sw1 .*ended the session after SBF had read the device: nothing more was sent"
    ):
        bench.driver.apply(CHANGE)
    assert 101 not in bench.switch.running.vlans


@pytest.mark.parametrize("platform", EMULATED)
def test_a_restarted_switch_is_changed_after_another_reading(platform: str, stack: ExitStack) -> None:
    bench = read_and_restart(make_bench_in(stack)(platform))
    with pytest.raises(Unreachable):
        bench.driver.apply(CHANGE)
    bench.read()
    bench.driver.apply(CHANGE)
    assert 101 in bench.read().vlans


@pytest.mark.parametrize("platform", [name for name in EMULATED if name not in STATELESS])
def test_a_reading_opens_a_new_session(platform: str, stack: ExitStack) -> None:
    bench = read_and_restart(make_bench_in(stack)(platform))
    before = bench.switch.logins
    assert not bench.read().vlans
    assert bench.switch.logins > before


def test_a_switch_restarted_before_its_save_is_not_saved(stack: ExitStack) -> None:
    """A save after the restart would report success, but the saved configuration would not contain the change."""
    bench = make_bench_in(stack)("cisco_ios")
    bench.read()
    bench.driver.apply(CHANGE)
    bench.switch.reboot()
    wait_until_lost(bench.driver)
    saves = bench.switch.saves
    with pytest.raises(Unreachable, match="ended the session after SBF had read the device"):
        bench.driver.save()
    assert bench.switch.saves == saves


@pytest.mark.parametrize("platform", dict(PAIRS))
def test_an_edge_restarted_after_the_reading_is_not_changed(platform: str, stack: ExitStack) -> None:
    bench = make_edge_bench(stack, platform)
    device, driver = bench.device, bench.driver
    bench.read()
    device.reboot(boot="empty")
    wait_until_lost(driver)
    before = device.running_config()
    with pytest.raises(
        Unreachable, match=r"edge pe1 .*ended the session after SBF had read the device: nothing more was sent"
    ):
        driver.apply(EdgeDifference(add=(bench.circuit(112),)))
    assert device.running_config() == before
    assert not bench.reached()


def test_an_edge_in_an_unknown_mode_receives_no_line(stack: ExitStack) -> None:
    """The device refuses to leave the configuration mode. SBF closes the session and does not repeat the change."""
    bench = make_edge_bench(stack, "cisco_nxos")
    bench.read()
    before = bench.device.logins
    bench.device.fail("refuse", ATTACH["cisco_nxos"])
    bench.device.fail("refuse", "^end$")
    with pytest.raises(Refused, match="sent 'end', the device answered"):
        bench.driver.apply(EdgeDifference(add=(bench.circuit(112), bench.circuit(120))))
    assert bench.device.logins == before
    assert 120 not in bench.device.running.vlans
