"""Tests that a VLAN ID has at most one network on a transport that separates networks only by their VLAN IDs.

Earlier versions of SBF allowed *collisions*: several networks with one VLAN ID on such a transport. The networks of
these tests have no site in common, so their claims at the sites do not conflict.
"""

from typing import Any

import pytest
from sqlalchemy import event, update
from support.sbf_fakes.world import BACKBONE, EVPN, FOUR, World, four_sites, spec

from sbf_service.domain.network_conflicts import QUARANTINE_REMEDY
from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.store.elements.observed_state import record_pending_save
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.vlan_tables import ClaimRow
from sbf_service.store.topology.topology_ports import OR_REMOVE
from sbf_service.store.vlans.allocation import allocate_longest_unused, read_site_pools
from sbf_service.store.vlans.transport_vlans import (
    SHOWN_CLUSTERS,
    VlanCollision,
    list_collisions,
    log_collisions,
    read_transport_vlans,
)
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Conflict, NoVlanFree
from virtcloud.model.topology import Topology

VLAN_SEPARATED = (
    BACKBONE,
    {"name": "core", "kind": "direct"},
    {"name": "core", "kind": "vpls", "vpn_id": 7, "asn": 65000},
)
SERVICES = (
    EVPN,
    {"name": "core", "kind": "vpls", "vpn_ids": "100-199", "asn": 65000},
    {"name": "core", "kind": "qinq", "s_tags": "3000-3099"},
)


@pytest.fixture
def four(world: World) -> World:
    """Return a world with the four sites a, b, c and d on the transport ``core``, with pools of 40 VLAN IDs."""
    world.furnish(topology=four_sites())
    return world


def put_at(world: World, key: str, *sites: str, host: int = 1, **changes: Any) -> set[int]:
    view = world.put(key, spec(*(f"{site}-h{host}" for site in sites), **changes)).view
    assert view.vlans.keys() >= set(sites)
    return {int(vlan) for vlan in view.vlans.values()}


@pytest.mark.parametrize("transport", VLAN_SEPARATED, ids=lambda transport: str(transport["kind"]))
def test_clusters_at_disjoint_sites_share_no_vlan_on_a_transport(world: World, transport: dict[str, object]) -> None:
    world.furnish(topology=four_sites(transport))
    assert put_at(world, "x", "a", "d") == {100}
    assert put_at(world, "y", "b", "c") == {101}


@pytest.mark.parametrize("transport", SERVICES, ids=lambda transport: str(transport["kind"]))
def test_clusters_with_separate_services_may_share_a_vlan_id(world: World, transport: dict[str, object]) -> None:
    world.furnish(topology=four_sites(transport))
    assert put_at(world, "x", "a", "d") == {100}
    assert put_at(world, "y", "b", "c") == {100}


def test_a_one_site_cluster_may_share_other_sites_vlan_id(four: World) -> None:
    """The cluster at one site uses no transport, so its VLAN stays within its site."""
    assert put_at(four, "x", "a", "d") == {100}
    assert put_at(four, "y", "b") == {100}


def test_a_requested_vlan_id_must_be_free_on_the_transport(four: World) -> None:
    put_at(four, "x", "a", "d", owner="bob")
    with pytest.raises(NoVlanFree) as refused:
        put_at(four, "y", "b", "c", vlan=100)
    assert str(refused.value) == (
        "VLAN 100 is not free on transport core, which separates clusters only by their VLAN IDs: another cluster uses "
        "the VLAN ID at site a; omit the VLAN ID: SBF then chooses a VLAN ID that is free on the transport"
    )
    assert put_at(four, "y", "b", "c", vlan=101) == {101}


def test_the_refusal_explains_vlan_ids_in_use_at_other_sites(four: World) -> None:
    for name in "abcd":
        four.put_pool(name, "100-101")
    put_at(four, "x1", "a", "d")
    put_at(four, "x2", "a", "d")
    with pytest.raises(NoVlanFree) as refused:
        put_at(four, "y", "b", "c")
    assert str(refused.value) == (
        "no VLAN is free at every site (b, c) and on transport core: b has 2 VLAN IDs, 0 in use; c has 2 VLAN IDs, 0 "
        "in use; 2 VLAN IDs (100-101) are free at every site, but in use or in quarantine at other sites of transport "
        "core, which separates clusters only by their VLAN IDs: end a cluster on transport core, add the same VLAN IDs "
        "to all these pools, or use a transport with a service for each cluster"
    )


def test_a_network_gets_no_transport_that_uses_its_vlan_id(four: World) -> None:
    """The first network is at one site. A member at a second site would bring the network's VLAN to the transport."""
    assert put_at(four, "n", "a") == {100}
    assert put_at(four, "y", "b", "c") == {100}
    with pytest.raises(NoVlanFree) as refused:
        four.put("m", spec(hosts=["d-h1"], joins="n"))
    assert str(refused.value) == (
        "network n uses VLAN 100, which is not free on transport core, which separates clusters only by their VLAN "
        "IDs: cluster y of alice uses the VLAN ID at site b; use hosts at a, or create the network again with its "
        "later sites (`sites` of the spec), so that SBF chooses a VLAN ID that is free there too"
    )


def test_a_network_that_names_its_later_sites_can_grow(four: World) -> None:
    """The error of a network that cannot grow names this remedy."""
    assert put_at(four, "y", "b", "c") == {100}
    assert set(four.put("n", spec(hosts=["a-h1"], sites=["d"])).view.vlans.values()) == {101}
    assert four.put("m", spec(hosts=["d-h1"], joins="n")).view.vlans == {"a": 101, "d": 101}


def test_the_first_transport_of_a_network_reserves_its_vlan_id(four: World) -> None:
    assert put_at(four, "n", "a") == {100}
    four.put("m", spec(hosts=["d-h1"], joins="n"))
    assert put_at(four, "y", "b", "c") == {101}


def test_a_network_grows_on_its_transport(four: World) -> None:
    assert put_at(four, "n", "a", "b") == {100}
    assert four.put("m", spec(hosts=["c-h1"], joins="n")).view.vlans == {"a": 100, "b": 100, "c": 100}
    assert put_at(four, "y", "c", "d") == {101}


def test_a_released_vlan_id_is_free_on_the_transport(four: World) -> None:
    put_at(four, "x", "a", "d")
    four.settle()
    four.delete("x")
    four.settle()
    assert put_at(four, "y", "b", "c", vlan=100) == {100}


def test_a_quarantined_vlan_id_is_not_free_on_the_transport(four: World) -> None:
    put_at(four, "x", "a", "d")
    four.settle()
    four.switches["d-sw1"].cut_off = True
    four.delete("x")
    four.clock.advance(301)
    four.settle()
    assert (four.view("x").state, four.view("x").quarantined) == (ClusterState.RELEASED, True)
    assert put_at(four, "y", "b", "c") == {101}
    with pytest.raises(NoVlanFree, match="the VLAN ID is in quarantine after cluster x of alice at site a"):
        put_at(four, "z", "b", "c", vlan=100)


def test_a_transport_has_the_vlan_ids_of_its_networks(four: World) -> None:
    put_at(four, "one", "a")
    put_at(four, "two", "a")
    assert put_at(four, "x", "a", "d") == {102}
    assert put_at(four, "y", "b", "c") == {100}
    with four.store.read() as unit:
        found = read_transport_vlans(unit, four.topology().transports[0])
        (pool,) = read_site_pools(unit, four.topology().sites[:1], four.service.reserved)
    assert found is not None
    assert (found.transport, str(found.taken)) == ("core", "100,102")
    assert str(pool.claimed) == "100-102"


def test_a_collision_of_an_earlier_version_is_logged(four: World, caplog: pytest.LogCaptureFixture) -> None:
    put_at(four, "x", "a", "d")
    put_at(four, "y", "b", "c")
    put_at(four, "z", "b", "c")
    with four.store.change() as unit:
        assert list_collisions(unit.connection) == []
        y = unit.session.query(ClusterRow).filter_by(key="y").one().id
        unit.session.execute(update(ClaimRow).where(ClaimRow.cluster_id == y).values(vlan=100))
        (found,) = list_collisions(unit.connection)
        log_collisions(unit.connection)
    assert "vlan_shared_on_transport" in caplog.text
    assert str(found) == (
        "transport core, VLAN 100: expected one network, found the networks of clusters x, y, which receive each "
        "other's frames: end all but one of these clusters"
    )


def test_a_collision_with_a_cluster_in_quarantine_names_the_quarantine(four: World) -> None:
    put_at(four, "x", "a", "d")
    put_at(four, "y", "b", "c")
    put_at(four, "z", "b", "c")
    four.settle()
    four.switches["c-sw1"].cut_off = True
    four.delete("y")
    four.clock.advance(301)
    four.settle()
    with four.store.change() as unit:
        y, z = (unit.session.query(ClusterRow).filter_by(key=key).one().id for key in "yz")
        unit.session.execute(update(ClaimRow).where(ClaimRow.cluster_id == y).values(vlan=100))
        (of_two,) = list_collisions(unit.connection)
        claims = update(ClaimRow).where(ClaimRow.cluster_id == z)
        unit.session.execute(claims.values(vlan=103))
        unit.session.execute(update(ClaimRow).where(ClaimRow.cluster_id == y, ClaimRow.site == "b").values(vlan=104))
        unit.session.execute(claims.where(ClaimRow.site == "b").values(vlan=100))
        (of_three,) = list_collisions(unit.connection)
    found = "transport core, VLAN 100: expected one network, found the networks of clusters"
    assert str(of_two) == (f"{found} x, y (in quarantine), which receive each other's frames: {QUARANTINE_REMEDY}")
    assert str(of_three) == (
        f"{found} x, z, y (in quarantine), which receive each other's frames: end all but one of these clusters; for "
        f"clusters in quarantine, {QUARANTINE_REMEDY}"
    )


def test_a_collision_of_many_clusters_counts_the_unnamed_clusters() -> None:
    keys = tuple(f"c{number}" for number in range(SHOWN_CLUSTERS + 2))
    text = str(VlanCollision("core", 100, keys, quarantined=("old",)))
    assert f"{', '.join(keys[:SHOWN_CLUSTERS])} and 3 others, which receive" in text
    assert "for clusters in quarantine, wait until" in text
    assert keys[SHOWN_CLUSTERS] not in text


def test_equal_vlan_ids_of_separate_services_are_no_collision(world: World) -> None:
    world.furnish(topology=four_sites(EVPN))
    assert put_at(world, "x", "a", "d") == put_at(world, "y", "b", "c") == {100}
    with world.store.read() as unit:
        assert list_collisions(unit.connection) == []


def test_a_network_of_a_collision_does_not_grow(four: World) -> None:
    put_at(four, "x", "a", "d")
    put_at(four, "y", "b")
    with four.store.change() as unit:
        unit.session.execute(update(ClusterRow).where(ClusterRow.key == "y").values(transport="core"))
    with pytest.raises(NoVlanFree, match="network y uses VLAN 100, which is not free on transport core"):
        four.put("m", spec(hosts=["c-h1"], joins="y"))


def test_an_allocation_reads_no_row_per_network_of_the_transport(world: World) -> None:
    """The networks are at other sites, so their VLAN IDs are unclaimed at the sites of the new cluster.

    There are more such networks than rows in the query's first window, but the first query still finds the VLAN ID.
    """
    world.furnish("100-199", four_sites())
    for number in range(20):
        put_at(world, f"x{number}", "a", "d")
    statements: list[str] = []
    topology = world.topology()
    with world.store.dry_run() as unit:
        event.listen(unit.connection, "before_cursor_execute", lambda *values: statements.append(values[2]))
        found = allocate_longest_unused(unit, topology.sites[1:3], world.service.reserved, topology.transports[0])
    assert found == {"b": 120, "c": 120}
    assert len(statements) == 1


def test_a_port_that_may_carry_ended_clusters_keeps_its_transport(four: World) -> None:
    """On a transport with a new name, SBF could allocate the VLAN ID that the port may still carry."""
    put_at(four, "x", "a", "d")
    four.settle()
    four.switches["d-sw1"].cut_off = True
    four.delete("x")
    four.settle()
    renamed = four_sites(BACKBONE | {"name": "new"})
    with pytest.raises(Conflict) as refused:
        four.put_topology(renamed)
    assert str(refused.value) == (
        "cluster x (draining) may still use transport core at site a, and port a-sw1:uplink would become a port of "
        "transport new: wait until the cluster has ended\n"
        "cluster x (draining) may still use transport core at site d, and port d-sw1:uplink would become a port of "
        "transport new: wait until the cluster has ended"
    )
    four.switches["d-sw1"].cut_off = False
    four.clock.advance(61)
    four.settle()
    four.put_topology(renamed)
    assert put_at(four, "y", "b", "c") == {100}


def with_second_transport(**attachments: str) -> Topology:
    """Return the four sites with the transports ``core`` and ``new``, and two ports for transports at each switch.

    ``attachments`` contains, by the name of a site, the ports' attachments, such as ``"uplink=core second=new"``. All
    other sites are attached to ``core`` at the port ``uplink``.
    """
    document = four_sites().model_dump(mode="json")
    document["transports"] += [BACKBONE | {"name": "new"}]
    for name, one in zip(FOUR, document["sites"], strict=True):
        one["switches"][0]["ports"].append("second")
        pairs = (word.split("=") for word in attachments.get(name, "uplink=core").split())
        one["attachments"] = [{"port": f"{name}-sw1:{port}", "transport": transport} for port, transport in pairs]
    return Topology.model_validate(document)


def test_a_detached_port_with_a_vlan_gets_no_other_transport(world: World) -> None:
    """The removal of the attachment is allowed while a cluster is ending, but the switch still carries the VLAN."""
    world.furnish(topology=with_second_transport())
    put_at(world, "x", "a", "d")
    world.settle()
    world.switches["d-sw1"].cut_off = True
    world.delete("x")
    world.settle()
    world.put_topology(with_second_transport(d=""))
    with pytest.raises(Conflict) as refused:
        world.put_topology(with_second_transport(d="uplink=new"))
    assert str(refused.value) == (
        "VLAN 100 of networks that do not use transport new was last observed on port d-sw1:uplink, which would become "
        "a port of this transport: remove the port's former use, and attach the port when the switch has removed the "
        "VLAN"
    )
    world.switches["d-sw1"].cut_off = False
    world.clock.advance(61)
    world.settle()
    world.put_topology(with_second_transport(d="uplink=new"))


def test_a_used_port_changes_its_transport_in_two_steps(world: World) -> None:
    world.furnish(topology=with_second_transport())
    put_at(world, "x", "a", "d")
    world.settle()
    with pytest.raises(Conflict) as refused:
        world.put_topology(with_second_transport(d="uplink=new second=core"))
    assert str(refused.value) == (
        "cluster x (active) may still use transport core at site d, and port d-sw1:uplink would become a port of "
        "transport new: first remove the port's attachment, and attach the port when the switch has removed the VLAN"
    )
    world.put_topology(with_second_transport(d="second=core"))
    with pytest.raises(Conflict, match="VLAN 100 of networks that do not use transport new was last observed on port"):
        world.put_topology(with_second_transport(d="uplink=new second=core"))
    world.settle()
    world.put_topology(with_second_transport(d="uplink=new second=core"))


def test_a_port_with_a_one_site_vlan_gets_no_transport(world: World) -> None:
    """A network at one site has no transport. Its VLAN is on the port of the host that the topology now moves."""
    world.furnish(topology=with_second_transport())
    put_at(world, "x", "a")
    world.settle()
    moved = with_second_transport().model_dump(mode="json")
    next(link for link in moved["links"] if link["b"] == "a-sw1:p1")["b"] = "a-sw1:second"
    moved["sites"][0]["attachments"].append({"port": "a-sw1:p1", "transport": "new"})
    expected = "VLAN 100 of networks that do not use transport new was last observed on port a-sw1:p1, which would"
    with pytest.raises(Conflict, match=expected):
        world.put_topology(Topology.model_validate(moved))


def test_a_switch_with_unsaved_changes_gets_no_further_transport(world: World) -> None:
    """The recorded observed state lacks a VLAN that a worker is about to configure, or has configured."""
    world.furnish(topology=with_second_transport())
    put_at(world, "x", "a", "d")
    with world.store.change() as unit:
        record_pending_save(unit, "d-sw1")
    world.put_topology(with_second_transport(d="second=core"))
    with pytest.raises(Conflict) as refused:
        world.put_topology(with_second_transport(d="uplink=new second=core"))
    assert str(refused.value) == (
        "switch d-sw1 has unsaved changes, so port d-sw1:uplink, which would become a port of transport new, may carry "
        "VLANs of networks that do not use transport new: attach the port when the switch has saved the changes"
        f"{OR_REMOVE}"
    )
    world.settle()
    world.put_topology(with_second_transport(d="uplink=new second=core"))


def test_a_port_attached_during_a_reading_gets_no_vlan(world: World) -> None:
    """The worker read its task before the change of the topology, when the port was the port of the cluster's host."""
    world.furnish(topology=with_second_transport())
    world.settle()
    put_at(world, "x", "a")
    moved = with_second_transport().model_dump(mode="json")
    next(link for link in moved["links"] if link["b"] == "a-sw1:p1")["b"] = "a-sw1:second"
    moved["sites"][0]["attachments"].append({"port": "a-sw1:p1", "transport": "new"})
    world.switches["a-sw1"].before_read = lambda: world.put_topology(Topology.model_validate(moved))
    assert world.converge("a-sw1") is ReconcileOutcome.OVERTAKEN
    assert world.switches["a-sw1"].carried() == {}
    assert world.converge("a-sw1") is ReconcileOutcome.CONFIRMED
    assert world.switches["a-sw1"].carried() == {"second": "100"}


def test_a_changed_latency_does_not_change_an_attachments_transport(four: World) -> None:
    put_at(four, "x", "a")
    four.settle()
    with four.store.change() as unit:
        record_pending_save(unit, "a-sw1")
    changed = four.topology().model_dump(mode="json")
    changed["sites"][0]["attachments"][0]["latency_ms"] = 2
    four.put_topology(Topology.model_validate(changed))
    assert four.topology().sites[0].attachments[0].latency_ms == 2
