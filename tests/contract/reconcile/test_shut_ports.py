"""Tests of managed ports that another user of the switch shut down."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from support.emulators.attached_switch import attach_switch
from support.emulators.switch_device import EmulatedSwitch
from support.sbf_fakes.world import World, spec

from virtcloud.model.cluster import ClusterState

SHOWS_SHUT = (
    "cisco_ios",
    "cisco_nxos",
    "arista_eos",
    "dell_os10",
    "aruba_aoscx",
    "hp_comware",
    "arista_eapi",
)
"""Platforms whose output shows which ports are shut down."""
Attach = Callable[..., EmulatedSwitch]


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


@pytest.fixture
def attach(world: World) -> Iterator[Attach]:
    with ExitStack() as stack:
        yield lambda platform, **more: stack.enter_context(attach_switch(world, platform, **more))


def read_again(world: World) -> None:
    world.clock.advance(3600)
    world.converge("brno-sw1")
    world.sweep()


@pytest.mark.parametrize("access", [False, True], ids=["trunk", "access port"])
@pytest.mark.parametrize("platform", SHOWS_SHUT)
def test_a_shut_port_degrades_its_cluster_and_stays_shut(
    platform: str, access: bool, world: World, attach: Attach
) -> None:
    switch = attach(platform, access=access)
    name = switch.port_names[0]
    world.put("c1", spec("brno-h1", lease_s=86400))
    world.settle()
    assert world.view("c1").state is ClusterState.ACTIVE
    switch.running.ports[name].down = True
    read_again(world)
    assert world.view("c1").state is ClusterState.DEGRADED
    trouble = world.element("brno-sw1").trouble
    assert (
        f"port {name}: expected an enabled port, because the port must carry a cluster, found a port that is shut down"
        in trouble
    )
    assert "enable the port on the switch" in trouble
    read_again(world)
    assert switch.running.ports[name].down
    switch.running.ports[name].down = False
    read_again(world)
    assert (world.view("c1").state, world.element("brno-sw1").trouble) == (ClusterState.ACTIVE, None)


def test_an_access_port_shut_by_another_user_is_not_enabled(world: World, attach: Attach) -> None:
    switch = attach("cisco_ios", access=True)
    switch.running.ports[switch.port_names[0]].down = True
    world.put("c1", spec("brno-h1"))
    world.settle()
    assert switch.running.ports[switch.port_names[0]].down
    assert "found a port that is shut down: enable the port on the switch" in world.element("brno-sw1").trouble


def test_an_access_port_shut_by_sbf_is_enabled_again(world: World, attach: Attach) -> None:
    switch = attach("cisco_ios", access=True)
    name = switch.port_names[0]
    for key in ("c1", "c2"):
        world.put(key, spec("brno-h1"))
        world.settle()
        assert world.view(key).state is ClusterState.ACTIVE
        world.delete(key)
        world.settle()
        assert switch.running.ports[name].down


def test_a_port_shut_by_a_killed_worker_is_enabled(world: World, attach: Attach) -> None:
    switch = attach("cisco_ios", access=True)
    switch.fail("disconnect", "^no shutdown$")
    world.put("c1", spec("brno-h1"))
    world.converge("brno-sw1")
    assert switch.running.ports[switch.port_names[0]].down
    world.settle()
    assert world.view("c1").state is ClusterState.ACTIVE
    assert not switch.running.ports[switch.port_names[0]].down
