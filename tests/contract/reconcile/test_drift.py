"""Tests of drift: readings that show manual changes on a switch.

SBF reports and corrects only changes of managed VLANs.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.switches import FakeSwitch
from support.sbf_fakes.world import World, make_world, spec

from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.values import Name

INTERVAL_S = 301


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = make_world(tmp_path)
    world.furnish()
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    world.switches["brno-sw1"].calls.clear()
    world.switches["brno-sw1"].applied.clear()
    yield world
    world.close()


def change_by_hand(world: World, **ports: set[int]) -> FakeSwitch:
    switch = world.switches["brno-sw1"]
    switch.ports |= ports
    return switch


def last_change(world: World) -> tuple[str | None, str | None, SwitchDifference]:
    row = world.audit("switch_change")[-1]
    return row.who, row.why, SwitchDifference.model_validate_json(row.difference or "")


def test_a_switch_without_drift_is_read_once(world: World) -> None:
    rows = len(world.audit())
    world.clock.advance(INTERVAL_S)
    world.settle()
    assert world.switches["brno-sw1"].calls == ["read"]
    assert len(world.audit()) == rows


def test_a_switch_is_not_read_before_the_drift_interval(world: World) -> None:
    world.clock.advance(299)
    world.settle()
    assert world.switches["brno-sw1"].calls == []


def test_a_vlan_removed_by_hand_is_restored_and_reported(world: World) -> None:
    switch = change_by_hand(world, p1=set())
    world.clock.advance(INTERVAL_S)
    world.settle()
    assert switch.carried() == {"p1": "100", "uplink": "100"}
    who, why, difference = last_change(world)
    assert (who, why) == ("sbf@one", "the device changed after revision 3")
    assert difference.model_dump(mode="json", exclude_defaults=True) == {"add": {"p1": "100"}}


def test_a_pool_vlan_added_by_hand_is_removed_and_reported(world: World) -> None:
    switch = change_by_hand(world, p2={139})
    world.clock.advance(INTERVAL_S)
    world.settle()
    assert switch.carried() == {"p1": "100", "uplink": "100"}
    found = last_change(world)[2].model_dump(mode="json", exclude_defaults=True)
    assert found == {"delete": "139", "remove": {"p2": "139"}}


def test_changes_outside_the_managed_range_are_no_drift(world: World) -> None:
    switch = change_by_hand(world, p1={100, 7, 200}, console={100, 139})
    world.clock.advance(INTERVAL_S)
    world.settle()
    assert switch.carried() == {"console": "100,139", "p1": "7,100,200", "uplink": "100"}
    assert (switch.calls, switch.applied, world.audit("element_drifted")) == (["read"], [], [])


def test_clusters_of_a_drifted_switch_degrade_and_return(world: World) -> None:
    states: list[str] = []
    switch = change_by_hand(world, p1=set())
    switch.before_apply = lambda: states.append(world.view("demo").state)
    world.clock.advance(INTERVAL_S)
    world.settle()
    assert [*states, world.view("demo").state] == ["degraded", "active"]
    events = [row.what for row in world.audit()][-5:]
    assert events == ["element_drifted", "cluster_degraded", "switch_change", "element_confirmed", "cluster_active"]


def test_reconciling_on_demand_corrects_drift_immediately(world: World) -> None:
    switch = change_by_hand(world, p1={100, 139})
    answer = ask(world, "POST", "/v1/elements/brno-sw1/reconcile")
    assert (answer.status_code, answer.json()["mended"]["remove"]) == (200, {"p1": "139"})
    assert switch.carried() == {"p1": "100", "uplink": "100"}


def test_reconciling_a_switch_without_drift_changes_nothing(world: World) -> None:
    answer = ask(world, "POST", "/v1/elements/brno-sw1/reconcile")
    assert (answer.json()["mended"], world.switches["brno-sw1"].calls) == (None, ["read"])


def test_reconciling_an_unreachable_switch_returns_the_error(world: World) -> None:
    world.switches["brno-sw1"].cut_off = True
    answer = ask(world, "POST", "/v1/elements/brno-sw1/reconcile")
    assert answer.status_code == 200
    assert answer.json()["element"]["trouble"].startswith("switch brno-sw1 (fake) does not answer")


def test_reconciling_a_switch_busy_at_another_replica_is_a_conflict(world: World) -> None:
    other = world.restarted()
    object.__setattr__(other.scheduler.worker.transactions, "holder", "sbf@two")
    with other.scheduler.worker.hold_lease(Name("brno-sw1")):
        answer = ask(world, "POST", "/v1/elements/brno-sw1/reconcile")
    other.store.close()
    assert (answer.status_code, world.switches["brno-sw1"].calls) == (409, [])


def test_a_switch_that_ended_its_session_is_read_immediately(world: World) -> None:
    """The switch may have restarted with an older startup configuration."""
    scheduler, others = world.service.scheduler, list(world.switches["praha-sw1"].calls)
    world.switches["brno-sw1"].restart()
    scheduler._start_due()
    with scheduler._lock:
        assert scheduler._lock.wait_for(lambda: not scheduler._queue.busy, 10)
    assert world.switches["brno-sw1"].calls == ["read", "apply", "read", "save", "read"]
    assert world.switches["praha-sw1"].calls == others


def test_a_backward_step_of_the_clock_causes_one_reading(world: World) -> None:
    """Otherwise, SBF would detect no drift until the clock has reached the time of the last reading again."""
    scheduler = world.service.scheduler
    scheduler.spawn = lambda work, _name: work()
    scheduler._start_due()
    world.clock.advance(-3600)
    for _ in range(3):
        world.clock.advance(1)
        scheduler._start_due()
    assert world.switches["brno-sw1"].calls == ["read"]


def test_workers_start_although_the_sweep_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("a fault of the sweep")

    scheduler = world.service.scheduler
    monkeypatch.setattr(scheduler.sweep, "run", fail)
    change_by_hand(world, p1=set()).ended_session = True
    scheduler.run_once()
    with scheduler._lock:
        assert scheduler._lock.wait_for(lambda: not scheduler._queue.busy, 10)
    assert world.switches["brno-sw1"].ports["p1"] == {100}
