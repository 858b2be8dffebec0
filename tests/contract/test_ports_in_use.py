"""Managed ports in other use: refused until an administrator adopts them, and put back when SBF gives them up."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from emulators import PLATFORMS as EMULATED
from emulators.attach import attached
from emulators.industry import TrunkLists
from emulators.switch import Port, Switch
from sbf_fakes.world import World, make_world, spec

from sbf_service.converge.looking import Looking
from sbf_service.store.elements import target_of
from sbf_service.store.ports import adopt_ports, release_ports
from sbf_service.store.reading import read_topology
from virtcloud.model.cluster import State
from virtcloud.model.port_use import PortRelease
from virtcloud.model.values import Name, PortName

OPEN_BY_LIST = ("cisco_ios", "cisco_nxos", "arista_eos", "arista_eapi", "aruba_aoscx", "hp_comware", "juniper_junos")


@pytest.fixture
def small(tmp_path: object) -> Iterator[World]:
    """A world on SQLite."""
    world = make_world(tmp_path)
    world.furnish()
    yield world
    world.close()


@pytest.fixture
def attach(small: World) -> Iterator[object]:
    with ExitStack() as stack:
        yield lambda platform: stack.enter_context(attached(small, platform))


def in_vlan(switch: Switch, name: str, vlan: int) -> None:
    """Make a port somebody's access port."""
    switch.running.vlans[vlan] = "theirs"
    port = switch.running.ports[name]
    port.native, port.mode = vlan, port.mode if switch.platform == "hp_procurve" else "access"


def port_lines(switch: Switch) -> str:
    return switch.running_config()


@pytest.mark.parametrize("platform", [name for name in EMULATED if name != "cisco_iosxr"])
def test_an_access_port_in_other_use_is_refused_untouched(platform: str, small: World, attach: object) -> None:
    switch = attach(platform)
    in_vlan(switch, switch.port_names[0], 20)
    before = switch.running_config()
    small.put("c1", spec("brno-h1", "brno-h2"))
    small.settle()
    assert small.view("c1").state is State.CONFIGURING
    assert switch.running_config() == before
    trouble = small.element("brno-sw1").trouble
    name = switch.port_names[0].replace(" ", "")
    assert f"port {name}: expected a port without other use, found an access port in VLAN 20" in trouble
    assert f"'virtcloud element adopt brno-sw1 {name}'" in trouble


@pytest.mark.parametrize("platform", OPEN_BY_LIST)
def test_an_open_trunk_in_other_use_is_refused_untouched(platform: str, small: World, attach: object) -> None:
    switch = attach(platform)
    every = set(range(1, 4095)) if platform == "hp_comware" else None
    switch.running.vlans |= {10: "theirs", 20: "theirs"}
    switch.running.ports[switch.port_names[2]] = Port(mode="trunk", allowed=every)
    before = switch.running_config()
    small.put("c1", spec("brno-h1"))
    small.settle()
    assert switch.running_config() == before
    assert "found a trunk with every VLAN: it was left alone; adopt it" in small.element("brno-sw1").trouble


@pytest.mark.parametrize("platform", list(EMULATED))
def test_a_trunk_with_other_vlans_is_refused_untouched(platform: str, small: World, attach: object) -> None:
    switch = attach(platform)
    switch.running.vlans |= {20: "theirs"}
    switch.running.ports[switch.port_names[0]] = Port(mode="trunk", allowed={20})
    before = switch.running_config()
    small.put("c1", spec("brno-h1", "brno-h2"))
    small.settle()
    assert switch.running_config() == before
    assert "with VLAN 20: it was left alone; adopt it" in small.element("brno-sw1").trouble


@pytest.mark.parametrize("platform", list(EMULATED))
def test_empty_ports_need_no_adoption(platform: str, small: World, attach: object) -> None:
    attach(platform)
    small.put("c1", spec("brno-h1", "brno-h2"))
    small.settle()
    assert small.element("brno-sw1").trouble is None
    assert small.view("c1").state is State.ACTIVE


USES = {
    "an access port": Port(mode="access", native=20),
    "an open trunk": Port(mode="trunk"),
    "a trunk with a list": Port(mode="trunk", allowed={20, 30, 31, 32}),
    "a native VLAN": Port(mode="trunk", allowed={20}, native=20, trunk_native=20),
}
NO_SUCH_USE = {
    ("dell_force10", "an open trunk"),
    ("dell_os10", "an open trunk"),
    ("hp_procurve", "an open trunk"),
    ("sonic", "an open trunk"),
    ("cisco_iosxr", "an open trunk"),
    ("cisco_iosxr", "an access port"),
    ("cisco_iosxr", "a native VLAN"),
}


def adopt(world: World, *ports: str) -> None:
    found = {one.port: one.use for one in Looking(world.store, world.service.converger).ports(Name("brno-sw1"))}
    with world.store.change(who="ivo (site administrator)") as unit:
        switch = read_topology(unit).element(Name("brno-sw1"))
        adopt_ports(unit, switch, {PortName(port): found[PortName(port)] for port in ports})


def release(world: World, *ports: str, forget: bool = False) -> None:
    with world.store.change(who="ivo (site administrator)") as unit:
        switch, wanted = read_topology(unit).element(Name("brno-sw1")), target_of(unit, "brno-sw1").wanted
        release_ports(unit, switch, wanted, PortRelease(ports=ports, forget=forget))


def used(switch: Switch, name: str, use: str) -> None:
    """Set a port up as somebody uses it."""
    lists_ports = switch.platform in ("dell_force10", "dell_os10", "hp_procurve", "sonic")
    port = replace(USES[use])
    port.allowed = set() if port.allowed is None and lists_ports else port.allowed
    switch.running.vlans |= {20: "theirs", 30: "a", 31: "b", 32: "c"}
    if use == "an open trunk" and switch.platform == "hp_comware":
        port.allowed = set(range(1, 4095))
    if switch.platform == "hp_comware" and port.allowed and port.mode == "trunk":
        port.allowed = port.allowed | {1}
    if isinstance(switch, TrunkLists) and use == "a native VLAN":
        port.native = 1
    if switch.platform == "hp_procurve":
        port.mode = switch.running.ports[name].mode
    switch.running.ports[name] = port


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("platform", list(EMULATED))
def test_an_adopted_port_is_put_back_exactly(platform: str, use: str, small: World, attach: object) -> None:
    if (platform, use) in NO_SUCH_USE:
        pytest.skip("the platform has no such port")
    switch = attach(platform)
    name = switch.port_names[0]
    used(switch, name, use)
    before = switch.running_config()
    small.settle()
    adopt(small, name.replace(" ", ""))
    hosts = ("brno-h1",) if platform == "sonic" else ("brno-h1", "brno-h2")  # SONiC does not show an unused port's mode
    small.put("c1", spec(*hosts))
    small.settle()
    assert small.element("brno-sw1").trouble is None
    assert small.view("c1").state is State.ACTIVE
    assert switch.running_config() != before
    small.delete("c1")
    small.settle()
    for port in switch.port_names[:3]:
        release(small, port.replace(" ", ""))
    small.settle()
    assert small.element("brno-sw1").trouble is None
    assert switch.running_config() == before
    assert switch.startup.ports == switch.running.ports
