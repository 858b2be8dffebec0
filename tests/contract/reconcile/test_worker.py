"""Tests of workers and of their scheduler: leases and fencing tokens, failures of switches, retries, batches."""

from collections.abc import Callable
from threading import Event, Thread

from sbf_fakes.world import World, spec, three_sites
from sqlalchemy.exc import OperationalError

from sbf_service.reconcile.transactions import read_device_statuses
from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.store.leases import acquire_lease
from virtcloud.model.cluster import ClusterState
from virtcloud.model.topology import Topology

ONE = spec("brno-h1")


def holder_takes(world: World, name: str) -> None:
    with world.store.change_row() as unit:
        acquire_lease(unit, name, "another replica", world.service.settings.timing.lease)


def test_a_switch_that_another_replica_converges_is_left_alone(world: World) -> None:
    holder_takes(world, "brno-sw1")
    assert world.converge("brno-sw1") is ReconcileOutcome.BUSY
    assert world.switches["brno-sw1"].calls == []


def test_an_expired_lease_is_acquired_by_another(world: World) -> None:
    holder_takes(world, "brno-sw1")
    world.clock.advance(world.service.settings.timing.lease.total_seconds() + 1)
    assert world.converge("brno-sw1") is ReconcileOutcome.CONFIRMED


def test_a_lease_is_released_after_use(world: World) -> None:
    world.converge("brno-sw1")
    with world.store.change_row() as unit:
        assert acquire_lease(unit, "brno-sw1", "another replica", world.service.settings.timing.lease) == 2


def test_a_worker_without_its_lease_changes_nothing(world: World) -> None:
    """The worker is suspended after its read until another worker has the lease.

    The suspended worker then neither changes the switch nor confirms anything.
    """
    world.settle()
    world.put("demo", ONE)
    switch = world.switches["brno-sw1"]
    answer = switch.answer

    def suspended(call: str) -> None:
        answer(call)
        world.clock.advance(3600)
        holder_takes(world, "brno-sw1")

    switch.answer = suspended
    assert world.converge("brno-sw1") is ReconcileOutcome.BUSY
    assert switch.carried() == {}
    assert world.element("brno-sw1").confirmed_revision == 2


def test_a_late_worker_confirms_nothing_and_causes_a_reading(world: World) -> None:
    world.settle()
    world.put("demo", ONE)

    def slow_change() -> None:
        world.clock.advance(3600)
        holder_takes(world, "brno-sw1")

    world.switches["brno-sw1"].before_apply = slow_change
    assert world.converge("brno-sw1") is ReconcileOutcome.BUSY
    element = world.element("brno-sw1")
    assert (element.confirmed_revision, element.wanted_revision) == (2, 4)


def test_a_session_lost_before_read_back_is_unknown(world: World) -> None:
    """The session is lost after the change and before the read-back. SBF reports an error.

    The next reconciliation confirms the change without a second change.
    """
    world.settle()
    world.put("demo", ONE)
    switch = world.switches["brno-sw1"]
    switch.cut_off_after = len(switch.calls) + 2
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert world.element("brno-sw1").trouble == ("switch brno-sw1 (fake) does not answer: cut off; it is tried again")
    assert switch.carried() == {"p1": "100"}
    switch.cut_off_after, switch.cut_off = None, False
    changes = len(switch.applied)
    assert world.converge("brno-sw1") is ReconcileOutcome.CONFIRMED
    assert len(switch.applied) == changes
    assert world.element("brno-sw1").trouble is None


def test_a_switch_cut_off_before_the_change_is_not_changed(world: World) -> None:
    world.settle()
    world.put("demo", ONE)
    world.switches["brno-sw1"].cut_off = True
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert world.switches["brno-sw1"].applied == []


def test_what_a_switch_refuses_is_shown_where_it_matters(world: World) -> None:
    world.settle()
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.switches["praha-sw1"].refuses = True
    world.converge_switches()
    world.confirm_hosts()
    troubles = {one.element: one.trouble for one in world.view("demo").placements}
    assert troubles == {
        "brno-h1": None,
        "brno-sw1": None,
        "praha-h1": None,
        "praha-sw1": 'switch praha-sw1: the switch said "% Invalid input"',
    }


def test_the_deadline_removes_everything_and_names_the_cause(world: World) -> None:
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
        "(switch praha-sw1 (fake) does not answer: cut off; it is tried again)"
    )
    world.settle()
    assert world.switches["brno-sw1"].carried() == {}
    world.switches["praha-sw1"].cut_off = False
    world.settle()
    view = world.view("demo")
    assert (view.state, view.vlans) == (ClusterState.FAILED, {})
    assert view.reason is not None
    assert view.reason.startswith("not set up in time: switch praha-sw1")


def test_the_end_of_the_lease_ends_a_cluster(world: World) -> None:
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


def test_an_unreachable_switch_degrades_its_clusters_until_it_is_back(world: World) -> None:
    world.put("demo", ONE)
    world.settle()
    world.switches["brno-sw1"].cut_off = True
    world.clock.advance(301)
    world.settle()
    assert world.view("demo").state is ClusterState.DEGRADED
    world.switches["brno-sw1"].cut_off = False
    world.settle()
    assert (world.view("demo").state, world.view("demo").reason) == (ClusterState.ACTIVE, None)


def test_a_silent_agent_degrades_its_clusters_until_it_speaks(world: World) -> None:
    world.put("demo", ONE)
    world.settle()
    world.service.scheduler.sweep.clock = lambda: 1e12
    world.clock.advance(151)
    world.sweep()
    assert world.view("demo").state is ClusterState.DEGRADED
    assert world.element("brno-h1").trouble == "its agent has not asked for 150 s: look whether it runs"
    world.confirm_hosts()
    assert world.view("demo").state is ClusterState.ACTIVE


def test_a_hundred_clusters_that_arrive_meanwhile_are_one_change(world: World) -> None:
    world.put_pool("brno", "100-299")
    world.settle()
    for number in range(100):
        world.put(f"c{number}", ONE)
    changes = len(world.switches["brno-sw1"].applied)
    world.converge_switches()
    assert len(world.switches["brno-sw1"].applied) == changes + 1
    assert world.switches["brno-sw1"].carried() == {"p1": "100-199"}


def test_one_session_is_used_again_and_again(world: World) -> None:
    for key in ("a", "b", "c"):
        world.put(key, ONE)
        world.settle()
    assert world.switches["brno-sw1"].sessions == 1


def test_after_an_error_a_new_session_is_made(world: World) -> None:
    world.settle()
    world.switches["brno-sw1"].cut_off = True
    world.put("demo", ONE)
    world.converge("brno-sw1")
    world.switches["brno-sw1"].cut_off = False
    world.converge("brno-sw1")
    assert world.switches["brno-sw1"].sessions == 2
    assert "close" in world.switches["brno-sw1"].calls


def test_a_switch_described_anew_is_read_over_a_new_session(world: World) -> None:
    world.settle()
    document = world.topology().model_dump(mode="json")
    document["sites"][0]["switches"][0]["address"] = "192.0.2.9"
    world.put_topology(Topology.model_validate(document))
    assert world.element("brno-sw1").confirmed_revision == 0
    world.settle()
    assert world.element("brno-sw1").confirmed_revision == 3
    assert world.switches["brno-sw1"].sessions == 2


def test_a_fault_in_a_driver_is_trouble_not_the_end(world: World) -> None:
    def broken(_call: str) -> None:
        raise ZeroDivisionError("division by zero")

    world.switches["brno-sw1"].answer = broken
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert world.element("brno-sw1").trouble == "fault in the service: ZeroDivisionError: division by zero"


def test_a_hanging_switch_delays_no_other_and_no_stop(world: World) -> None:
    """One switch never answers. The running scheduler configures the other switch, and stops within one second."""
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
    stopping.join(2)
    assert not stopping.is_alive()
    world.switches["brno-sw1"].hangs.set()


def test_a_switch_that_returns_is_reconciled(world: World) -> None:
    """The running scheduler retries automatically, with growing pauses."""
    world.clock.stands = False
    world.switches["brno-sw1"].cut_off = True
    changes: list[frozenset[str]] = []
    tried, well = Event(), Event()

    def listen(changed: frozenset[str]) -> None:
        changes.append(changed)
        tried.set()
        if "cluster:demo" in changed and world.switches["brno-sw1"].applied:
            well.set()

    world.service.start()
    world.service.change_feed.add_listener(listen)
    world.put("demo", ONE)
    assert tried.wait(10)
    world.switches["brno-sw1"].cut_off = False
    assert well.wait(10)
    world.service.stop()
    assert world.switches["brno-sw1"].carried() == {"p1": "100"}


def test_a_database_outage_ends_no_cluster(world: World) -> None:
    world.clock.stands = False
    failed, found = Event(), Event()

    def sick() -> None:
        failed.set()
        raise OperationalError("SELECT", {}, Exception("disk I/O error"))

    world.service.scheduler.sweep.run = sick
    world.service.start()
    assert failed.wait(10)
    world.service.scheduler.sweep.run = found.set
    assert found.wait(10)
    world.service.stop()


def test_a_failed_switch_is_freed_with_its_failure_recorded(world: World) -> None:
    """Otherwise another thread could retry the switch immediately, without the pause after a failure."""
    world.put("demo", ONE)
    world.switches["brno-sw1"].cut_off = True
    with world.store.read() as unit:
        one = next(found for found in read_device_statuses(unit, "sbf@one") if found.name == "brno-sw1")
    converger = world.service.scheduler
    freed = []
    converger._free = lambda name: freed.append(name in converger._queue.retries)
    converger._work(one)
    assert freed == [True]


def test_a_device_without_a_thread_is_retried_later(world: World) -> None:
    """No thread could be started for a moment. The device does not stay marked as busy."""
    converger, now = world.service.scheduler, [100.0]
    converger.clock = converger._queue.clock = lambda: now[0]
    converger.spawn = no_thread
    converger._start_due()
    assert (converger._queue.busy, "brno-sw1" in converger._queue.retries) == (set(), True)
    converger.spawn = at_once
    converger._start_due()
    assert world.switches["brno-sw1"].calls == []
    now[0] += 1
    converger._start_due()
    assert world.switches["brno-sw1"].calls == ["read"]


def no_thread(_work: Callable[[], None], _name: str) -> None:
    raise RuntimeError("can't start new thread")


def at_once(work: Callable[[], None], _name: str) -> None:
    work()


def test_a_session_ends_when_its_device_leaves_the_topology(world: World) -> None:
    world.settle()
    document = three_sites().model_dump(mode="json")
    document["sites"] = [one for one in document["sites"] if one["name"] != "plzen"]
    document["links"] = [one for one in document["links"] if "plzen" not in one["a"]]
    world.put_topology(Topology.model_validate(document))
    world.service.scheduler.spawn = at_once
    world.service.scheduler._start_due()
    assert [world.switches[f"{name}-sw1"].calls[-1] for name in ("plzen", "brno")] == ["close", "read"]
    assert world.service.scheduler._queue.busy == set()
