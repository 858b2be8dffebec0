"""Tests of confirmations by a host that could not remove a cluster, or could not start a cluster's guest.

A *remaining* cluster is a cluster whose removal failed on the host.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.world import World, make_world, spec

from virtcloud.model.cluster import ClusterState

FAILED = "could not remove VLAN 100: tap7 is a port of br100"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The cluster ``old`` is active. The tests send confirmations in place of the cluster's host."""
    installation = make_world(tmp_path)
    installation.furnish(pool="100-101")
    installation.put("old", spec("brno-h1"))
    installation.settle()
    installation.dead_hosts = {"brno-h1"}
    yield installation
    installation.close()


def confirm(world: World, **exceptions: object) -> None:
    revision = ask(world, "GET", "/v1/elements/brno-h1").json()["wanted_revision"]
    body = {"revision": revision, **exceptions}
    assert ask(world, "POST", "/v1/elements/brno-h1/confirmed", body).status_code == 204
    world.settle()


def end_with_failed_removal(world: World) -> str:
    world.delete("old")
    cluster = world.view("old").id
    confirm(world, remaining={cluster: FAILED})
    return cluster


def test_a_failed_removal_delays_no_new_cluster(world: World) -> None:
    end_with_failed_removal(world)
    world.put("new", spec("brno-h1", owner="bob"))
    confirm(world, remaining={world.view("old").id: FAILED})
    assert world.view("new").state is ClusterState.ACTIVE


def test_the_vlan_of_a_failed_removal_is_not_free(world: World) -> None:
    vlan = world.view("old").vlans["brno"]
    end_with_failed_removal(world)
    world.put("new", spec("brno-h1", owner="bob"))
    assert vlan in world.site("brno").claimed
    assert world.view("new").vlans["brno"] != vlan


def test_the_owner_sees_why_a_removal_failed(world: World) -> None:
    end_with_failed_removal(world)
    old = world.view("old")
    parts = [(part.progress, part.trouble) for part in old.placements if part.element == "brno-h1"]
    assert (old.state, parts) == (ClusterState.DRAINING, [("removing", FAILED)])


def test_a_failed_removals_vlan_id_is_quarantined_at_the_deadline(world: World) -> None:
    end_with_failed_removal(world)
    world.clock.advance(61)
    confirm(world, remaining={world.view("old").id: FAILED})
    assert [entry.vlan for entry in world.site("brno").quarantine] == [world.view("old").vlans["brno"]]


def test_a_later_removal_frees_the_vlan(world: World) -> None:
    end_with_failed_removal(world)
    confirm(world)
    assert world.view("old").state is ClusterState.RELEASED
    assert not world.site("brno").claimed


def test_the_audit_records_a_removal_when_it_succeeds(world: World) -> None:
    end_with_failed_removal(world)
    confirm(world)
    rows = [row.difference for row in world.audit("element_confirmed") if row.element == "brno-h1"]
    assert [row and '"remove":["old"]' in row.replace(" ", "") for row in rows[-2:]] == [None, True]


def test_the_agent_learns_which_removals_are_not_confirmed(world: World) -> None:
    cluster = end_with_failed_removal(world)
    assert ask(world, "GET", "/v1/elements/brno-h1/wanted").json()["incomplete"] == [cluster]


def test_a_wanted_cluster_is_never_a_failed_removal(world: World) -> None:
    confirm(world, remaining={world.view("old").id: FAILED})
    assert world.view("old").state is ClusterState.ACTIVE


def test_a_cluster_that_ended_while_it_waited_is_removed(world: World) -> None:
    confirm(world, incomplete={world.view("old").id: "fetching image disk: 40 %"})
    world.delete("old")
    confirm(world)
    assert world.view("old").state is ClusterState.RELEASED


def test_a_refused_cluster_fails_and_delays_no_other(world: World) -> None:
    """After three refusals to start a guest, the agent reports the refusal, and then confirms the same revision."""
    world.put("new", spec("brno-h1", owner="bob"))
    new, refusal = world.view("new").id, "could not start g1: the image is malformed"
    confirm(world, incomplete={new: refusal})
    before = world.view("new").state
    revision = ask(world, "GET", "/v1/elements/brno-h1").json()["wanted_revision"]
    report = {"revision": revision, "message": refusal, "refused": {new: refusal}, "clusters": {new: refusal}}
    assert ask(world, "POST", "/v1/elements/brno-h1/trouble", report).status_code == 204
    confirmation = {"revision": revision, "incomplete": {new: refusal}}
    assert ask(world, "POST", "/v1/elements/brno-h1/confirmed", confirmation).status_code == 204
    refused = world.view("new").state
    confirm(world)
    states = [before, refused, world.view("new").state, world.view("old").state]
    assert states == ["configuring", "failing", "failed", "active"]


def test_an_unknown_remaining_cluster_is_shown_by_its_id(world: World) -> None:
    confirm(world, remaining={"c-unknown": FAILED})
    assert ask(world, "GET", "/v1/elements/brno-h1").json()["trouble"] == f"cluster c-unknown: {FAILED}"


@pytest.fixture
def network(world: World) -> str:
    world.delete("old")
    confirm(world)
    world.put("net", spec("brno-h2"))
    world.put("member", spec(hosts=["brno-h1"], joins="net"))
    world.settle()
    return world.view("net").id


def test_a_network_on_a_members_host_stays_claimed(world: World, network: str) -> None:
    confirm(world)
    world.delete("member")
    confirm(world, remaining={network: FAILED})
    world.delete("net")
    world.settle()
    assert list(world.site("brno").claimed) == [101]


@pytest.fixture
def stuck_guest(world: World, network: str) -> str:
    """A member leaves the network, and its host cannot stop its guest. Another member stays on this host.

    Return the network's ID.
    """
    world.put("other", spec(hosts=["brno-h1"], joins="net"))
    confirm(world)
    world.delete("member")
    confirm(world, remaining={network: "could not stop g1"})
    return network


def test_a_member_with_a_guest_that_does_not_stop_is_not_removed(world: World, stuck_guest: str) -> None:
    parts = [(part.progress, part.trouble) for part in world.view("member").placements if part.element == "brno-h1"]
    assert parts == [("removing", "could not stop g1")]


def test_a_guest_that_does_not_stop_degrades_no_other_member(world: World, stuck_guest: str) -> None:
    assert [world.view(key).state for key in ("net", "other")] == [ClusterState.ACTIVE, ClusterState.ACTIVE]


def test_a_member_whose_guest_stops_later_is_removed(world: World, stuck_guest: str) -> None:
    confirm(world)
    assert world.view("member").state is ClusterState.RELEASED


def test_both_errors_of_a_network_are_shown(world: World, stuck_guest: str) -> None:
    confirm(world, remaining={stuck_guest: "could not stop g1"}, incomplete={stuck_guest: "could not start g2"})
    message = ask(world, "GET", "/v1/elements/brno-h1").json()["trouble"]
    assert message == "cluster net: could not stop g1; could not start g2"


def test_a_member_waits_for_the_network_on_its_host(world: World, network: str) -> None:
    confirm(world, incomplete={network: "the network is held"})
    assert world.view("member").state is ClusterState.CONFIGURING


def test_missing_guests_of_the_network_do_not_delay_a_member(world: World, network: str) -> None:
    confirm(world, incomplete={network: "could not start g1"}, only_guests=[network])
    assert world.view("member").state is ClusterState.ACTIVE


def test_a_members_own_missing_guests_delay_the_member(world: World, network: str) -> None:
    member = world.view("member").id
    confirm(world, incomplete={network: "no memory", member: "no memory"}, only_guests=[network, member])
    assert world.view("member").state is ClusterState.CONFIGURING
