"""Tests of devices that the topology replaces while a worker talks to them.

If a change of the topology assigns another address to a device's name, the name may denote another device. SBF must
record nothing about the former device under this name.
"""

from collections.abc import Callable

import pytest
from support.sbf_fakes.world import World, spec, three_edges

from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.store.vlans.ports import read_port_records
from sbf_service.store.vlans.vlan_ownership import read_created_vlans
from virtcloud.model.cluster import ClusterState
from virtcloud.model.topology import Topology
from virtcloud.model.vlans import VlanSet


def replace_device(world: World, kind: str) -> None:
    document = world.topology().model_dump(mode="json")
    document["sites"][0][kind][0]["address"] = "192.0.2.77"
    world.put_topology(Topology.model_validate(document))


def once(action: Callable[[], None]) -> Callable[[], None]:
    pending = [action]
    return lambda: pending.pop()() if pending else None


def replace_at(world: World, moment: str) -> None:
    """Replace the switch ``brno-sw1`` during its first reading, before its change, or before its save."""
    switch = world.switches["brno-sw1"]
    change, answer = once(lambda: replace_device(world, "switches")), switch.answer

    def answer_late(call: str) -> None:
        answer(call)
        if call == moment:
            change()

    switch.answer = answer_late


def check_no_records(world: World) -> None:
    assert world.element("brno-sw1").confirmed_revision == 0
    with world.store.read() as unit:
        assert read_created_vlans(unit, "brno-sw1") == VlanSet()
        assert read_port_records(unit, "brno-sw1") == {}


@pytest.mark.parametrize("moment", ["read", "apply", "save"])
def test_a_replaced_switch_has_no_records_of_the_former_switch(world: World, moment: str) -> None:
    world.settle()
    world.put("demo", spec("brno-h1"))
    replace_at(world, moment)
    assert world.converge("brno-sw1") is ReconcileOutcome.OVERTAKEN
    check_no_records(world)
    assert world.view("demo").state is ClusterState.CONFIGURING
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE


def test_a_switch_replaced_during_a_reading_is_not_changed(world: World) -> None:
    world.settle()
    world.put("demo", spec("brno-h1"))
    replace_at(world, "read")
    world.converge("brno-sw1")
    assert world.switches["brno-sw1"].applied == []
    assert world.audit("switch_change") == []


def test_a_reading_without_difference_confirms_no_replaced_switch(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    replace_at(world, "read")
    assert world.converge("brno-sw1") is ReconcileOutcome.OVERTAKEN
    check_no_records(world)


def test_a_replaced_switch_does_not_release_a_draining_cluster(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    world.delete("demo")
    world.confirm_hosts()
    replace_at(world, "save")
    assert world.converge("brno-sw1") is ReconcileOutcome.OVERTAKEN
    assert world.view("demo").state is ClusterState.DRAINING


def test_the_error_of_a_replaced_switch_is_not_reported(world: World) -> None:
    """The error report would also record the former switch's last save."""
    world.settle()
    world.put("demo", spec("brno-h1"))
    switch = world.switches["brno-sw1"]
    switch.refuses = True
    switch.before_apply = once(lambda: replace_device(world, "switches"))
    revision = world.element("brno-sw1").wanted_revision
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert world.element("brno-sw1").trouble is None
    assert world.element("brno-sw1").wanted_revision > revision


def test_a_replaced_edge_is_not_confirmed(edge_world: World) -> None:
    edge_world.put("demo", spec("brno-h1", "praha-h1"))
    edge = edge_world.edges["brno-pe1"]
    edge.before_apply = once(lambda: replace_device(edge_world, "edges"))
    assert edge_world.converge("brno-pe1") is ReconcileOutcome.OVERTAKEN
    assert edge_world.element("brno-pe1").confirmed_revision == 0


@pytest.mark.parametrize("kinds", [("switches", "edges"), ("edges", "switches")])
def test_a_name_may_denote_a_switch_and_later_an_edge(edge_world: World, kinds: tuple[str, str]) -> None:
    """SBF records the observed state of switches and edges in different formats."""
    for kind in kinds:
        edge_world.put_topology(with_spare_device(kind))
        assert (edge_world.element("spare").carried, edge_world.element("spare").circuits) == (None, None)
        edge_world.settle()
        found = edge_world.element("spare")
        assert found.confirmed_revision == found.wanted_revision
        expected = ({"p1": VlanSet()}, None) if kind == "switches" else (None, ())
        assert (found.carried, found.circuits) == expected
    edge_world.put_topology(three_edges())


def with_spare_device(kind: str) -> Topology:
    document = three_edges().model_dump(mode="json")
    spare = {"name": "spare", "platform": "fake", "ports": ["p1"]}
    of_edge = {"core_port": "core", "loopback": "192.0.2.77"} if kind == "edges" else {}
    document["sites"][0][kind].append(spare | of_edge)
    return Topology.model_validate(document)


def test_a_changed_description_of_the_same_switch_keeps_its_records(world: World) -> None:
    """A worker that read the former description may confirm its revision, because the device is the same."""
    world.put("demo", spec("brno-h1"))
    switch = world.switches["brno-sw1"]

    def add_port() -> None:
        document = world.topology().model_dump(mode="json")
        document["sites"][0]["switches"][0]["ports"].append("p9")
        world.put_topology(Topology.model_validate(document))

    switch.before_apply = once(add_port)
    assert world.converge("brno-sw1") is ReconcileOutcome.OVERTAKEN
    assert world.element("brno-sw1").confirmed_revision > 0
