"""Tests of the deadline sweep, which runs every second and must read only clusters with a due transition."""

from dataclasses import replace
from itertools import count

import pytest
from support.sbf_fakes.world import World, spec

from sbf_service.domain.error_report import ErrorReport
from sbf_service.reconcile import deadlines
from sbf_service.reconcile.deadlines import StoreDeadlineTransactions
from sbf_service.store.clusters import transitions
from sbf_service.store.clusters.cluster_queries import find_clusters
from sbf_service.store.clusters.due_transitions import HAS_DUE_TRANSITION, make_due_parameters
from sbf_service.store.elements.leases import record_agent_heartbeat
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import DatabaseUnavailable
from virtcloud.model.values import Name


def find_due_clusters(world: World) -> list[str]:
    with world.store.read() as unit:
        return [
            row.key
            for row in find_clusters(
                unit, HAS_DUE_TRANSITION, **make_due_parameters(unit.now, world.service.settings.timing.drain)
            )
        ]


@pytest.fixture
def active(world: World) -> World:
    world.put("a", spec("brno-h1"))
    world.put("b", spec("praha-h1", lease_s=3600))
    world.settle()
    assert {world.view(key).state for key in ("a", "b")} == {ClusterState.ACTIVE}
    return world


def refuse(*_arguments: object) -> None:
    raise DatabaseUnavailable("the database does not answer")


def test_active_clusters_are_not_read(active: World) -> None:
    assert find_due_clusters(active) == []


def test_a_cluster_with_an_expired_lease_is_read(active: World) -> None:
    active.clock.advance(3600)
    assert find_due_clusters(active) == ["b"]


@pytest.mark.parametrize("change", [{"reachable": False}, {"confirmed_revision": 0}])
def test_an_active_cluster_that_lost_an_element_is_read(active: World, change: dict[str, object]) -> None:
    with active.store.change() as unit:
        row = unit.session.get_one(ElementRow, "brno-h1")
        for name, value in change.items():
            setattr(row, name, value)
    assert find_due_clusters(active) == ["a"]


def test_a_configuring_cluster_is_read_at_its_deadline(active: World) -> None:
    active.put("c", spec("plzen-h1"))
    assert find_due_clusters(active) == []
    active.clock.advance(120)
    assert find_due_clusters(active) == ["c"]


def test_one_transaction_changes_few_clusters(active: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of clusters can have a due transition at once, for example after a change of the topology."""
    monkeypatch.setattr(deadlines, "MAX_GROUP", 1)
    with active.store.change() as unit:
        for name in ("brno-h1", "praha-h1"):
            unit.session.get_one(ElementRow, name).confirmed_revision = 0
    changed = list[set[str]]()
    store = replace(active.store, publish=lambda topics: changed.append({one for one in topics if "state:" in one}))
    StoreDeadlineTransactions(store, active.service.settings.timing).apply_transitions()
    assert sorted(changed, key=str) == [{"state:a"}, {"state:b"}]
    assert find_due_clusters(active) == []


def make_untransitionable(monkeypatch: pytest.MonkeyPatch, cluster_id: str) -> None:
    """Make each transition of a cluster to `draining` or `failing` raise ValueError, like an invalid value in a row."""
    find_hosts = transitions._find_hosts_with_changed_peers

    def fail(unit: Unit, row: ClusterRow) -> frozenset[str]:
        if row.id == cluster_id:
            raise ValueError("an invalid row")
        return find_hosts(unit, row)

    monkeypatch.setattr(transitions, "_find_hosts_with_changed_peers", fail)


def test_an_unreadable_member_ends_with_its_lease(world: World) -> None:
    world.put("network", spec("brno-h1"))
    world.put("member", spec(hosts=["brno-h1"], lease_s=100, joins="network"))
    world.settle()
    with world.store.change() as unit:
        unit.session.get_one(ClusterRow, world.view("member").id).spec = "{"
    world.clock.advance(100)
    world.settle()
    with world.store.read() as unit:
        assert {row.key: row.state for row in find_clusters(unit)} == {"network": "active", "member": "released"}


def test_an_invalid_cluster_delays_no_other_cluster(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put("network", spec("brno-h1"))
    world.put("member", spec(hosts=["brno-h1"], lease_s=3600, joins="network"))
    world.put("other", spec("praha-h1", lease_s=3600))
    world.settle()
    make_untransitionable(monkeypatch, world.view("member").id)
    world.clock.advance(3600)
    world.service.scheduler.sweep.run()
    states = {key: world.view(key).state for key in ("network", "member", "other")}
    assert states == {"network": "active", "member": "active", "other": "draining"}


def test_an_invalid_cluster_delays_no_agent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put("network", spec("brno-h1"))
    world.put("member", spec(hosts=["brno-h1"], lease_s=100, joins="network"))
    world.settle()
    make_untransitionable(monkeypatch, world.view("member").id)
    sweep = world.service.scheduler.sweep
    sweep.run()
    sweep.clock = lambda: 1e12
    world.clock.advance(151)
    sweep.run()
    with world.store.read() as unit:
        reachable = {name: unit.session.get_one(ElementRow, name).reachable for name in ("brno-h1", "praha-h1")}
    assert reachable == {"brno-h1": False, "praha-h1": False}


def test_no_agent_is_stale_right_after_a_database_outage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """SBF could not record the heartbeats of running agents during the outage."""
    world.settle()
    sweep, times = world.service.scheduler.sweep, [1000.0]
    sweep.clock = lambda: times[-1]
    world.sweep()
    times.append(1200.0)
    world.clock.advance(200)
    with monkeypatch.context() as outage:
        outage.setattr(StoreDeadlineTransactions, "find_overdue", refuse)
        with pytest.raises(DatabaseUnavailable):
            world.sweep()
    world.sweep()
    assert world.element("brno-h1").reachable
    times.append(1350.0)
    world.sweep()
    assert not world.element("brno-h1").reachable


def test_no_agent_is_stale_right_after_a_suspension_of_sbf(world: World) -> None:
    """A suspended process, for example after SIGSTOP, records no heartbeats of running agents."""
    sweep, now = world.service.scheduler.sweep, [1000.0]
    sweep.clock, sweep.suspended_after_s = lambda: now[0], deadlines.SUSPENDED_AFTER_S
    world.settle()
    for now[0] in range(1000, 1151, 30):
        world.sweep()
    world.clock.advance(200)
    states = []
    for now[0] in (1350, 1380, 1410, 1440, 1470, 1499, 1500):
        world.sweep()
        states.append(world.element("brno-h1").reachable)
    assert states == [True] * 6 + [False]


def test_a_new_host_has_sent_no_heartbeat_yet(world: World) -> None:
    with world.store.change() as unit:
        require_element(unit, "brno-h1").last_seen = None
    world.service.scheduler.sweep.clock = count(step=1000).__next__
    world.sweep()
    world.sweep()
    assert world.element("brno-h1").trouble == "its agent has sent no heartbeat yet: install and start the agent"


def test_a_heartbeat_during_the_sweep_is_respected(world: World) -> None:
    world.settle()
    world.service.scheduler.sweep.clock = lambda: 1e12
    world.clock.advance(151)
    heartbeats = iter([lambda: record_agent_heartbeat(world.store, "praha-h1")])
    world.service.change_feed.add_listener(lambda _changed: next(heartbeats, lambda: None)())
    world.sweep()
    assert world.element("brno-h1").trouble == "its agent has sent no heartbeat for 150 s: check that the agent runs"
    assert world.element("praha-h1").trouble is None


def test_an_invalid_cluster_does_not_hide_a_switch_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put("network", spec("brno-h1"))
    world.put("member", spec(hosts=["brno-h1"], lease_s=100, joins="network"))
    world.settle()
    make_untransitionable(monkeypatch, world.view("member").id)
    world.clock.advance(151)
    transactions = world.service.scheduler.worker.transactions
    fence = transactions.acquire_lease(Name("brno-sw1"))
    assert fence is not None
    transactions.fail(Name("brno-sw1"), fence, ErrorReport("no answer", reachable=False), None)
    with world.store.read() as unit:
        assert unit.session.get_one(ElementRow, "brno-sw1").trouble == "no answer"
