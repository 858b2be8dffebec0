"""Tests of switches that restart from an old startup configuration (invariant 2 in docs/explanation/invariants.md).

A restart must not put a port into another cluster's VLAN.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.emulators import EMULATED_PLATFORMS as EMULATED
from support.emulators import emulate
from support.emulators.session import EmulatedSession
from support.emulators.switch_device import EmulatedSwitch
from support.sbf_fakes.world import World, spec

from sbf_service.bootstrap import SbfService, build_service
from sbf_service.drivers.registry import SWITCH_PLATFORMS, find_switch_platform
from sbf_service.settings import ServiceSettings
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import NoVlanFree
from virtcloud.model.topology import Topology

LINE_BY_LINE = [name for name in EMULATED if not SWITCH_PLATFORMS[name].capabilities.atomic]
ALICE, BOB = spec("brno-h1"), spec("brno-h2", owner="bob")


@dataclass
class OneSwitch(World):
    """A site with one emulated switch, two hosts and a pool of one VLAN ID. The drivers are real."""

    switch: EmulatedSwitch = field(kw_only=True)
    folder: Path = field(kw_only=True)

    def restarted(self) -> SbfService:
        password = self.folder / "password"
        password.write_text(self.switch.password)
        enable = self.folder / "enable"
        enable.write_text(self.switch.secret)
        credential = {"username": self.switch.username, "password": {"file": password}, "enable": {"file": enable}}
        settings = {
            "database": self.database,
            "timing": self.timing,
            "replica": "one",
            "credentials": {"lab": credential},
        }
        return build_service(
            ServiceSettings.model_validate(settings), find_switch_platform, self.clock, self.edges.platform_of
        )

    def begin(self) -> None:
        ports = [port.replace(" ", "") for port in self.switch.port_names[:2]]
        switch = {"name": "brno-sw1", "platform": self.switch.platform, "ports": ports}
        site = {
            "name": "brno",
            "switches": [switch | {"address": self.switch.address, "credential": "lab"}],
            "hosts": [{"name": f"brno-h{number}", "ports": ["eth0"]} for number in (1, 2)],
        }
        links = [{"a": f"brno-h{n}:eth0", "b": f"brno-sw1:{port}"} for n, port in enumerate(ports, start=1)]
        self.furnish("112", Topology.model_validate({"name": "one", "sites": [site], "links": links}))
        self.settle()

    def ports_in_112(self) -> set[str]:
        return {port for port, vlans in self.switch.carrying().items() if 112 in vlans}


Make = Callable[..., OneSwitch]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:

        def make_world(platform: str, read_timeout: float = 10) -> OneSwitch:
            switch = stack.enter_context(emulate(platform))
            timing = {"read_timeout": read_timeout}
            world = OneSwitch(f"sqlite:///{tmp_path / 'sbf.db'}", timing=timing, switch=switch, folder=tmp_path)
            stack.callback(world.close)
            world.begin()
            return world

        yield make_world


def create_and_delete(world: OneSwitch) -> tuple[str, str]:
    """Create alice's cluster with VLAN 112 and delete it. Return the switch ports of alice's host and of bob's host.

    Afterwards, the hosts have confirmed the removal, but the switch has not.
    """
    world.put("alice", ALICE)
    world.settle()
    assert world.view("alice").state is ClusterState.ACTIVE
    world.delete("alice")
    world.confirm_hosts()
    return world.switch.port_names[0], world.switch.port_names[1]


@pytest.mark.parametrize("platform", LINE_BY_LINE)
def test_a_rebooted_port_is_in_no_other_clusters_vlan(platform: str, make: Make) -> None:
    world = make(platform)
    alice_port, bob_port = create_and_delete(world)
    world.switch.fail_save("busy" if "busy" in world.switch.save_failures else "no space", times=9)
    world.settle()
    assert (world.ports_in_112(), world.element("brno-sw1").unsaved_since is not None) == (set(), True)
    with pytest.raises(NoVlanFree):
        world.put("bob", BOB)
    world.switch.reboot()
    assert world.ports_in_112() == {alice_port}
    with pytest.raises(NoVlanFree):
        world.put("bob", BOB)
    world.switch.save_faults.clear()
    world.clock.advance(301)
    world.settle()
    world.settle()
    world.put("bob", BOB)
    world.settle()
    assert world.view("bob").state is ClusterState.ACTIVE
    world.switch.reboot()
    assert world.ports_in_112() == {bob_port}


@pytest.mark.parametrize("fault", ["disconnect", "disconnect written", "hang", "hang written"])
def test_an_interrupted_save_frees_no_vlan_until_repeated(fault: str, make: Make) -> None:
    world = make("cisco_ios", read_timeout=1 if "hang" in fault else 10)
    create_and_delete(world)
    world.switch.fail_save(fault)
    world.converge("brno-sw1")
    assert str(world.site("brno").free) == ""
    world.service.store.close()
    world.service = world.restarted()
    world.clock.advance(10)
    world.settle()
    assert (str(world.site("brno").free), world.switch.unsaved) == ("112", False)


def test_a_restart_during_the_save_frees_no_vlan(make: Make) -> None:
    """The switch restarts before it writes its configuration, and then writes the old configuration."""
    world = make("cisco_ios")
    alice_port, _ = create_and_delete(world)
    save = world.switch.store

    def reboot_and_save(session: EmulatedSession) -> None:
        world.switch.reboot()
        save(session)

    world.switch.store = reboot_and_save
    world.converge("brno-sw1")
    assert (world.ports_in_112(), str(world.site("brno").free)) == ({alice_port}, "")
