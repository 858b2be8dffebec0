"""Tests of the invariants (docs/explanation/invariants.md). A test's name contains the invariant's number.

The simulation (``tests/simulation``) checks these invariants after each step of random schedules.
"""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError
from support.sbf_fakes.switches import FakeSwitch
from support.sbf_fakes.world import World, spec

from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.store.clusters.cluster_creation import put_cluster
from sbf_service.store.tables.vlan_tables import ClaimRow
from virtcloud.model.cluster import ClusterRequest, ClusterState
from virtcloud.model.errors import Conflict, NoVlanFree

TWO_SITES = spec("brno-h1", "praha-h1")


def test_invariant_1_one_of_two_threads_gets_the_last_id(world: World) -> None:
    world.put_pool("brno", "100")
    start = Barrier(2)

    def ask(key: str) -> str:
        start.wait()
        try:
            return str(world.put(key, TWO_SITES).view.vlans["brno"])
        except NoVlanFree as error:
            return type(error).__name__

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(ask, ["a", "b"])) == ["100", "NoVlanFree"]


def test_invariant_1_two_replicas_never_allocate_an_id_twice(world: World) -> None:
    other = world.restarted()
    stores = [world.store, other.store] * 15
    start = Barrier(30)

    def ask(number: int) -> int:
        start.wait()
        made = put_cluster(
            stores[number], f"c{number}", ClusterRequest(spec=TWO_SITES), world.service.reserved, "alice"
        )
        return made.view.vlans["praha"]

    with ThreadPoolExecutor(30) as threads:
        numbers = list(threads.map(ask, range(30)))
    other.store.close()
    assert sorted(numbers) == list(range(100, 130))


def test_invariant_1_ten_of_fifty_requests_exceed_forty_ids(world: World) -> None:
    start = Barrier(50)

    def ask(number: int) -> int | str:
        start.wait()
        try:
            return int(world.put(f"c{number}", spec("brno-h1", "praha-h1", "plzen-h1")).view.vlans["plzen"])
        except NoVlanFree as error:
            return str(error)

    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(ask, range(50)))
    assert sorted(one for one in answers if isinstance(one, int)) == list(range(100, 140))
    assert [one for one in answers if isinstance(one, str)] == [
        (
            "no VLAN is free at every site (brno, praha, plzen): brno has 40 VLAN IDs, 40 in use; "
            "praha has 40 VLAN IDs, 40 in use; plzen has 40 VLAN IDs, 40 in use; "
            "end a cluster, or add VLAN IDs to the pools"
        )
    ] * 10


def test_invariant_1_the_database_refuses_a_second_claim(world: World) -> None:
    world.put("a", spec("brno-h1"))
    other = world.put("b", spec("brno-h2")).view
    twice = insert(ClaimRow).values(site="brno", vlan=100, cluster_id=other.id)
    with (
        world.store.engine.begin() as connection,
        pytest.raises(IntegrityError, match=r"UNIQUE|unique constraint \"pk_claims\""),
    ):
        connection.execute(twice)


@pytest.mark.parametrize("last", ["brno-sw1", "praha-sw1", "brno-h1", "praha-h1"])
def test_invariant_2_confirmed_removals_free_an_id(world: World, last: str) -> None:
    """Until element ``last`` confirms the removal of the cluster, the VLAN ID is free at no site."""
    world.put("demo", TWO_SITES)
    world.settle()
    world.switches[last].cut_off = True
    world.dead_hosts.add(last)
    world.delete("demo")
    world.settle()
    assert world.view("demo").state is ClusterState.DRAINING
    assert "100" in str(world.site("brno").claimed)
    assert "100" in str(world.site("praha").claimed)
    world.switches[last].cut_off = False
    world.dead_hosts.clear()
    world.settle()
    assert world.view("demo").state is ClusterState.RELEASED
    assert str(world.site("brno").free) == "100-139"
    assert str(world.site("praha").free) == "100-139"


def test_invariant_2_an_id_stays_quarantined_until_confirmation(world: World) -> None:
    world.put("demo", TWO_SITES)
    world.settle()
    world.switches["praha-sw1"].cut_off = True
    world.delete("demo")
    world.settle()
    world.clock.advance(61)
    world.settle()
    view = world.view("demo")
    assert (view.state, view.quarantined, view.vlans) == (ClusterState.RELEASED, True, {"brno": 100, "praha": 100})
    assert view.reason == (
        "ended by its user; its VLAN IDs were quarantined at 2026-01-01 00:01:01 UTC: switch praha-sw1 at praha had "
        "not confirmed (switch praha-sw1 (fake) does not answer: cut off; SBF tries again)"
    )
    assert str(world.site("brno").quarantined) == "100"
    assert world.put("next", TWO_SITES).view.vlans == {"brno": 101, "praha": 101}
    world.switches["praha-sw1"].cut_off = False
    world.settle()
    view = world.view("demo")
    assert (view.state, view.quarantined, view.vlans) == (ClusterState.RELEASED, False, {})
    assert str(world.site("brno").quarantined) == ""


def test_invariant_2_a_released_id_is_allocated_last(world: World) -> None:
    world.put_pool("brno", "100-102")
    for key in ("a", "b"):
        world.put(key, TWO_SITES)
    world.settle()
    world.delete("a")
    world.settle()
    assert [world.put(key, TWO_SITES).view.vlans["brno"] for key in ("c", "d")] == [102, 100]


@pytest.mark.parametrize("fault", ["cut_off", "refuses", "lies", "unsafe"])
def test_invariant_3_a_switch_converges_whatever_failed_before(world: World, fault: str) -> None:
    world.settle()
    switch = world.switches["brno-sw1"]
    setattr(switch, fault, True)
    world.put("demo", TWO_SITES)
    world.settle()
    assert world.view("demo").state is ClusterState.CONFIGURING
    setattr(switch, fault, False)
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE
    assert switch.carried() == {"p1": "100", "uplink": "100"}


def test_invariant_3_manual_changes_within_the_pool_are_corrected(world: World) -> None:
    world.put("demo", TWO_SITES)
    world.settle()
    world.switches["brno-sw1"].ports = {"p1": {139}, "p2": {100}, "uplink": {100}}
    world.clock.advance(301)
    world.settle()
    assert world.switches["brno-sw1"].carried() == {"p1": "100", "uplink": "100"}


def test_invariant_4_foreign_vlans_and_ports_are_never_changed(world: World) -> None:
    switch = world.switches["brno-sw1"]
    switch.ports = {"p1": {7, 99, 140}, "console": {100, 101}}
    switch.table = {1: "default", 7: "phones", 99: "", 100: "", 101: "", 102: "offices", 140: ""}
    before = dict(switch.table)
    world.settle()
    world.put("demo", TWO_SITES)
    world.settle()
    assert (world.view("demo").state, world.view("demo").vlans["brno"]) == (ClusterState.ACTIVE, 103)
    world.delete("demo")
    world.settle()
    assert (switch.carried(), switch.table) == ({"console": "100-101", "p1": "7,99,140"}, before)
    touched = {number for one in switch.applied for number in one.vlan_ids}
    assert touched == {103}
    assert {port for one in switch.applied for port in (*one.add, *one.remove)} == {"p1", "uplink"}


def test_invariant_4_managed_ports_are_emptied_before_the_first_cluster(world: World) -> None:
    switch = world.switches["brno-sw1"]
    switch.ports = {"p1": {100, 101, 7}, "uplink": {139}}
    world.converge_switches()
    assert switch.carried() == {"p1": "7"}


def test_invariant_4_new_pool_ids_are_removed_from_ports(world: World) -> None:
    world.settle()
    world.switches["brno-sw1"].ports = {"p1": {150}}
    world.put_pool("brno", "100-159")
    world.settle()
    assert world.switches["brno-sw1"].carried() == {}


def test_invariant_5_a_switch_that_ignores_commands_activates_no_cluster(world: World) -> None:
    world.settle()
    world.switches["brno-sw1"].lies = True
    world.put("demo", TWO_SITES)
    world.settle()
    assert world.view("demo").state is ClusterState.CONFIGURING
    assert world.element("brno-sw1").trouble == (
        "switch brno-sw1, port p1: wanted VLAN 100 tagged, found none; "
        "port uplink: wanted VLAN 100 tagged, found none; "
        "wanted VLAN 100 to exist, found none: read back after the change; check the device's configuration"
    )


def test_invariant_5_a_switch_that_lost_a_vlan_degrades_clusters(world: World) -> None:
    world.put("demo", TWO_SITES)
    world.settle()
    seen: list[ClusterState] = []
    switch: FakeSwitch = world.switches["brno-sw1"]
    switch.restart()
    switch.before_apply = lambda: seen.append(world.view("demo").state)
    world.clock.advance(301)
    world.converge("brno-sw1")
    assert seen == [ClusterState.DEGRADED]
    assert world.view("demo").state is ClusterState.ACTIVE
    assert switch.carried() == {"p1": "100", "uplink": "100"}


def test_invariant_5_a_lost_cluster_degrades_despite_a_new_cluster(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch: FakeSwitch = world.switches["brno-sw1"]
    switch.restart()
    switch.refuses = True
    world.put("more", spec("brno-h2"))
    world.converge("brno-sw1")
    assert world.view("demo").state is ClusterState.DEGRADED
    switch.refuses = False
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE


def test_invariant_5_an_outdated_revision_confirms_no_later_cluster(world: World) -> None:
    world.settle()
    world.put("first", spec("brno-h1"))

    def create_late() -> None:
        world.put("late", spec("brno-h2"))

    world.switches["brno-sw1"].before_apply = create_late
    assert world.converge("brno-sw1") is ReconcileOutcome.OVERTAKEN
    progress = {one.element: one.progress for one in world.view("late").placements}
    assert progress["brno-sw1"] == "adding"
    progress = {one.element: one.progress for one in world.view("first").placements}
    assert progress["brno-sw1"] == "confirmed"


def test_invariant_7_the_same_request_again_changes_nothing(world: World) -> None:
    made = world.put("demo", TWO_SITES)
    rows = len(world.audit())
    again = world.put("demo", TWO_SITES)
    assert (made.created, again.created) == (True, False)
    assert again.view == made.view
    assert len(world.audit()) == rows


def test_invariant_7_another_spec_for_a_key_is_a_conflict(world: World) -> None:
    world.put("demo", TWO_SITES)
    rows = len(world.audit())
    with pytest.raises(
        Conflict, match="cluster demo exists and is configuring, and differs from this request in guests"
    ):
        world.put("demo", spec("brno-h2"))
    assert len(world.audit()) == rows
    assert str(world.site("brno").claimed) == "100"


def test_invariant_7_every_call_of_an_administrator_may_be_repeated(world: World) -> None:
    rows = len(world.audit())
    world.furnish()
    assert len(world.audit()) == rows


def test_invariant_7_deleting_again_changes_nothing(world: World) -> None:
    world.put("demo", TWO_SITES)
    first = world.delete("demo")
    assert world.delete("demo") == first
    world.settle()
    ended = world.view("demo")
    assert world.delete("demo") == ended


def test_invariant_8_switch_changes_are_audited_before_they_are_sent(world: World) -> None:
    world.settle()
    rows: list[tuple[str | None, str | None]] = []
    world.switches["brno-sw1"].before_apply = lambda: rows.extend(
        (row.why, row.difference) for row in world.audit("switch_change") if row.element == "brno-sw1"
    )
    world.put("demo", TWO_SITES)
    world.converge("brno-sw1")
    assert rows == [("revision 3 for demo", '{"create":"100","add":{"p1":"100","uplink":"100"}}')]


def test_invariant_8_audit_rows_show_a_clusters_lifecycle(world: World) -> None:
    world.settle()
    before = len(world.audit())
    world.put("demo", spec("brno-h1", owner="alice"))
    world.settle()
    world.delete("demo")
    world.settle()
    assert [(row.what, row.element, row.who) for row in world.audit()[before:]] == [
        ("cluster_created", None, "alice"),
        ("switch_change", "brno-sw1", "sbf@one"),
        ("element_confirmed", "brno-sw1", "sbf@one"),
        ("element_confirmed", "brno-h1", "brno-h1"),
        ("cluster_active", None, "brno-h1"),
        ("cluster_draining", None, "sbf"),
        ("switch_change", "brno-sw1", "sbf@one"),
        ("element_confirmed", "brno-sw1", "sbf@one"),
        ("element_confirmed", "brno-h1", "brno-h1"),
        ("cluster_released", None, "brno-h1"),
        ("number_freed", None, "brno-h1"),
    ]
