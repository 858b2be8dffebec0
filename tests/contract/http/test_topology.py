from typing import Any

import pytest
from support.sbf_fakes.world import World, site, spec

from sbf_service.drivers.contract import SwitchCapabilities
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import BadInput, Conflict, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.vlans import VlanSet


def changed_topology(world: World, change: Any) -> Topology:
    document = world.topology().model_dump(mode="json")
    change(document)
    return Topology.model_validate(document)


def second_switch(document: dict[str, Any]) -> None:
    brno = document["sites"][0]
    brno["switches"].append({"name": "brno-sw2", "platform": "fake", "ports": ["h", "up"]})
    document["links"] = [link for link in document["links"] if link["a"] != "brno-h1:eth0"]
    document["links"] += [{"a": "brno-h1:eth0", "b": "brno-sw2:h"}, {"a": "brno-sw2:up", "b": "brno-sw1:p1"}]


def without_brno_h1(document: dict[str, Any]) -> None:
    document["sites"][0]["hosts"].pop(0)
    document["links"] = [link for link in document["links"] if link["a"] != "brno-h1:eth0"]


def without_port_p2(document: dict[str, Any]) -> None:
    document["sites"][0]["switches"][0]["ports"].remove("p2")
    document["sites"][0]["hosts"].pop(1)
    document["links"] = [link for link in document["links"] if link["a"] != "brno-h2:eth0"]


def without_brno(document: dict[str, Any]) -> None:
    document["sites"].pop(0)
    document["links"] = [link for link in document["links"] if not link["a"].startswith("brno")]


def test_a_live_cluster_is_moved_to_its_new_path(world: World) -> None:
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    world.put_topology(changed_topology(world, second_switch))
    assert {placement.element for placement in world.view("demo").placements} >= {"brno-sw2", "brno-sw1"}
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE
    assert world.switches["brno-sw2"].carried() == {"h": "100", "up": "100"}
    assert world.switches["brno-sw1"].carried() == {"p1": "100", "uplink": "100"}
    world.delete("demo")
    world.settle()
    assert world.switches["brno-sw2"].carried() == {}
    assert world.view("demo").state is ClusterState.RELEASED


def second_port(document: dict[str, Any]) -> None:
    document["sites"][0]["hosts"][0]["ports"] = ["eth0", "eth1"]


def second_uplink(document: dict[str, Any]) -> None:
    second_port(document)
    (link,) = (link for link in document["links"] if link["a"] == "brno-h1:eth0")
    link["a"] = "brno-h1:eth1"


def test_a_cluster_is_degraded_until_its_host_has_moved_it(world: World) -> None:
    world.put_topology(changed_topology(world, second_port))
    world.put("demo", spec("brno-h1"))
    world.settle()
    world.dead_hosts.add("brno-h1")
    world.put_topology(changed_topology(world, second_uplink))
    world.settle()
    assert world.view("demo").state is ClusterState.DEGRADED
    world.dead_hosts.clear()
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE


def test_a_former_paths_switch_confirms_before_vlan_ids_are_free(world: World) -> None:
    straight = world.topology()
    world.put_topology(changed_topology(world, second_switch))
    world.put("demo", spec("brno-h1"))
    world.settle()
    world.switches["brno-sw2"].cut_off = True
    document = straight.model_dump(mode="json")
    document["sites"][0]["switches"].append({"name": "brno-sw2", "platform": "fake", "ports": ["h", "up"]})
    world.put_topology(Topology.model_validate(document))
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE
    world.delete("demo")
    world.settle()
    assert world.view("demo").state is ClusterState.DRAINING
    world.switches["brno-sw2"].cut_off = False
    world.settle()
    assert world.view("demo").state is ClusterState.RELEASED
    assert world.switches["brno-sw2"].carried() == {}


@pytest.mark.parametrize("when", ["live", "draining", "quarantined"])
def test_an_element_that_may_carry_a_cluster_cannot_be_removed(world: World, when: str) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    if when != "live":
        world.dead_hosts.add("brno-h1")
        world.delete("demo")
    if when == "quarantined":
        world.clock.advance(61)
        world.settle()
    state = {"live": "active", "draining": "draining", "quarantined": "released"}[when]
    with pytest.raises(Conflict) as caught:
        world.put_topology(changed_topology(world, without_brno_h1))
    remedy = "end the cluster first" if when == "live" else "wait until the cluster has ended"
    if when == "quarantined":
        remedy = (
            "wait until every element has confirmed the removal; if an element will never return, an administrator can "
            "declare the cluster's VLAN ID clean (virtcloud pool clean SITE VLAN --cluster KEY --reason TEXT)"
        )
    assert str(caught.value) == (
        f"cluster demo ({state}) needs brno-h1, which would vanish or change its kind or site: {remedy}"
    )


def test_a_port_in_use_cannot_be_removed(world: World) -> None:
    world.put("demo", spec("brno-h1", hosts=["brno-h2"]))
    world.settle()

    def without_port(document: dict[str, Any]) -> None:
        document["sites"][0]["switches"][0]["ports"] = ["p1", "q2", "uplink"]
        document["links"][1]["b"] = "brno-sw1:q2"

    with pytest.raises(Conflict, match="cluster demo needs port brno-sw1:p2, which would vanish"):
        world.put_topology(changed_topology(world, without_port))


def test_a_port_observed_with_vlans_cannot_be_removed(world: World) -> None:
    world.put("demo", spec("brno-h2"))
    world.settle()
    world.delete("demo")
    world.confirm_hosts()
    with pytest.raises(Conflict, match="VLAN 100 was last observed on port brno-sw1:p2, which would vanish"):
        world.put_topology(changed_topology(world, without_port_p2))


def test_an_unused_element_can_be_removed_and_added_again(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    world.delete("demo")
    world.settle()
    before = world.topology()
    revision = world.element("brno-sw1").wanted_revision
    world.put_topology(changed_topology(world, without_brno))
    with pytest.raises(NotFound, match="element brno-sw1 is not known; known elements: plzen-h1"):
        world.element("brno-sw1")
    world.put_topology(before)
    element = world.element("brno-sw1")
    assert (element.wanted_revision, element.confirmed_revision) == (revision + 1, 0)
    assert str(world.site("brno").pool) == "100-139"


def test_a_refused_topology_changes_nothing(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    before, rows = world.topology(), len(world.audit())
    with pytest.raises(Conflict):
        world.put_topology(changed_topology(world, without_brno))
    assert world.topology() == before
    assert len(world.audit()) == rows


def test_a_new_site_starts_with_an_empty_pool(world: World) -> None:
    def with_ostrava(document: dict[str, Any]) -> None:
        document["sites"].append(site("ostrava"))
        document["links"] += [{"a": f"ostrava-h{n}:eth0", "b": f"ostrava-sw1:p{n}"} for n in (1, 2)]

    world.put_topology(changed_topology(world, with_ostrava))
    assert str(world.site("ostrava").free) == ""


def test_a_pool_excludes_reserved_vlan_ids_of_switches(world: World) -> None:
    world.switches.facts = SwitchCapabilities(reserved=VlanSet.parse("1002-1005"))
    with pytest.raises(BadInput) as caught:
        world.put_pool("brno", "1000-1003")
    assert (
        str(caught.value)
        == "pool of brno: switch brno-sw1 (fake) reserves VLAN 1002-1003: remove VLAN 1002-1003 from the pool"
    )


def test_a_pool_excludes_vlan_1(world: World) -> None:
    with pytest.raises(BadInput, match="pool of brno: VLAN 1 is the default VLAN of every switch"):
        world.put_pool("brno", "1-10")


def test_vlan_ids_in_use_cannot_leave_a_pool(world: World) -> None:
    world.put("a", spec("brno-h1"))
    world.put("b", spec("brno-h2"))
    with pytest.raises(Conflict) as caught:
        world.put_pool("brno", "102-139")
    assert str(caught.value) == (
        "pool of brno: the new pool lacks VLAN IDs in use: 100 by a, 101 by b; keep these VLAN IDs until the clusters "
        "have ended"
    )
    assert str(world.site("brno").pool) == "100-139"


def test_a_vlan_id_in_quarantine_cannot_leave_a_pool(world: World) -> None:
    world.put("a", spec("brno-h1"))
    world.settle()
    world.dead_hosts.add("brno-h1")
    world.delete("a")
    world.settle()
    world.clock.advance(61)
    world.settle()
    remedy = (
        "wait until every element has confirmed the removal; if an element will never return, an administrator can "
        "declare the cluster's VLAN ID clean (virtcloud pool clean SITE VLAN --cluster KEY --reason TEXT)"
    )
    with pytest.raises(Conflict) as caught:
        world.put_pool("brno", "101-139")
    used = "pool of brno: the new pool lacks VLAN IDs in use: 100 by a (in quarantine)"
    assert str(caught.value) == f"{used}; {remedy}"
    world.put("b", spec("brno-h2"))
    with pytest.raises(Conflict) as caught:
        world.put_pool("brno", "102-139")
    keep = "keep these VLAN IDs until the clusters have ended"
    assert str(caught.value) == f"{used}, 101 by b; {keep}; for clusters in quarantine, {remedy}"


def test_a_pool_of_an_unknown_site_is_not_found(world: World) -> None:
    with pytest.raises(NotFound, match="site nowhere is not known; known sites: brno, plzen, praha"):
        world.put_pool("nowhere", "100")
