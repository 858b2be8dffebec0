"""Tests of hosts that join and leave a running network (REQUIREMENTS N6). Other members do not change."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sbf_fakes.http_calls import ask, problem
from sbf_fakes.world import EVPN, World, spec, three_edges

from sbf_service.store.error_reports import record_error
from sbf_service.store.quarantine import declare_clean
from sbf_service.store.transitions import fail_refused_clusters
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.errors import Conflict, Forbidden, NoVlanFree
from virtcloud.model.topology import Topology
from virtcloud.model.values import VlanId
from virtcloud.model.views import ClusterView

RING = spec("brno-h1", name="ring", shares_with=["bob"])


@pytest.fixture
def ring(world: World) -> World:
    """An active network with one host, brno-h1."""
    world.put("root", RING)
    world.settle()
    return world


def guest(name: str, host: str, *addresses: str) -> dict[str, object]:
    return {"name": name, "host": host, "image": "debian", "addresses": addresses}


def member(*hosts: str, **changes: object) -> ClusterSpec:
    """Return a request to join network ``ring``, with one guest on each host. Each guest is named after its host."""
    guests = [guest(f"at-{host}", host) for host in hosts]
    return ClusterSpec.model_validate({"owner": "alice", "joins": "ring", "guests": guests} | changes)


def join_network(world: World, key: str, *hosts: str) -> ClusterView:
    world.put(key, member(*hosts))
    world.settle()
    return world.view(key)


def states(world: World, *keys: str) -> list[str]:
    return [str(world.view(key).state) for key in keys]


def request_body(wanted: ClusterSpec, attempt: int | None = None) -> dict[str, object]:
    return {"spec": wanted.model_dump(mode="json"), "attempt": attempt}


def revisions(world: World) -> dict[str, int]:
    return {name: world.element(name).wanted_revision for name in world.topology().elements}


def changed_elements(world: World, before: dict[str, int]) -> list[str]:
    return sorted(name for name, revision in revisions(world).items() if revision > before[name])


# Joining.


def test_a_member_has_the_networks_vlan_id(ring: World) -> None:
    view = join_network(ring, "m1", "brno-h2")
    assert (view.state, view.vlans, view.network) == (ClusterState.ACTIVE, {"brno": 100}, "root")
    assert ring.switches["brno-sw1"].carried() == {"p1": "100", "p2": "100"}
    assert str(ring.site("brno").claimed) == "100"


def test_a_member_is_placed_only_on_its_path(ring: World) -> None:
    """The guests of brno-h1 have a new peer, so the wanted document of brno-h1 changes, too."""
    before = revisions(ring)
    join_network(ring, "m1", "brno-h2")
    assert changed_elements(ring, before) == ["brno-h1", "brno-h2", "brno-sw1"]
    assert [part.element for part in ring.view("m1").placements] == ["brno-h2", "brno-sw1"]


def test_a_member_extends_its_network_to_a_site(ring: World) -> None:
    before = ring.view("root")
    view = join_network(ring, "m1", "praha-h1")
    after = ring.view("root")
    assert view.vlans == after.vlans == {"brno": 100, "praha": 100}
    assert (before.joined, after.joined.transport) == (None, "core")
    assert after.version > before.version
    assert ring.switches["brno-sw1"].carried() == {"p1": "100", "uplink": "100"}
    assert ring.switches["praha-sw1"].carried() == {"p1": "100", "uplink": "100"}
    assert [row.why for row in ring.audit("network_widened")] == ["VLAN 100 at praha, over transport core"]


def test_a_host_has_one_segment_per_network(ring: World) -> None:
    join_network(ring, "m1", "brno-h1")
    (segment,) = ring.wanted_of_host("brno-h1").segments
    root, m1 = ring.view("root"), ring.view("m1")
    assert (segment.id, segment.key, segment.members) == (root.id, "root", {m1.id: "m1"})
    assert [(one.name, one.cluster) for one in segment.guests] == [("g1", None), ("at-brno-h1", m1.id)]
    assert len({one.mac for one in segment.guests}) == 2


def test_members_do_not_change_the_networks_own_guests(ring: World) -> None:
    (before,) = ring.wanted_of_host("brno-h1").segments
    join_network(ring, "m1", "brno-h1", "praha-h1")
    (during,) = ring.wanted_of_host("brno-h1").segments
    assert during.guests[:1] == before.guests
    ring.delete("m1")
    ring.settle()
    assert ring.wanted_of_host("brno-h1").segments == (before,)


def test_a_member_without_guests_waits_for_its_path(ring: World) -> None:
    """Another member has a guest on the same host, so the member without guests changes nothing on the host.

    Both members wait for the switch.
    """
    ring.switches["brno-sw1"].cut_off = True
    ring.put("m1", member("brno-h2"))
    ring.put("m2", member(hosts=["brno-h2"]))
    ring.settle()
    assert states(ring, "m1", "m2") == ["configuring", "configuring"]
    ring.switches["brno-sw1"].cut_off = False
    ring.settle()
    assert states(ring, "m1", "m2") == ["active", "active"]


def test_a_network_can_be_joined_by_any_members_key(ring: World) -> None:
    assert ring.put("m1", member("brno-h2", joins="root")).view.network == "root"
    assert ring.put("m2", member("praha-h1", joins="m1")).view.network == "root"


def test_a_network_is_listed_with_its_own_cluster_first(ring: World) -> None:
    join_network(ring, "m2", "brno-h2")
    ring.clock.advance(1)
    join_network(ring, "m1", "praha-h1")
    for word in ("ring", "root", "m1"):
        assert [one["key"] for one in ask(ring, "GET", f"/v1/clusters?network={word}").json()] == ["root", "m2", "m1"]
    ring.delete("m2")
    ring.settle()
    assert [one["key"] for one in ask(ring, "GET", "/v1/clusters?network=ring").json()] == ["root", "m1"]


def test_a_dry_run_of_a_join_changes_nothing(ring: World) -> None:
    before = revisions(ring)
    found = ask(ring, "PUT", "/v1/clusters/m1?dry_run=true", request_body(member("praha-h1"))).json()
    changes = {one["element"]: one["switch"]["add"] for one in found["elements"] if one["switch"]}
    assert found["vlans"] == {"brno": 100, "praha": 100}
    assert changes == {"brno-sw1": {"uplink": "100"}, "praha-sw1": {"p1": "100", "uplink": "100"}}
    assert (revisions(ring), ring.view("root").vlans) == (before, {"brno": 100})


# Refused requests.


def test_an_unknown_network_is_not_found(world: World) -> None:
    message = "network ring is not known: no running cluster has this name or key"
    refused = ask(world, "PUT", "/v1/clusters/m1", request_body(member("brno-h1")))
    assert problem(refused) == (404, "no-such-network", message)


def test_only_owners_with_a_share_may_join(ring: World) -> None:
    scheduler = ring.token(Role.SCHEDULER, "pbs")

    def join(owner: str, token: str) -> int:
        return ask(
            ring, "PUT", f"/v1/clusters/of-{owner}", request_body(member(hosts=["brno-h2"], owner=owner)), token=token
        )

    assert join("bob", ring.token(Role.USER, "bob")).status_code == 201
    assert problem(join("carol", ring.token(Role.USER, "carol"))) == problem(join("carol", scheduler))
    assert problem(join("carol", scheduler))[:2] == (403, "forbidden")


def share(world: World, method: str, user: str, key: str = "root", **how: str) -> int:
    return ask(world, method, f"/v1/clusters/{key}/shares/{user}", **how).status_code


def test_a_running_network_can_be_shared_and_unshared(ring: World) -> None:
    assert share(ring, "PUT", "carol") == 200
    assert ring.view("root").spec.shares_with == ("bob", "carol")
    ring.put("of-carol", member("brno-h2", owner="carol"))
    assert share(ring, "DELETE", "carol") == 200
    assert ring.view("root").spec.shares_with == ("bob",)
    with pytest.raises(Forbidden):
        ring.put("more-of-carol", member("praha-h1", owner="carol"))
    assert states(ring, "of-carol") == ["configuring"]


def test_sharing_again_changes_nothing(ring: World) -> None:
    share(ring, "PUT", "carol")
    before = ring.view("root")
    assert (share(ring, "PUT", "carol"), share(ring, "DELETE", "dave")) == (200, 200)
    assert ring.view("root") == before


def test_the_creation_can_be_repeated_after_sharing(ring: World) -> None:
    share(ring, "PUT", "carol")
    again = [ask(ring, "PUT", "/v1/clusters/root", request_body(one)) for one in (RING, ring.view("root").spec)]
    assert [one.status_code for one in again] == [200, 200]


def test_only_its_owner_or_an_operator_shares_a_network(ring: World) -> None:
    alice, bob = ring.token(Role.USER, "alice"), ring.token(Role.USER, "bob")
    scheduler = ring.token(Role.SCHEDULER, "pbs")
    assert share(ring, "PUT", "carol", token=alice) == 200
    assert share(ring, "PUT", "carol", token=bob) == 404
    assert share(ring, "PUT", "carol", token=scheduler) == 403


def test_a_member_and_an_ended_network_cannot_be_shared(ring: World) -> None:
    join_network(ring, "m1", "brno-h2")
    assert share(ring, "PUT", "carol", key="m1") == 409
    ring.delete("root")
    assert share(ring, "PUT", "carol") == 409


def test_a_network_shows_its_members_with_their_owners(ring: World) -> None:
    join_network(ring, "m1", "brno-h2")
    ring.put("of-bob", member("praha-h1", owner="bob"))
    assert ring.view("root").members == {"m1": "alice", "of-bob": "bob"}
    assert ring.view("m1").members == {}
    ring.delete("m1")
    ring.settle()
    assert ring.view("root").members == {"of-bob": "bob"}


def test_an_ending_network_cannot_be_joined(ring: World) -> None:
    ring.delete("root")
    refused = ask(ring, "PUT", "/v1/clusters/m1", request_body(member("brno-h1")))
    message = "network ring can no longer be joined: cluster root is draining"
    assert problem(refused) == (409, "conflict", message)
    ring.settle()
    assert problem(ask(ring, "PUT", "/v1/clusters/m1", request_body(member("brno-h1"))))[:2] == (404, "no-such-network")


@pytest.mark.parametrize(
    ("second", "identity"),
    [
        (guest("at-brno-h2", "brno-h1"), "name at-brno-h2"),
        (guest("other", "brno-h1", "10.0.0.7/8"), "address 10.0.0.7"),
        (guest("other", "brno-h1", "fd00:0::7/64"), "address fd00::7"),
        (guest("other", "brno-h1") | {"mac": "02:00:00:00:00:07"}, "MAC address 02:00:00:00:00:07"),
    ],
)
def test_guests_of_a_network_have_distinct_names_and_addresses(
    ring: World, second: dict[str, object], identity: str
) -> None:
    first = guest("at-brno-h2", "brno-h2", "10.0.0.7/24", "fd00::7/64") | {"mac": "02:00:00:00:00:07"}
    ring.put("m1", member(guests=[first]))
    message = f"guest {second['name']} has the {identity}, which a guest of cluster m1 has in the same network: "
    with pytest.raises(Conflict) as caught:
        ring.put("m2", member(guests=[second]))
    assert str(caught.value) == message + "choose another"
    ring.delete("m1")
    with pytest.raises(Conflict) as caught:
        ring.put("m2", member(guests=[second]))
    assert str(caught.value) == message + "cluster m1 is draining: try again when the cluster has ended"
    ring.settle()
    ring.put("m2", member(guests=[second]))


@pytest.mark.parametrize("given", [{"name": "loop"}, {"vlan": 117}, {"shares_with": ["bob"]}])
def test_a_member_has_no_name_vlan_id_or_shares(ring: World, given: dict[str, object]) -> None:
    request = request_body(member("brno-h2"))
    request["spec"] |= given
    status, kind, detail = problem(ask(ring, "PUT", "/v1/clusters/m1", request))
    assert (status, kind) == (422, "bad-input")
    assert f"expected only a new network to have {next(iter(given))}; this cluster joins network ring" in detail


def test_a_vlan_id_taken_at_the_new_site_is_reported(ring: World) -> None:
    ring.put("hers", spec("praha-h1", owner="eva", vlan=100))
    with pytest.raises(NoVlanFree) as caught:
        ring.put("m1", member("praha-h2"))
    assert str(caught.value) == (
        "network root uses VLAN 100, which is not free at site praha: another cluster uses the VLAN ID"
    )
    ring.put_pool("plzen", "200-210")
    with pytest.raises(NoVlanFree, match="not free at site plzen: the VLAN ID is not in the pool of the site"):
        ring.put("m1", member("plzen-h1"))


def test_a_site_without_the_networks_transport_is_a_conflict(ring: World) -> None:
    document = ring.topology().model_dump(mode="json")
    document["transports"].append({"name": "xponder", "kind": "direct"})
    document["sites"][2]["attachments"][0]["transport"] = "xponder"
    ring.put_topology(type(ring.topology()).model_validate(document))
    join_network(ring, "m1", "praha-h1")
    with pytest.raises(Conflict) as caught:
        ring.put("m2", member("plzen-h1"))
    assert str(caught.value) == (
        "network root uses transport core, but site plzen is not attached to this transport: choose a host at "
        "another site"
    )


def test_a_member_counts_as_a_cluster_of_its_owner(ring: World) -> None:
    ask(ring, "PUT", "/v1/quotas/bob", {"clusters": 1})
    bob = member(hosts=["brno-h2"], owner="bob")
    assert ask(ring, "PUT", "/v1/clusters/m1", request_body(bob)).status_code == 201
    assert problem(ask(ring, "PUT", "/v1/clusters/m2", request_body(bob)))[1] == "quota-exceeded"


# Repeated calls.


def test_repeating_a_join_changes_nothing(ring: World) -> None:
    view = join_network(ring, "m1", "praha-h1")
    rows = len(ring.audit())
    again = ring.put("m1", member("praha-h1"))
    assert (again.created, again.view, len(ring.audit())) == (False, view, rows)
    with pytest.raises(Conflict, match="cluster m1 exists and is active, and differs in joins"):
        ring.put("m1", member("praha-h1", joins="root"))


def test_a_members_next_attempt_waits_for_the_previous_attempt(ring: World) -> None:
    ring.put("m1", member("brno-h2"), attempt=1)
    ring.settle()
    assert problem(ask(ring, "PUT", "/v1/clusters/m1", request_body(member("brno-h2"), 2)))[1] == "attempt-waits"
    ring.settle()
    assert ask(ring, "PUT", "/v1/clusters/m1", request_body(member("brno-h2"), 2)).status_code == 201
    ring.settle()
    assert states(ring, "root", "m1") == ["active", "active"]


# Leaving.


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
        "ended by its user; its VLAN IDs are quarantined: host praha-h1 at praha has not confirmed"
        " (its agent last called SBF at 2026-01-01 00:00:00 UTC)"
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


def test_a_members_dead_host_affects_no_other_cluster(ring: World) -> None:
    join_network(ring, "m1", "brno-h2")
    join_network(ring, "m2", "praha-h1")
    with ring.store.change() as unit:
        record_error(unit, "praha-h1", "silent", ring.service.settings.timing.drain, reachable=False)
    assert states(ring, "root", "m1", "m2") == ["active", "active", "degraded"]


def test_a_failed_member_leaves_the_others_unchanged(ring: World) -> None:
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
    """Return the three sites with a second link from praha-h1 to its switch.

    Links from ports in ``without`` are omitted.
    """
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
    """A network at brno. Brno's pool shares four VLAN IDs with praha's pool, and no VLAN ID with plzen's pool."""
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
