"""Tests that a cluster on a switch with a confirm timer is active only after the commit is confirmed."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.emulators import emulate
from support.emulators.confirm_timer import ConfirmTimerSwitch
from support.emulators.switch_bench import login_for
from support.sbf_fakes.world import World, spec, three_sites

from sbf_service.drivers.contract import DeviceLogin, SwitchDriver, SwitchPlatform
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from sbf_service.reconcile.worker import ReconcileOutcome
from virtcloud.model.cluster import ClusterState
from virtcloud.model.element import Switch
from virtcloud.model.values import Name, PortName

PORTS = {"brno-sw1:p1": "ge-0/0/0", "brno-sw1:p2": "ge-0/0/1", "brno-sw1:uplink": "ge-0/0/2"}


@pytest.fixture
def junos(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConfirmTimerSwitch]:
    document = three_sites().model_dump_json()
    for port, name in PORTS.items():
        document = document.replace(f'"{port}"', f'"brno-sw1:{name}"')
    brno, rest = document.split('"praha"', 1)
    brno = brno.replace('"p1","p2","uplink"', '"ge-0/0/0","ge-0/0/1","ge-0/0/2"')
    world.put_topology(three_sites().model_validate_json(f'{brno}"praha"{rest}'))
    with emulate("juniper_junos") as switch:
        assert isinstance(switch, ConfirmTimerSwitch)
        platform, fake_platform_of = SWITCH_PLATFORMS["juniper_junos"], world.switches.platform_of

        def driver(_: DeviceLogin) -> SwitchDriver:
            return platform.driver(login_for(switch, *(PortName(name) for name in PORTS.values())))

        def platform_of(element: Switch) -> SwitchPlatform:
            if element.name != "brno-sw1":
                return fake_platform_of(element)
            return SwitchPlatform(platform.capabilities, driver)

        sessions = world.service.scheduler.worker.sessions
        monkeypatch.setattr(sessions, "platforms", replace(sessions.platforms, of_switch=platform_of))
        yield switch
        sessions.end(Name("brno-sw1"))


def test_a_confirmed_commit_makes_a_cluster_active(world: World, junos: ConfirmTimerSwitch) -> None:
    world.put("c1", spec("brno-h1", "praha-h1"))
    world.settle()
    assert world.view("c1").state is ClusterState.ACTIVE
    assert junos.carrying()["ge-0/0/0"] == {100}
    assert (junos.unconfirmed, junos.saves) == (None, 1)


def test_an_unconfirmed_commit_makes_no_cluster_active(world: World, junos: ConfirmTimerSwitch) -> None:
    """The session is lost before the switch receives the confirmation, so the switch may revert the commit later."""
    world.put("c1", spec("brno-h1", "praha-h1"))
    junos.fail("disconnect", "^commit-configuration$")
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert junos.carrying()["ge-0/0/0"] == {100}
    world.settle()
    assert world.view("c1").state is ClusterState.CONFIGURING
    junos.expire_timer()
    assert junos.carrying() == {}
    world.settle()
    assert world.view("c1").state is ClusterState.ACTIVE
    assert junos.carrying()["ge-0/0/0"] == {100}
