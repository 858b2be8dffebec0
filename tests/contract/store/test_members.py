"""Tests of the members of a network (clusters that join the running network), and of refused requests."""

from typing import Any

import httpx
import pytest
from support.network_members import RING, changed_elements, guest, join_network, member, request_body, revisions, states
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, spec, three_sites

from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Conflict, Forbidden, GuestTaken, NoVlanFree
from virtcloud.model.topology import Topology

# Members that join.


def test_a_member_has_the_networks_vlan_id(ring: World) -> None:
    view = join_network(ring, "m1", "brno-h2")
    assert (view.state, view.vlans, view.network) == (ClusterState.ACTIVE, {"brno": 100}, "root")
    assert ring.switches["brno-sw1"].carried() == {"p1": "100", "p2": "100"}
    assert str(ring.site("brno").claimed) == "100"


def test_a_member_is_placed_only_on_its_path(ring: World) -> None:
    """The member has no placement on brno-h1. The guests there have a new peer, so the host's revision changes."""
    before = revisions(ring)
    join_network(ring, "m1", "brno-h2")
    assert changed_elements(ring, before) == ["brno-h1", "brno-h2", "brno-sw1"]
    assert [part.element for part in ring.view("m1").placements] == ["brno-h2", "brno-sw1"]


def test_the_answer_to_a_member_has_its_networks_error(ring: World) -> None:
    report = {"revision": 1, "message": "x", "clusters": {ring.view("root").id: "the bridge is missing"}}
    assert ask(ring, "POST", "/v1/elements/brno-h1/trouble", report).status_code == 204
    answer = ring.put("m1", member("brno-h1")).view
    assert answer == ring.view("m1")
    assert answer.placements[0].trouble == "the bridge is missing"


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


def test_a_members_new_transport_reaches_the_networks_hosts(world: World) -> None:
    """The member adds a transport to the network. The transport's MTU changes the network's segments on all hosts.

    An agent fetches its wanted state again only if the revision of this state changes.
    """
    plain = three_sites().model_dump(mode="json")
    transports = [transport | {"mtu": 1400} for transport in plain["transports"]]
    world.put_topology(Topology.model_validate(plain | {"transports": transports}))
    world.put("root", RING)
    world.settle()
    before, revision = world.wanted_of_host("brno-h1"), revisions(world)
    world.put("m1", member(hosts=["praha-h1"]))
    assert world.wanted_of_host("brno-h1") != before
    assert "brno-h1" in changed_elements(world, revision)


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
    """Members m1 and m2 have the same host. Member m2 has no guests, so m2 changes nothing on the host."""
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
    ring.clock.advance(1)
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

    def join(owner: str, token: str) -> httpx.Response:
        return ask(
            ring, "PUT", f"/v1/clusters/of-{owner}", request_body(member(hosts=["brno-h2"], owner=owner)), token=token
        )

    assert join("bob", ring.token(Role.USER, "bob")).status_code == 201
    assert problem(join("carol", ring.token(Role.USER, "carol"))) == problem(join("carol", scheduler))
    assert problem(join("carol", scheduler))[:2] == (403, "forbidden")


def share(world: World, method: str, user: str, key: str = "root", **how: Any) -> int:
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


def test_a_guest_cannot_request_the_derived_mac_of_another_guest(ring: World) -> None:
    """The owner of a member could otherwise receive and answer the frames of another owner's guest."""
    mac = ring.wanted_of_host("brno-h1").segments[0].guests[0].mac
    with pytest.raises(GuestTaken) as caught:
        ring.put("m1", member(guests=[guest("other", "brno-h2") | {"mac": mac}], owner="bob"))
    message = f"guest other has the MAC address {mac}, which a guest of cluster root has in the same network: "
    assert str(caught.value) == message + "choose another"


@pytest.mark.parametrize("given", [{"name": "loop"}, {"vlan": 117}, {"shares_with": ["bob"]}])
def test_a_member_has_no_name_vlan_id_or_shares(ring: World, given: dict[str, object]) -> None:
    request = request_body(member("brno-h2"))
    request["spec"] |= given
    status, kind, detail = problem(ask(ring, "PUT", "/v1/clusters/m1", request))
    assert (status, kind) == (422, "bad-input")
    assert f"expected the key {next(iter(given))} only for a new network; this cluster joins network ring" in detail


def test_a_vlan_id_taken_at_the_new_site_is_reported(ring: World) -> None:
    ring.put("hers", spec("praha-h1", owner="eva", vlan=100))
    with pytest.raises(NoVlanFree) as caught:
        ring.put("m1", member("praha-h2"))
    assert str(caught.value) == (
        "network root uses VLAN 100, which is not free at site praha: another cluster uses the VLAN ID; use hosts at "
        "brno, or create the network again with its later sites (`sites` of the spec), so that SBF chooses a VLAN ID "
        "that is free there too"
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
    with pytest.raises(Conflict, match="cluster m1 exists and is active, and differs from this request in joins"):
        ring.put("m1", member("praha-h1", joins="root"))


def test_a_members_next_attempt_waits_for_the_previous_attempt(ring: World) -> None:
    ring.put("m1", member("brno-h2"), attempt=1)
    ring.settle()
    assert problem(ask(ring, "PUT", "/v1/clusters/m1", request_body(member("brno-h2"), 2)))[1] == "attempt-waits"
    ring.settle()
    assert ask(ring, "PUT", "/v1/clusters/m1", request_body(member("brno-h2"), 2)).status_code == 201
    ring.settle()
    assert states(ring, "root", "m1") == ["active", "active"]
