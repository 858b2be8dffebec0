from collections.abc import Callable
from threading import Event, Thread

import pytest
from sqlalchemy.exc import OperationalError
from support.sbf_fakes.world import World, spec, three_sites

from sbf_service.drivers.registry import find_edge_platform, find_switch_platform
from sbf_service.reconcile.device_statuses import read_device_statuses
from sbf_service.reconcile.sessions import Platforms
from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.store.elements.leases import acquire_lease
from virtcloud.model.cluster import ClusterState
from virtcloud.model.topology import Topology

ONE_HOST = spec("brno-h1")


def acquire_for_another(world: World, name: str) -> None:
    with world.store.change_row() as unit:
        acquire_lease(unit, name, "another replica", world.service.settings.timing.lease)


def test_a_switch_leased_by_another_replica_is_not_read(world: World) -> None:
    acquire_for_another(world, "brno-sw1")
    assert world.converge("brno-sw1") is ReconcileOutcome.BUSY
    assert world.switches["brno-sw1"].calls == []


def test_an_expired_lease_is_acquired_by_another(world: World) -> None:
    acquire_for_another(world, "brno-sw1")
    world.clock.advance(world.service.settings.timing.lease.total_seconds() + 1)
    assert world.converge("brno-sw1") is ReconcileOutcome.CONFIRMED


def test_a_lease_is_released_after_use(world: World) -> None:
    world.converge("brno-sw1")
    with world.store.change_row() as unit:
        assert acquire_lease(unit, "brno-sw1", "another replica", world.service.settings.timing.lease) == 2


def test_a_worker_without_its_lease_changes_nothing(world: World) -> None:
    """The worker is suspended after it has read the switch, and a second worker acquires the lease."""
    world.settle()
    world.put("demo", ONE_HOST)
    switch = world.switches["brno-sw1"]
    answer = switch.answer

    def answer_late(call: str) -> None:
        answer(call)
        world.clock.advance(3600)
        acquire_for_another(world, "brno-sw1")

    switch.answer = answer_late
    assert world.converge("brno-sw1") is ReconcileOutcome.BUSY
    assert switch.carried() == {}
    assert world.element("brno-sw1").confirmed_revision == 2


def test_a_worker_that_lost_its_lease_confirms_nothing(world: World) -> None:
    world.settle()
    world.put("demo", ONE_HOST)

    def slow_change() -> None:
        world.clock.advance(3600)
        acquire_for_another(world, "brno-sw1")

    world.switches["brno-sw1"].before_apply = slow_change
    assert world.converge("brno-sw1") is ReconcileOutcome.BUSY
    element = world.element("brno-sw1")
    assert (element.confirmed_revision, element.wanted_revision) == (2, 4)


def test_a_session_lost_before_the_read_back_confirms_nothing(world: World) -> None:
    world.settle()
    world.put("demo", ONE_HOST)
    switch = world.switches["brno-sw1"]
    switch.cut_off_after = len(switch.calls) + 2
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert world.element("brno-sw1").trouble == ("switch brno-sw1 (fake) does not answer: cut off; SBF tries again")
    assert switch.carried() == {"p1": "100"}
    switch.cut_off_after, switch.cut_off = None, False
    changes = len(switch.applied)
    assert world.converge("brno-sw1") is ReconcileOutcome.CONFIRMED
    assert len(switch.applied) == changes
    assert world.element("brno-sw1").trouble is None


def test_a_disconnected_switch_is_not_changed(world: World) -> None:
    world.settle()
    world.put("demo", ONE_HOST)
    world.switches["brno-sw1"].cut_off = True
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert world.switches["brno-sw1"].applied == []


def test_a_refusal_is_shown_at_the_refusing_switch(world: World) -> None:
    world.settle()
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.switches["praha-sw1"].refuses = True
    world.converge_switches()
    world.confirm_hosts()
    troubles = {part.element: part.trouble for part in world.view("demo").placements}
    assert troubles == {
        "brno-h1": None,
        "brno-sw1": None,
        "praha-h1": None,
        "praha-sw1": 'switch praha-sw1: the switch answered "% Invalid input"',
    }


def test_the_set_up_deadline_ends_a_cluster_with_the_cause(world: World) -> None:
    world.settle()
    world.switches["praha-sw1"].cut_off = True
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    world.clock.advance(121)
    world.sweep()
    view = world.view("demo")
    assert view.state is ClusterState.FAILING
    assert view.reason == (
        "not set up in time: switch praha-sw1 at praha has not confirmed "
        "(switch praha-sw1 (fake) does not answer: cut off; SBF tries again)"
    )
    world.settle()
    assert world.switches["brno-sw1"].carried() == {}
    world.switches["praha-sw1"].cut_off = False
    world.settle()
    view = world.view("demo")
    assert (view.state, view.vlans) == (ClusterState.FAILED, {})
    assert view.reason is not None
    assert view.reason.startswith("not set up in time: switch praha-sw1")


def test_a_cluster_ends_with_its_lease(world: World) -> None:
    world.put("demo", spec("brno-h1", lease_s=600))
    world.settle()
    world.clock.advance(599)
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE
    world.clock.advance(1)
    world.settle()
    assert (world.view("demo").state, world.view("demo").reason) == (
        ClusterState.RELEASED,
        "its lease ended at 2026-01-01 00:10:00 UTC",
    )


def test_an_unreachable_switch_degrades_its_clusters(world: World) -> None:
    world.put("demo", ONE_HOST)
    world.settle()
    world.switches["brno-sw1"].cut_off = True
    world.clock.advance(301)
    world.settle()
    assert world.view("demo").state is ClusterState.DEGRADED
    world.switches["brno-sw1"].cut_off = False
    world.settle()
    assert (world.view("demo").state, world.view("demo").reason) == (ClusterState.ACTIVE, None)


def test_a_stale_agent_degrades_its_clusters_until_its_heartbeat(world: World) -> None:
    world.put("demo", ONE_HOST)
    world.settle()
    world.service.scheduler.sweep.clock = lambda: 1e12
    world.clock.advance(151)
    world.sweep()
    assert world.view("demo").state is ClusterState.DEGRADED
    assert world.element("brno-h1").trouble == "its agent has sent no heartbeat for 150 s: check that the agent runs"
    world.confirm_hosts()
    assert world.view("demo").state is ClusterState.ACTIVE


def test_a_hundred_new_clusters_are_one_change(world: World) -> None:
    world.put_pool("brno", "100-299")
    world.settle()
    for number in range(100):
        world.put(f"c{number}", ONE_HOST)
    changes = len(world.switches["brno-sw1"].applied)
    world.converge_switches()
    assert len(world.switches["brno-sw1"].applied) == changes + 1
    assert world.switches["brno-sw1"].carried() == {"p1": "100-199"}


def test_a_clusters_end_during_a_reading_delays_no_other(world: World) -> None:
    """Otherwise, if clusters often end during readings, other clusters on a slow switch could miss their deadlines."""
    world.settle()
    world.put("ending", spec("brno-h1"))
    world.put("waiting", spec("brno-h2"))

    def end() -> None:
        world.delete("ending")

    world.switches["brno-sw1"].before_read = end
    assert world.converge("brno-sw1") is ReconcileOutcome.OVERTAKEN
    assert world.switches["brno-sw1"].carried() == {"p1": "100", "p2": "101"}
    assert world.converge("brno-sw1") is ReconcileOutcome.CONFIRMED
    assert world.switches["brno-sw1"].carried() == {"p2": "101"}


def test_a_session_is_reused(world: World) -> None:
    for key in ("a", "b", "c"):
        world.put(key, ONE_HOST)
        world.settle()
    assert world.switches["brno-sw1"].sessions == 1


def test_after_an_error_a_new_session_is_opened(world: World) -> None:
    world.settle()
    world.switches["brno-sw1"].cut_off = True
    world.put("demo", ONE_HOST)
    world.converge("brno-sw1")
    world.switches["brno-sw1"].cut_off = False
    world.converge("brno-sw1")
    assert world.switches["brno-sw1"].sessions == 2
    assert "close" in world.switches["brno-sw1"].calls


def test_a_switch_with_a_new_description_gets_a_new_session(world: World) -> None:
    world.settle()
    document = world.topology().model_dump(mode="json")
    document["sites"][0]["switches"][0]["address"] = "192.0.2.9"
    world.put_topology(Topology.model_validate(document))
    assert world.element("brno-sw1").confirmed_revision == 0
    world.settle()
    assert world.element("brno-sw1").confirmed_revision == 3
    assert world.switches["brno-sw1"].sessions == 2


def test_a_fault_of_a_driver_does_not_end_the_service(world: World) -> None:
    def broken(call: str) -> None:
        raise ZeroDivisionError("division by zero")

    world.switches["brno-sw1"].answer = broken
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert world.element("brno-sw1").trouble == "fault in the service: ZeroDivisionError: division by zero"


def test_an_unknown_platform_is_no_fault_in_the_service(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform becomes unknown if, for example, its plug-in was removed."""
    sessions = world.service.scheduler.worker.sessions
    monkeypatch.setattr(sessions, "platforms", Platforms(find_switch_platform, find_edge_platform))
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert world.element("brno-sw1").trouble.startswith("switch brno-sw1: expected a known platform (")


def test_a_device_removed_during_a_conversation_is_no_fault(world: World, caplog: pytest.LogCaptureFixture) -> None:
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["switches"].append({"name": "brno-sw2", "platform": "fake", "ports": ["q1"]})
    world.put_topology(Topology.model_validate(document))

    def answer(call: str) -> None:
        world.put_topology(three_sites())

    world.switches["brno-sw2"].answer = answer
    assert world.converge("brno-sw2") is ReconcileOutcome.OVERTAKEN
    assert "reconcile_fault" not in caplog.text


def test_a_hanging_switch_does_not_delay_other_switches(world: World) -> None:
    world.switches["brno-sw1"].hangs = Event()
    world.clock.stands = False
    done = Event()
    world.service.change_feed.add_listener(lambda changed: done.set() if "cluster:praha" in changed else None)
    world.service.start()
    world.put("brno", spec("brno-h1"))
    world.put("praha", spec("praha-h1"))
    world.confirm_hosts()
    while world.view("praha").state is not ClusterState.ACTIVE:
        assert done.wait(10)
        done.clear()
    assert world.view("brno").state is ClusterState.CONFIGURING
    stopping = Thread(target=world.service.stop)
    stopping.start()
    stopping.join(20)
    assert not stopping.is_alive()
    world.switches["brno-sw1"].hangs.set()


def test_a_switch_that_returns_is_reconciled(world: World) -> None:
    world.clock.stands = False
    world.switches["brno-sw1"].cut_off = True
    changes: list[frozenset[str]] = []
    tried, reconciled = Event(), Event()

    def listen(changed: frozenset[str]) -> None:
        changes.append(changed)
        tried.set()
        if "cluster:demo" in changed and world.switches["brno-sw1"].applied:
            reconciled.set()

    world.service.start()
    world.service.change_feed.add_listener(listen)
    world.put("demo", ONE_HOST)
    assert tried.wait(10)
    world.switches["brno-sw1"].cut_off = False
    assert reconciled.wait(10)
    world.service.stop()
    assert world.switches["brno-sw1"].carried() == {"p1": "100"}


def test_the_sweep_is_repeated_after_a_database_outage(world: World) -> None:
    world.clock.stands = False
    failed, continued = Event(), Event()

    def fail() -> None:
        failed.set()
        raise OperationalError("SELECT", {}, Exception("disk I/O error"))

    world.service.scheduler.sweep.run = fail
    world.service.start()
    assert failed.wait(10)
    world.service.scheduler.sweep.run = continued.set
    assert continued.wait(10)
    world.service.stop()


def test_a_failure_is_recorded_before_the_switch_is_free(world: World) -> None:
    """If the switch became free earlier, another thread could reconcile the switch again without a pause."""
    world.put("demo", ONE_HOST)
    world.switches["brno-sw1"].cut_off = True
    with world.store.read() as unit:
        status = next(status for status in read_device_statuses(unit, "sbf@one") if status.name == "brno-sw1")
    scheduler = world.service.scheduler
    freed = []
    scheduler._free = lambda name: freed.append(name in scheduler._queue.retries)
    scheduler._work(status)
    assert freed == [True]


def test_a_device_without_a_thread_is_retried_later(world: World) -> None:
    """If the scheduler cannot start a thread for a device, the device must not stay marked as busy."""
    scheduler, now = world.service.scheduler, [100.0]
    scheduler.clock = scheduler._queue.clock = lambda: now[0]
    scheduler.spawn = fail_to_start
    scheduler._start_due()
    assert (scheduler._queue.busy, "brno-sw1" in scheduler._queue.retries) == (set(), True)
    scheduler.spawn = run_directly
    scheduler._start_due()
    assert world.switches["brno-sw1"].calls == []
    now[0] += 1
    scheduler._start_due()
    assert world.switches["brno-sw1"].calls == ["read"]


def fail_to_start(_work: Callable[[], None], _name: str) -> None:
    raise RuntimeError("can't start new thread")


def run_directly(work: Callable[[], None], _name: str) -> None:
    work()


def test_a_session_ends_when_its_device_leaves_the_topology(world: World) -> None:
    world.settle()
    document = three_sites().model_dump(mode="json")
    document["sites"] = [site for site in document["sites"] if site["name"] != "plzen"]
    document["links"] = [link for link in document["links"] if "plzen" not in link["a"]]
    world.put_topology(Topology.model_validate(document))
    world.service.scheduler.spawn = run_directly
    world.service.scheduler._start_due()
    assert [world.switches[f"{name}-sw1"].calls[-1] for name in ("plzen", "brno")] == ["close", "read"]
    assert world.service.scheduler._queue.busy == set()
