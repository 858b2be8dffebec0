"""Tests of members that leave a network, fail, or change their path. The network's other members do not change."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.network_members import RING, changed_elements, guest, join_network, member, revisions, states
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.world import EVPN, World, spec, three_edges

from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.clusters.transitions import fail_refused_clusters
from sbf_service.store.elements.error_reports import record_error
from sbf_service.store.vlans.quarantine import declare_clean
from virtcloud.model.errors import Conflict, Forbidden, GuestTaken
from virtcloud.model.topology import Topology
from virtcloud.model.values import VlanId
from virtcloud.model.views import ClusterView

# Members that leave.


def test_a_leaving_member_removes_only_its_own_configuration(ring: World) -> None:
    join_network(ring, "m1", "brno-h2", "praha-h1")
    before = revisions(ring)
    ring.delete("m1")
    ring.settle()
    assert states(ring, "root", "m1") == ["active", "released"]
    assert changed_elements(ring, before) == ["brno-h1", "brno-h2", "brno-sw1", "praha-h1", "praha-sw1"]
    assert ring.switches["brno-sw1"].carried() == {"p1": "100"}
    assert ring.switches["praha-sw1"].carried() == {}
    assert ring.wanted_of_host("praha-h1").segments == ()
    assert ring.view("m1").vlans == {}


def test_a_shared_path_stays_until_its_last_member_ends(ring: World) -> None:
    join_network(ring, "m1", "praha-h1")
    join_network(ring, "m2", "praha-h2")
    ring.delete("m1")
    ring.settle()
    assert ring.switches["brno-sw1"].carried() == {"p1": "100", "uplink": "100"}
    assert ring.switches["praha-sw1"].carried() == {"p2": "100", "uplink": "100"}
    ring.delete("m2")
    ring.settle()
    assert ring.switches["brno-sw1"].carried() == {"p1": "100"}


def test_a_networks_ids_stay_while_members_change(ring: World) -> None:
    join_network(ring, "m1", "praha-h1")
    ring.delete("m1")
    ring.settle()
    assert ring.put("other", spec("praha-h1")).view.vlans == {"praha": 101}
    assert join_network(ring, "m2", "praha-h2").vlans == {"brno": 100, "praha": 100}


def test_joins_only_add_and_leaves_only_remove(ring: World) -> None:
    applied = ring.switches["brno-sw1"].applied
    del applied[:]
    for number, host in enumerate(("brno-h2", "praha-h1", "plzen-h1")):
        join_network(ring, f"m{number}", host)
    assert applied
    assert all(not one.remove and not one.delete and not one.close for one in applied)
    del applied[:]
    for number in range(3):
        ring.delete(f"m{number}")
        ring.settle()
    assert applied
    assert all(not one.add and not one.create and not one.delete for one in applied)


# The end of the network, and failures.


def test_members_end_with_their_network(ring: World) -> None:
    join_network(ring, "m1", "praha-h1")
    ring.delete("root")
    assert states(ring, "root", "m1") == ["draining", "draining"]
    assert ring.view("m1").reason == "its network, cluster root, ended: ended by its user"
    ring.dead_hosts.add("praha-h1")
    ring.settle()
    assert states(ring, "root", "m1") == ["draining", "draining"]
    assert [str(ring.site(name).claimed) for name in ("brno", "praha")] == ["100", "100"]
    ring.dead_hosts.clear()
    ring.settle()
    assert states(ring, "root", "m1") == ["released", "released"]
    assert [str(ring.site(name).claimed) for name in ("brno", "praha")] == ["", ""]


def test_a_members_dead_host_quarantines_the_networks_ids(ring: World) -> None:
    join_network(ring, "m1", "praha-h1")
    ring.dead_hosts.add("praha-h1")
    ring.delete("root")
    ring.settle()
    ring.clock.advance(3600)
    ring.sweep()
    message = (
        "ended by its user; its VLAN IDs were quarantined at 2026-01-01 01:00:00 UTC: host praha-h1 at praha had "
        "not confirmed (its agent last called SBF at 2026-01-01 00:00:00 UTC)"
    )
    assert (ring.view("root").reason, ring.view("root").quarantined) == (message, True)
    (kept,) = ring.site("brno").quarantine
    assert (kept.vlan, kept.cluster, kept.elements) == (100, "root", {"praha-h1": "praha"})
    ring.dead_hosts.clear()
    ring.confirm_hosts()
    assert [ring.view(key).quarantined for key in ("root", "m1")] == [False, False]
    assert str(ring.site("brno").free) == "100-139"


def test_declaring_a_members_host_clean_releases_the_ids(ring: World) -> None:
    join_network(ring, "m1", "praha-h1")
    ring.dead_hosts.add("praha-h1")
    ring.delete("root")
    ring.settle()
    ring.clock.advance(3600)
    ring.sweep()
    with ring.store.change(who="petra") as unit:
        declare_clean(unit, "praha", VlanId(100), "its disks are in my hand", ring.service.settings.timing.drain)
    assert [ring.view(key).quarantined for key in ("root", "m1")] == [False, False]
    assert str(ring.site("praha").free) == "100-139"


def test_an_ended_members_dead_host_can_be_declared_clean(ring: World) -> None:
    """The declaration allows the removal of the host from the topology before the end of the network."""
    join_network(ring, "m1", "praha-h1")
    ring.dead_hosts.add("praha-h1")
    ring.delete("m1")
    ring.settle()
    ring.clock.advance(3600)
    ring.sweep()
    assert ring.view("m1").quarantined
    with ring.store.change(who="petra") as unit:
        declare_clean(unit, "praha", VlanId(100), "its disks are in my hand", ring.service.settings.timing.drain)
    assert (ring.view("m1").quarantined, str(ring.site("praha").claimed)) == (False, "100")
    document = ring.topology().model_dump(mode="json")
    document["sites"][1]["hosts"] = [one for one in document["sites"][1]["hosts"] if one["name"] != "praha-h1"]
    document["links"] = [link for link in document["links"] if "praha-h1" not in f"{link}"]
    ring.put_topology(Topology.model_validate(document))


def test_an_unconfirmed_member_keeps_the_ids_claimed(ring: World) -> None:
    join_network(ring, "m1", "praha-h1")
    ring.dead_hosts.add("praha-h1")
    ring.delete("m1")
    ring.settle()
    ring.clock.advance(3600)
    ring.sweep()
    assert (states(ring, "root", "m1"), ring.view("m1").quarantined) == (["active", "released"], True)
    ring.delete("root")
    ring.settle()
    assert states(ring, "root") == ["draining"]
    ring.dead_hosts.clear()
    ring.settle()
    assert states(ring, "root") == ["released"]


@pytest.fixture
def quarantined(ring: World) -> World:
    """The member ``m1`` of the network ``ring`` has ended. Its host does not answer, so its guest may still run."""
    first = guest("at-praha-h1", "praha-h1", "10.0.0.7/24", "fd00::7/64") | {"mac": "02:00:00:00:00:07"}
    ring.put("m1", member(guests=[first]))
    ring.settle()
    ring.dead_hosts.add("praha-h1")
    ring.delete("m1")
    ring.settle()
    ring.clock.advance(3600)
    ring.sweep()
    assert ring.view("m1").quarantined
    return ring


@pytest.mark.parametrize(
    ("second", "identity"),
    [
        (guest("other", "brno-h1", "10.0.0.7/24"), "address 10.0.0.7"),
        (guest("other", "brno-h1", "fd00::7/64"), "address fd00::7"),
        (guest("other", "brno-h1") | {"mac": "02:00:00:00:00:07"}, "MAC address 02:00:00:00:00:07"),
    ],
)
def test_the_addresses_of_a_guest_in_quarantine_are_taken(
    quarantined: World, second: dict[str, object], identity: str
) -> None:
    with pytest.raises(GuestTaken) as caught:
        quarantined.put("m2", member(guests=[second]))
    assert str(caught.value) == (
        f"guest other has the {identity}, which a guest of cluster m1 has in the same network: cluster m1 has ended, "
        "but the guest may still run: choose another, or wait until every element has confirmed the removal; if an "
        "element will never return, an administrator can declare the cluster's VLAN ID clean (virtcloud pool clean "
        "SITE VLAN --cluster KEY --reason TEXT)"
    )
    with quarantined.store.change() as unit:
        declare_clean(unit, "praha", VlanId(100), "the host is scrap", quarantined.service.settings.timing.drain)
    quarantined.put("m2", member(guests=[second]))


def test_a_restarted_job_keeps_its_guests_names_after_a_quarantine(quarantined: World) -> None:
    quarantined.put("m1", member(guests=[guest("at-praha-h1", "brno-h2")]), attempt=1)
    quarantined.settle()
    assert states(quarantined, "m1") == ["active"]


def test_no_guest_gets_the_address_of_a_guest_in_quarantine(ring: World) -> None:
    first = join_network(ring, "m1", "praha-h1").spec.guests[0].addresses
    ring.dead_hosts.add("praha-h1")
    ring.delete("m1")
    ring.clock.advance(3600)
    ring.sweep()
    assert ring.view("m1").quarantined
    second = join_network(ring, "m2", "brno-h2").spec.guests[0].addresses
    assert (first[0], second[0]) == ("10.0.0.2/24", "10.0.0.3/24")
    assert not set(first) & set(second)


def test_jobs_see_the_addresses_of_guests_in_quarantine(quarantined: World) -> None:
    root = ask(quarantined, "GET", "/v1/clusters?network=ring").json()[0]
    assert root["other_addresses"] == ["10.0.0.7", "fd00::7"]


def test_a_networks_list_skips_an_unreadable_spec_in_quarantine(quarantined: World) -> None:
    with quarantined.store.change() as unit:
        require_cluster(unit, "m1").resolved = "{"
    assert "other_addresses" not in ask(quarantined, "GET", "/v1/clusters?network=ring").json()[0]


def test_a_members_dead_host_affects_no_other_cluster(ring: World) -> None:
    join_network(ring, "m1", "brno-h2")
    join_network(ring, "m2", "praha-h1")
    with ring.store.change() as unit:
        record_error(unit, "praha-h1", "silent", ring.service.settings.timing.drain, reachable=False)
    assert states(ring, "root", "m1", "m2") == ["active", "active", "degraded"]


def test_a_failed_member_does_not_change_the_other_members(ring: World) -> None:
    join_network(ring, "m1", "brno-h2")
    ring.dead_hosts.add("praha-h1")
    ring.put("m2", member("praha-h1"))
    ring.settle()
    ring.clock.advance(121)
    ring.sweep()
    ring.dead_hosts.clear()
    ring.settle()
    assert states(ring, "root", "m1", "m2") == ["active", "active", "failed"]
    assert ring.switches["brno-sw1"].carried() == {"p1": "100", "p2": "100"}


def test_a_configuring_member_ends_with_its_network(ring: World) -> None:
    ring.dead_hosts.add("praha-h1")
    ring.put("m1", member("praha-h1"))
    ring.converge_switches()
    ring.delete("root")
    ring.dead_hosts.clear()
    ring.settle()
    assert states(ring, "root", "m1") == ["released", "released"]
    assert ring.switches["praha-sw1"].carried() == {}


def test_a_network_that_cannot_be_set_up_ends_its_members(world: World) -> None:
    world.dead_hosts.add("brno-h1")
    world.put("root", RING)
    world.put("m1", member("brno-h2"))
    world.settle()
    assert states(world, "root", "m1") == ["configuring", "active"]
    world.clock.advance(121)
    world.sweep()
    world.dead_hosts.clear()
    world.settle()
    assert states(world, "root", "m1") == ["failed", "released"]


def test_leases_of_a_network_and_its_member_can_end_simultaneously(world: World) -> None:
    world.put("root", spec("brno-h1", name="ring", lease_s=100))
    world.put("m1", member("brno-h2", lease_s=100))
    world.settle()
    world.clock.advance(101)
    world.sweep()
    world.settle()
    assert states(world, "root", "m1") == ["released", "released"]


def test_simultaneous_joins_extend_a_network_once(ring: World) -> None:
    def join(number: int) -> ClusterView:
        guests = [guest(f"n{number}", f"praha-h{number % 2 + 1}")]
        return ring.put(f"m{number}", member(guests=guests)).view

    with ThreadPoolExecutor(8) as pool:
        views = list(pool.map(join, range(8)))
    assert [one.vlans for one in views] == [{"brno": 100, "praha": 100}] * 8
    assert str(ring.site("praha").claimed) == "100"
    assert len(ring.audit("network_widened")) == 1
    ring.settle()
    assert states(ring, "root", *(f"m{number}" for number in range(8))) == ["active"] * 9


def test_one_of_two_simultaneous_equal_guests_is_refused(ring: World) -> None:
    def join(number: int) -> str:
        try:
            return str(ring.put(f"m{number}", member("brno-h2")).view.state)
        except Conflict:
            return "conflict"

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(join, range(4))) == ["configuring", "conflict", "conflict", "conflict"]


def test_a_member_joins_while_another_ends(ring: World) -> None:
    join_network(ring, "m1", "praha-h1")
    ring.delete("m1")
    ring.put("m2", member("praha-h1", "brno-h2", guests=[guest("x", "praha-h1"), guest("y", "brno-h2")]))
    ring.settle()
    assert states(ring, "root", "m1", "m2") == ["active", "released", "active"]
    (segment,) = ring.wanted_of_host("praha-h1").segments
    assert [one.name for one in segment.guests] == ["x"]


def test_a_restarted_service_continues_with_members(ring: World) -> None:
    ring.put("m1", member("praha-h1"))
    ring.converge("praha-sw1")
    ring.close()
    ring.service = ring.restarted()
    ring.clock.advance(61)
    ring.settle()
    assert states(ring, "root", "m1") == ["active", "active"]
    ring.delete("root")
    ring.converge("praha-sw1")
    ring.close()
    ring.service = ring.restarted()
    ring.clock.advance(40)
    ring.settle()
    assert states(ring, "root", "m1") == ["released", "released"]


def refuse(world: World, host: str, *refused: ClusterView) -> None:
    with world.store.change(who=host) as unit:
        fail_refused_clusters(
            unit, host, {one.id: "no such image" for one in refused}, world.service.settings.timing.drain
        )


def test_a_refused_guest_fails_only_its_cluster(world: World) -> None:
    world.put("root", RING)
    for key in ("m1", "m2"):
        world.put(key, member(guests=[guest(key, "brno-h1")]))
    refuse(world, "brno-h1", world.view("m1"))
    assert states(world, "root", "m1", "m2") == ["configuring", "failing", "configuring"]
    assert world.view("m1").reason == "host brno-h1 at brno refused: no such image"


def test_a_refused_segment_fails_all_waiting_clusters(ring: World) -> None:
    for key in ("m1", "m2"):
        ring.put(key, member(guests=[guest(key, "brno-h2")]))
    refuse(ring, "brno-h2", ring.view("root"))
    assert states(ring, "root", "m1", "m2") == ["active", "failing", "failing"]


# A topology that changes under a network.


def with_second_uplink(world: World, *without: str) -> Topology:
    document = world.topology().model_dump(mode="json")
    site = document["sites"][1]
    site["hosts"][0]["ports"] = ["eth0", "eth1"]
    site["switches"][0]["ports"] = ["p1", "p2", "p3", "uplink"]
    links = [*document["links"], {"a": "praha-h1:eth1", "b": "praha-sw1:p3"}]
    document["links"] = [one for one in links if one["a"] not in without]
    return Topology.model_validate(document)


def test_only_the_affected_member_changes_its_path(ring: World) -> None:
    more, fewer = with_second_uplink(ring), with_second_uplink(ring, "praha-h1:eth0")
    ring.put_topology(more)
    join_network(ring, "m1", "praha-h1")
    ring.put_topology(fewer)
    ring.settle()
    assert ring.switches["praha-sw1"].carried() == {"p3": "100", "uplink": "100"}
    assert states(ring, "root", "m1") == ["active", "active"]
    ring.delete("root")
    ring.settle()
    assert ring.switches["praha-sw1"].carried() == {}


def test_ports_of_a_member_cannot_be_removed(ring: World) -> None:
    join_network(ring, "m1", "praha-h1")
    document = ring.topology().model_dump(mode="json")
    document["sites"][1]["hosts"] = document["sites"][1]["hosts"][1:]
    document["links"] = [one for one in document["links"] if one["a"] != "praha-h1:eth0"]
    with pytest.raises(Conflict, match="cluster m1"):
        ring.put_topology(Topology.model_validate(document))


# Sites that are connected by provider edges.


@pytest.fixture
def edges(world: World) -> World:
    """A network at Brno. Brno's pool has four VLAN IDs in common with Praha's pool, and none with Plzeň's pool."""
    world.furnish(topology=three_edges(EVPN))
    for name, pool in (("brno", "100-103"), ("praha", "100-109"), ("plzen", "200-209")):
        world.put_pool(name, pool)
    world.put("root", spec("brno-h1", name="ring"))
    world.settle()
    return world


def test_translation_allows_another_id_at_a_new_site(edges: World) -> None:
    assert join_network(edges, "m1", "praha-h1").vlans == {"brno": 100, "praha": 100}
    assert join_network(edges, "m2", "plzen-h1").vlans == {"brno": 100, "plzen": 200, "praha": 100}
    assert edges.view("root").joined.service == 10100
    assert {str(one.vlan) for one in edges.edges["plzen-pe1"].circuits} == {"200"}
    assert {one.service for name in ("brno", "plzen") for one in edges.edges[f"{name}-pe1"].circuits} == {10100}
    edges.delete("root")
    edges.settle()
    assert states(edges, "root", "m1", "m2") == ["released"] * 3
    assert edges.edges["brno-pe1"].circuits == set()
    assert edges.put("next", spec("brno-h1", "praha-h1")).view.joined.service == 10101


def test_an_edge_carries_only_networks_of_several_sites(edges: World) -> None:
    join_network(edges, "m1", "praha-h1")
    assert edges.edges["brno-pe1"].circuits
    edges.delete("m1")
    edges.settle()
    assert (edges.edges["brno-pe1"].circuits, states(edges, "root")) == (set(), ["active"])
    assert join_network(edges, "m2", "praha-h1").joined.service == 10100


def test_a_forbidden_join_names_no_owner(ring: World) -> None:
    with pytest.raises(Forbidden) as caught:
        ring.put("m1", member(hosts=["brno-h2"], owner="carol"))
    assert str(caught.value) == "carol may not join network ring: the network is not shared with carol"
