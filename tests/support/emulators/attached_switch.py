"""Replaces a fake switch of a :class:`World` with an emulated switch and its platform's driver."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sbf_service.drivers.contract import DeviceLogin, SwitchDriver, SwitchPlatform
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from sbf_service.reconcile.sessions import PlatformOf
from support.emulators import emulate
from support.emulators.switch_bench import login_for
from support.emulators.switch_device import EmulatedSwitch
from support.sbf_fakes.world import World, three_sites
from virtcloud.model.element import Switch as SwitchElement
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortName


def topology_with(names: tuple[str, ...], *, access: bool = False) -> Topology:
    document = three_sites().model_dump(mode="json")
    spelt = dict(zip(("p1", "p2", "uplink"), (name.replace(" ", "") for name in names), strict=True))
    brno = document["sites"][0]
    brno["switches"][0]["ports"] = list(spelt.values())
    brno["attachments"][0]["port"] = f"brno-sw1:{spelt['uplink']}"
    for link in document["links"]:
        element, _, port = link["b"].partition(":")
        if element == "brno-sw1":
            link["b"], link["access"] = f"{element}:{spelt[port]}", access
    return Topology.model_validate(document)


def platform_for(switch: EmulatedSwitch, world: World) -> PlatformOf:
    platform = SWITCH_PLATFORMS[switch.platform]
    ports = tuple(PortName(name.replace(" ", "")) for name in switch.port_names[:3])

    def driver(_: DeviceLogin) -> SwitchDriver:
        return platform.driver(login_for(switch, *ports))

    def platform_of(element: SwitchElement) -> SwitchPlatform:
        return replace(platform, driver=driver) if element.name == "brno-sw1" else world.switches.platform_of(element)

    return platform_of


@contextmanager
def attach_switch(world: World, platform: str, *, access: bool = False, **options: object) -> Iterator[EmulatedSwitch]:
    """Replace Brno's switch with an emulated switch. The switches of other sites remain fakes.

    If ``access`` is true, the hosts are on access ports.
    """
    with emulate(platform, **options) as switch:
        world.put_topology(topology_with(switch.port_names[:3], access=access))
        sessions = world.service.scheduler.worker.sessions
        former_platforms = sessions.platforms
        sessions.platforms = replace(former_platforms, of_switch=platform_for(switch, world))
        yield switch
        sessions.end(Name("brno-sw1"))
        sessions.platforms = former_platforms
