"""Tests of managed ports in other use.

SBF does not configure such a port until an administrator adopts the port. When the adopted port is released, SBF
restores the port's former configuration.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from support.emulators import EMULATED_PLATFORMS as EMULATED
from support.emulators import OPEN_BY_LIST
from support.emulators.attached_switch import attach_switch, platform_for
from support.emulators.ios_like import TrunkLists
from support.emulators.switch_device import EmulatedPort, EmulatedSwitch
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.reconcile.on_demand import OnDemandReader
from sbf_service.reconcile.setting_dry_run import SettingDryRun
from sbf_service.store.elements.elements import make_element_views, read_wanted_revision
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.vlans.pools import put_pool
from sbf_service.store.vlans.ports import adopt_ports, parse_removed_switch, read_port_records, release_ports
from virtcloud.model.cluster import ClusterState
from virtcloud.model.element import Switch
from virtcloud.model.element_views import Pool
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.port_use import PortRelease
from virtcloud.model.switch_state import SwitchDifference, SwitchWanted
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

Attach = Callable[[str], EmulatedSwitch]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[World]:
    world = make_world(tmp_path)
    world.furnish()
    yield world
    world.close()


@pytest.fixture
def attach(small: World) -> Iterator[Attach]:
    with ExitStack() as stack:
        yield lambda platform: stack.enter_context(attach_switch(small, platform))


def make_access_port(switch: EmulatedSwitch, name: str, vlan: int) -> None:
    switch.running.vlans[vlan] = "other"
    port = switch.running.ports[name]
    port.native, port.mode = vlan, port.mode if switch.platform == "hp_procurve" else "access"


@pytest.mark.parametrize("platform", [name for name in EMULATED if name != "cisco_iosxr"])
def test_an_access_port_in_other_use_is_left_unchanged(platform: str, small: World, attach: Attach) -> None:
    switch = attach(platform)
    make_access_port(switch, switch.port_names[0], 20)
    before = switch.running_config()
    small.put("c1", spec("brno-h1", "brno-h2"))
    small.settle()
    assert small.view("c1").state is ClusterState.CONFIGURING
    assert switch.running_config() == before
    trouble = small.element("brno-sw1").trouble
    name = switch.port_names[0].replace(" ", "")
    assert f"port {name}: expected a port without other use, found an access port in VLAN 20" in trouble
    assert f"'virtcloud element adopt brno-sw1 {name}'" in trouble


@pytest.mark.parametrize("platform", OPEN_BY_LIST)
def test_an_open_trunk_in_other_use_is_left_unchanged(platform: str, small: World, attach: Attach) -> None:
    switch = attach(platform)
    all_vlans = set(range(1, 4095)) if platform == "hp_comware" else None
    switch.running.vlans |= {10: "other", 20: "other"}
    switch.running.ports[switch.port_names[2]] = EmulatedPort(mode="trunk", allowed=all_vlans)
    before = switch.running_config()
    small.put("c1", spec("brno-h1"))
    small.settle()
    assert switch.running_config() == before
    assert (
        "found a trunk with every VLAN: the port was left unchanged; adopt the port"
        in small.element("brno-sw1").trouble
    )


@pytest.mark.parametrize("platform", list(EMULATED))
def test_a_trunk_with_other_vlans_is_left_unchanged(platform: str, small: World, attach: Attach) -> None:
    switch = attach(platform)
    switch.running.vlans |= {20: "other"}
    switch.running.ports[switch.port_names[0]] = EmulatedPort(mode="trunk", allowed={20})
    before = switch.running_config()
    small.put("c1", spec("brno-h1", "brno-h2"))
    small.settle()
    assert switch.running_config() == before
    assert "with VLAN 20: the port was left unchanged; adopt the port" in small.element("brno-sw1").trouble


@pytest.mark.parametrize("platform", list(EMULATED))
def test_empty_ports_need_no_adoption(platform: str, small: World, attach: Attach) -> None:
    attach(platform)
    small.put("c1", spec("brno-h1", "brno-h2"))
    small.settle()
    assert small.element("brno-sw1").trouble is None
    assert small.view("c1").state is ClusterState.ACTIVE


USES = {
    "an access port": EmulatedPort(mode="access", native=20),
    "an open trunk": EmulatedPort(mode="trunk"),
    "a trunk with a list": EmulatedPort(mode="trunk", allowed={20, 30, 31, 32}),
    "a native VLAN": EmulatedPort(mode="trunk", allowed={20}, native=20, trunk_native=20),
}
UNSUPPORTED_USES = {
    ("dell_force10", "an open trunk"),
    ("dell_os10", "an open trunk"),
    ("hp_procurve", "an open trunk"),
    ("sonic", "an open trunk"),
    ("cisco_iosxr", "an open trunk"),
    ("cisco_iosxr", "an access port"),
    ("cisco_iosxr", "a native VLAN"),
}


def adopt(world: World, *ports: str) -> None:
    views = OnDemandReader(world.store, world.service.scheduler).ports(Name("brno-sw1"))
    uses = {view.port: view.use for view in views}
    with world.store.change(who="ivo (site administrator)") as unit:
        switch = read_topology(unit).element(Name("brno-sw1"))
        assert isinstance(switch, Switch)
        adopt_ports(unit, switch, {PortName(port): uses[PortName(port)] for port in ports})


def release(world: World, *ports: str, forget: bool = False) -> None:
    with world.store.change(who="ivo (site administrator)") as unit:
        switch, wanted = read_topology(unit).element(Name("brno-sw1")), read_wanted_revision(unit, "brno-sw1").wanted
        assert isinstance(switch, Switch)
        assert isinstance(wanted, SwitchWanted)
        release_ports(unit, switch, wanted, PortRelease(ports=ports, forget=forget))


def configure_use(switch: EmulatedSwitch, name: str, use: str) -> None:
    lists_ports = switch.platform in ("dell_force10", "dell_os10", "hp_procurve", "sonic")
    port = replace(USES[use])
    port.allowed = set() if port.allowed is None and lists_ports else port.allowed
    switch.running.vlans |= {20: "other", 30: "a", 31: "b", 32: "c"}
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
def test_an_adopted_port_is_restored_exactly(platform: str, use: str, small: World, attach: Attach) -> None:
    if (platform, use) in UNSUPPORTED_USES:
        pytest.skip("the platform has no such port")
    switch = attach(platform)
    name = switch.port_names[0]
    configure_use(switch, name, use)
    before = switch.running_config()
    small.settle()
    adopt(small, name.replace(" ", ""))
    # SONiC does not show that the unused port of brno-h2 is a routed port, so SBF could not restore this mode.
    hosts = ("brno-h1",) if platform == "sonic" else ("brno-h1", "brno-h2")
    small.put("c1", spec(*hosts))
    small.settle()
    assert small.element("brno-sw1").trouble is None
    assert small.view("c1").state is ClusterState.ACTIVE
    assert switch.running_config() != before
    small.delete("c1")
    small.settle()
    for port in switch.port_names[:3]:
        release(small, port.replace(" ", ""))
    small.settle()
    assert small.element("brno-sw1").trouble is None
    assert switch.running_config() == before
    assert switch.startup.ports == switch.running.ports


def adopt_access_port(switch: EmulatedSwitch, small: World) -> str:
    configure_use(switch, switch.port_names[0], "an access port")
    adopt(small, switch.port_names[0])
    return switch.port_names[0]


def run_cluster(small: World) -> None:
    small.put("c1", spec("brno-h1", "brno-h2"))
    small.settle()
    assert small.view("c1").state is ClusterState.ACTIVE
    small.delete("c1")
    small.settle()


def test_a_port_that_leaves_the_topology_is_restored(small: World, attach: Attach) -> None:
    switch = attach("cisco_ios")
    name = adopt_access_port(switch, small)
    before = replace(switch.running.ports[name])
    run_cluster(small)
    assert switch.running.ports[name].mode == "trunk"
    document = small.topology().model_dump(mode="json")
    document["sites"][0]["switches"][0]["ports"].remove(name)
    document["sites"][0]["hosts"].pop(0)
    document["links"] = [link for link in document["links"] if link["a"] != "brno-h1:eth0"]
    small.put_topology(Topology.model_validate(document))
    small.settle()
    assert switch.running.ports[name] == switch.startup.ports[name] == before
    assert small.element("brno-sw1").trouble is None


RESTORATION_LINES = (
    "^interface",
    "^switchport mode access",
    "^no switchport trunk allowed vlan",
    "^end$",
    "^write memory",
)


@pytest.mark.parametrize("line", RESTORATION_LINES)
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_restoration_survives_a_lost_session_at_every_line(
    line: str, done: bool, small: World, attach: Attach
) -> None:
    switch = attach("cisco_ios")
    name = adopt_access_port(switch, small)
    before = replace(switch.running.ports[name])
    run_cluster(small)
    release(small, name)
    switch.fail("disconnect", line, done=done)
    small.converge("brno-sw1")
    small.service = small.restarted()
    sessions = small.service.scheduler.worker.sessions
    sessions.platforms = replace(sessions.platforms, of_switch=platform_for(switch, small))
    small.settle()
    small.clock.advance(3600)  # a failed save is retried after a pause
    small.settle()
    assert switch.running.ports[name] == switch.startup.ports[name] == before


@pytest.mark.parametrize("line", ["^interface", "allowed vlan none", "^switchport mode trunk", "^write memory"])
def test_the_former_use_survives_a_lost_session_at_every_line(line: str, small: World, attach: Attach) -> None:
    switch = attach("cisco_ios")
    name = adopt_access_port(switch, small)
    before = replace(switch.running.ports[name])
    switch.fail("disconnect", line)
    small.put("c1", spec("brno-h1"))
    small.converge("brno-sw1")
    small.delete("c1")
    small.settle()
    small.clock.advance(3600)  # a failed save is retried after a pause
    small.settle()
    release(small, name)
    small.settle()
    assert switch.running.ports[name] == switch.startup.ports[name] == before


def test_a_port_whose_use_changed_after_adoption_is_refused(small: World, attach: Attach) -> None:
    switch = attach("cisco_ios")
    name = adopt_access_port(switch, small)
    switch.running.ports[name].native = 30
    before = switch.running_config()
    small.put("c1", spec("brno-h1"))
    small.settle()
    assert switch.running_config() == before
    assert (
        "found an access port in VLAN 30, which differs from the adopted use (an access port in VLAN 20)"
        in small.element("brno-sw1").trouble
    )


def test_the_audit_log_contains_the_former_use(small: World, attach: Attach) -> None:
    switch = attach("cisco_ios")
    adopt_access_port(switch, small)
    run_cluster(small)
    (adopted,) = small.audit("port_adopted")
    assert (adopted.who, adopted.why) == (
        "ivo (site administrator)",
        "port GigabitEthernet1/0/1: an access port in VLAN 20",
    )
    first = SwitchDifference.model_validate_json(small.audit("switch_change")[0].difference or "")
    assert str(first.take[PortName("GigabitEthernet1/0/1")]) == "an access port in VLAN 20"


def test_a_port_that_a_cluster_uses_is_not_released(small: World, attach: Attach) -> None:
    switch = attach("cisco_ios")
    name = adopt_access_port(switch, small)
    small.put("c1", spec("brno-h1"))
    small.settle()
    with pytest.raises(Conflict, match=f"port {name} of brno-sw1 carries VLAN 100 of a cluster: end the cluster first"):
        release(small, name)


def test_a_released_port_is_refused_again(small: World, attach: Attach) -> None:
    switch = attach("cisco_ios")
    name = adopt_access_port(switch, small)
    run_cluster(small)
    release(small, name)
    small.settle()
    before = switch.running_config()
    small.put("c1", spec("brno-h1"))
    small.settle()
    assert switch.running_config() == before
    assert (
        "found an access port in VLAN 20: the port was left unchanged; adopt the port"
        in small.element("brno-sw1").trouble
    )


def test_a_replaced_switchs_port_is_restored_after_a_new_adoption(small: World, attach: Attach) -> None:
    switch = attach("cisco_ios")
    name = adopt_access_port(switch, small)
    run_cluster(small)
    switch.running.ports[name] = EmulatedPort(mode="access", native=30)  # the new switch has the former's address
    release(small, name, forget=True)
    adopt(small, name)
    run_cluster(small)
    release(small, name)
    small.settle()
    assert (switch.running.ports[name].mode, switch.running.ports[name].native) == ("access", 30)


def test_a_pool_dry_run_lists_ports_in_other_use(small: World, attach: Attach) -> None:
    switch = attach("cisco_ios")
    configure_use(switch, switch.port_names[0], "an access port")
    dry_run = SettingDryRun(small.store, small.service.scheduler, small.service.device_threads)
    pool = Pool(vlans=VlanSet.parse("100-149"))
    plan = dry_run.plan(lambda unit: put_pool(unit, "brno", pool, small.service.reserved))
    preview = asyncio.run(dry_run.preview(plan))
    (other_use,) = preview.other_use
    assert (other_use.found, other_use.asks) == (
        "managed port GigabitEthernet1/0/1 is an access port in VLAN 20",
        False,
    )
    assert other_use.effect == (
        "left unchanged; clusters cannot use the port until an administrator runs "
        "'virtcloud element adopt brno-sw1 GigabitEthernet1/0/1'"
    )


def test_ports_are_listed_with_the_effect_of_a_cluster(small: World, attach: Attach) -> None:
    switch = attach("cisco_ios")
    adopt_access_port(switch, small)
    configure_use(switch, switch.port_names[1], "an open trunk")
    views = OnDemandReader(small.store, small.service.scheduler).ports(Name("brno-sw1"))
    assert [(view.state, str(view.use), view.effect) for view in views] == [
        ("adopted", "an access port in VLAN 20", "becomes a trunk with SBF's VLANs only: VLAN 20 is removed"),
        ("in use", "a trunk with every VLAN", "becomes a trunk with SBF's VLANs only: every other VLAN is removed"),
        (
            "unused",
            "a port in mode dynamic with every VLAN",
            "becomes a trunk with SBF's VLANs only: every other VLAN is removed",
        ),
    ]


def remove_brno(small: World) -> None:
    document = small.topology().model_dump(mode="json")
    document["sites"].pop(0)
    document["links"] = [link for link in document["links"] if not link["a"].startswith("brno")]
    small.put_topology(Topology.model_validate(document))


def elements_of_brno(small: World) -> list[str]:
    with small.store.read() as unit:
        return [view.name for view in make_element_views(unit) if view.name.startswith("brno")]


def test_ports_of_a_removed_switch_are_restored(small: World, attach: Attach) -> None:
    switch = attach("cisco_ios")
    name = adopt_access_port(switch, small)
    before = replace(switch.running.ports[name])
    run_cluster(small)
    remove_brno(small)
    assert elements_of_brno(small) == ["brno-sw1"]
    small.settle()
    assert switch.running.ports[name] == switch.startup.ports[name] == before
    assert elements_of_brno(small) == []


def test_a_reconciliation_on_demand_restores_a_removed_switch(small: World, attach: Attach) -> None:
    switch = attach("cisco_ios")
    name = adopt_access_port(switch, small)
    before = replace(switch.running.ports[name])
    run_cluster(small)
    remove_brno(small)
    reader = OnDemandReader(small.store, small.service.scheduler)
    reconciliation = reader.reconcile(Name("brno-sw1"))
    element = reconciliation.element
    assert (element.name, element.trouble, element.confirmed_revision) == ("brno-sw1", None, element.wanted_revision)
    assert reconciliation.mended is not None
    assert switch.startup.ports[name] == before
    assert elements_of_brno(small) == []
    with pytest.raises(NotFound, match="element brno-sw1 is not known"):
        reader.reconcile(Name("brno-sw1"))


def test_a_removed_unreachable_switch_stays_until_forgotten(small: World, attach: Attach) -> None:
    switch = attach("cisco_ios")
    name = adopt_access_port(switch, small)
    run_cluster(small)
    remove_brno(small)
    switch.fail("disconnect", ".", times=100)
    small.settle()
    assert elements_of_brno(small) == ["brno-sw1"]
    with small.store.change(who="eva (operator)") as unit:
        removed = parse_removed_switch(require_element(unit, "brno-sw1"))
        assert removed is not None
        release = PortRelease(ports=tuple(switch.port_names[:3]), forget=True)
        release_ports(unit, removed, SwitchWanted(ports={}), release)
    assert elements_of_brno(small) == []
    assert switch.running.ports[name].mode == "trunk"


def test_a_returning_switch_still_has_its_recorded_uses(small: World, attach: Attach) -> None:
    switch = attach("cisco_ios")
    name = adopt_access_port(switch, small)
    before = replace(switch.running.ports[name])
    run_cluster(small)
    topology = small.topology()
    remove_brno(small)
    small.put_topology(topology)
    run_cluster(small)
    release(small, name)
    small.settle()
    assert switch.running.ports[name] == before


def test_a_returning_switch_with_another_address_has_no_records(small: World, attach: Attach) -> None:
    """The name denotes another device now, whose ports nobody has adopted."""
    switch = attach("cisco_ios")
    adopt_access_port(switch, small)
    run_cluster(small)
    document = small.topology().model_dump(mode="json")
    remove_brno(small)
    document["sites"][0]["switches"][0]["address"] = "192.0.2.77"
    small.put_topology(Topology.model_validate(document))
    with small.store.read() as unit:
        assert read_port_records(unit, "brno-sw1") == {}
