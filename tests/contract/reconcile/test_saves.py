"""Tests that SBF confirms only saved changes."""

from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from shutil import copytree

import pytest
from support.sbf_fakes.crash import Crash, crash_at
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.switches import FakeSwitches
from support.sbf_fakes.world import FakeClock, World, make_world, spec, three_edges

from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.store.elements.observed_state import compute_save_pause
from virtcloud.model.cluster import ClusterState
from virtcloud.model.element import Device
from virtcloud.model.values import Name

ALICE = spec("brno-h1")
BOB = spec("brno-h2", owner="bob")
BUSY = "startup-config file open failed (Device or resource busy)"


class Killed(BaseException):
    """Simulates a kill of the service."""


def kill() -> None:
    raise Killed


def restart(world: World) -> None:
    world.service.store.close()
    world.service = world.restarted()


def is_unsaved(world: World) -> bool:
    return world.element("brno-sw1").unsaved_since is not None


def create_active(world: World, key: str = "alice") -> None:
    world.settle()
    world.put(key, ALICE)
    world.settle()
    assert world.view(key).state is ClusterState.ACTIVE


def delete_on_hosts(world: World, key: str = "alice") -> None:
    """Delete a cluster, and confirm the removal for the hosts but not for the switches."""
    world.delete(key)
    world.confirm_hosts()


def test_a_save_is_pending_before_the_switch_is_changed(world: World) -> None:
    world.settle()
    world.put("alice", ALICE)
    pending = []
    world.switches["brno-sw1"].before_apply = lambda: pending.append(is_unsaved(world))
    world.converge("brno-sw1")
    assert (pending, is_unsaved(world)) == ([True], False)


def test_a_cluster_is_not_active_before_its_switch_saved(world: World) -> None:
    world.settle()
    world.switches["brno-sw1"].save_fails = BUSY
    world.put("alice", ALICE)
    world.settle()
    assert world.switches["brno-sw1"].carried() == {"p1": "100"}
    assert world.view("alice").state is ClusterState.CONFIGURING
    assert world.element("brno-sw1").trouble == f"switch brno-sw1: sent 'save', the device answered {BUSY!r}"


def test_a_change_before_a_kill_is_saved_after_restart(world: World) -> None:
    create_active(world)
    delete_on_hosts(world)
    switch = world.switches["brno-sw1"]
    switch.before_save = kill
    with pytest.raises(Killed):
        world.converge("brno-sw1")
    assert switch.carried() == {}
    switch.before_save = lambda: None
    changes = len(switch.applied)
    restart(world)
    assert is_unsaved(world)
    assert world.converge("brno-sw1") is ReconcileOutcome.CONFIRMED
    assert (len(switch.applied), switch.startup, is_unsaved(world)) == (changes, ({"p1": set()}, set()), False)


def test_a_vlan_id_with_unsaved_removal_is_not_allocated(world: World) -> None:
    """If the switch reboots before the save, alice's port is in VLAN 100 again."""
    world.put_pool("brno", "100")
    create_active(world)
    switch = world.switches["brno-sw1"]
    switch.save_fails = BUSY
    delete_on_hosts(world)
    world.settle()
    assert switch.carried() == {}
    assert str(world.site("brno").free) == ""
    switch.reboot()
    assert switch.carried() == {"p1": "100"}
    switch.save_fails = ""
    world.clock.advance(400)
    world.settle()
    assert (switch.carried(), str(world.site("brno").free)) == ({}, "100")
    world.put("bob", BOB)
    world.settle()
    switch.reboot()
    assert switch.carried() == {"p2": "100"}


def test_a_restart_between_change_and_save_prevents_confirmation(world: World) -> None:
    create_active(world)
    delete_on_hosts(world)
    switch = world.switches["brno-sw1"]
    switch.before_save = switch.reboot
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert switch.startup[0] == {"p1": {100}}
    assert str(world.site("brno").claimed) == "100"
    switch.before_save = lambda: None
    world.clock.advance(400)
    world.settle()
    assert (switch.startup[0], str(world.site("brno").claimed)) == ({"p1": set()}, "")


def test_a_session_lost_during_a_save_causes_another_save(world: World) -> None:
    world.settle()
    world.put("alice", ALICE)
    switch = world.switches["brno-sw1"]
    switch.cut_off_after = len(switch.calls) + 3
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert (switch.calls[-3:], switch.saves) == (["read", "save", "close"], 1)
    switch.cut_off_after, switch.cut_off = None, False
    world.clock.advance(10)
    assert world.converge("brno-sw1") is ReconcileOutcome.CONFIRMED
    assert switch.startup[0] == {"p1": {100}}


def test_a_refused_change_without_effect_is_not_saved(world: World) -> None:
    create_active(world)
    switch = world.switches["brno-sw1"]
    saves, switch.refuses = switch.saves, True
    world.put("bob", BOB)
    for _ in range(20):
        world.clock.advance(60)
        assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert (switch.saves, is_unsaved(world)) == (saves, False)


def test_an_earlier_change_is_saved_despite_a_refused_change(world: World) -> None:
    """SBF was killed before it saved the removal of alice's cluster. The switch refuses each change for bob."""
    create_active(world)
    delete_on_hosts(world)
    switch = world.switches["brno-sw1"]
    switch.before_save = kill
    with pytest.raises(Killed):
        world.converge("brno-sw1")
    switch.before_save = lambda: None
    restart(world)
    switch.refuses = True
    world.put("bob", BOB)
    for _ in range(3):
        world.converge("brno-sw1")
        world.clock.advance(1)
    assert (switch.startup[0], switch.saves, is_unsaved(world)) == ({"p1": set()}, 3, False)


def test_a_switch_that_ignores_commands_is_not_saved(world: World) -> None:
    create_active(world)
    switch = world.switches["brno-sw1"]
    saves, switch.lies = switch.saves, True
    world.put("bob", BOB)
    for _ in range(20):
        world.clock.advance(60)
        assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert switch.saves == saves


def test_failed_saves_are_repeated_with_growing_pauses(world: World) -> None:
    world.settle()
    switch = world.switches["brno-sw1"]
    switch.save_fails = BUSY
    world.put("alice", spec("brno-h1", deadline_s=3600))
    for _ in range(240):
        world.converge("brno-sw1")
        world.clock.advance(1)
    assert switch.saves == 6
    assert [compute_save_pause(failures).total_seconds() for failures in (1, 2, 3, 7, 99)] == [5, 10, 20, 300, 300]


def test_a_change_is_made_while_a_failed_save_waits(world: World) -> None:
    create_active(world)
    switch = world.switches["brno-sw1"]
    switch.save_fails = BUSY
    world.put("bob", BOB)
    world.converge("brno-sw1")
    saves = switch.saves
    world.delete("alice")
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert (switch.carried(), switch.saves) == ({"p2": "101"}, saves)


def test_a_switch_becomes_reachable_again_while_a_failed_save_waits(world: World) -> None:
    create_active(world)
    switch = world.switches["brno-sw1"]
    switch.save_fails = BUSY
    delete_on_hosts(world)
    world.converge("brno-sw1")
    switch.cut_off = True
    world.converge("brno-sw1")
    switch.cut_off, saves = False, switch.saves
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    element = world.element("brno-sw1")
    assert (element.reachable, switch.saves) == (True, saves)
    assert element.trouble == (
        "switch brno-sw1: expected a saved configuration, found changes that are not saved, because the last save "
        "failed: SBF saves again after a pause"
    )


def test_the_accepted_part_of_a_refused_change_is_saved(world: World) -> None:
    world.settle()
    world.put("alice", ALICE)
    switch = world.switches["brno-sw1"]

    def accept_a_part() -> None:
        switch.ports["p1"] = {100}
        switch.refuses = True

    world.put("bob", BOB)
    switch.before_apply = accept_a_part
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert (switch.startup[0], is_unsaved(world)) == ({"p1": {100}}, False)
    assert world.view("alice").state is ClusterState.CONFIGURING


def test_a_removal_by_hand_is_saved_before_the_vlans_release(world: World) -> None:
    """SBF finds no difference in the running configuration, but the startup configuration still contains the VLAN."""
    create_active(world)
    switch = world.switches["brno-sw1"]
    switch.ports["p1"] = set()
    delete_on_hosts(world)
    world.settle()
    assert (switch.startup[0], str(world.site("brno").claimed)) == ({"p1": set()}, "")


def test_a_reading_without_difference_saves_nothing(world: World) -> None:
    create_active(world)
    saves = world.switches["brno-sw1"].saves
    world.clock.advance(301)
    assert world.converge("brno-sw1") is ReconcileOutcome.CONFIRMED
    assert world.switches["brno-sw1"].saves == saves


def test_two_simultaneous_clusters_need_one_save(world: World) -> None:
    world.settle()
    saves = world.switches["brno-sw1"].saves
    world.put("alice", ALICE)
    world.put("bob", BOB)
    world.settle()
    assert world.switches["brno-sw1"].saves == saves + 1


def test_an_edge_is_saved_before_its_cluster_is_active(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    world.furnish(topology=three_edges())
    world.put("alice", spec("brno-h1", "praha-h1"))
    world.settle()
    edge = world.edges["brno-pe1"]
    assert world.view("alice").state is ClusterState.ACTIVE
    assert (edge.startup, len(edge.circuits)) == (frozenset(edge.circuits), 1)
    world.close()


def test_a_switch_with_a_new_description_is_saved_again(world: World) -> None:
    """The new description has another address, so it may describe another device with another startup configuration."""
    create_active(world)
    document = world.topology().model_dump(mode="json")
    document["sites"][0]["switches"][0]["address"] = "192.0.2.9"
    world.put_topology(type(world.topology()).model_validate(document))
    saves = world.switches["brno-sw1"].saves
    world.settle()
    assert world.switches["brno-sw1"].saves == saves + 1


def test_without_saves_a_switch_is_read_once_after_a_change(world: World) -> None:
    """The driver's commits are persistent, so its ``save`` returns False."""
    world.settle()
    world.put("alice", ALICE)
    switch = world.switches["brno-sw1"]
    calls = len(switch.calls)
    device = world.topology().element(Name("brno-sw1"))
    assert isinstance(device, Device)
    driver = world.service.scheduler.worker.sessions.driver(device)
    driver.save = lambda: False
    assert world.converge("brno-sw1") is ReconcileOutcome.CONFIRMED
    assert switch.calls[calls:] == ["read", "apply", "read"]


def test_an_unsaved_configuration_is_visible(world: World) -> None:
    world.settle()
    world.switches["brno-sw1"].save_fails = BUSY
    world.put("alice", ALICE)
    world.settle()
    view = ask(world, "GET", "/v1/elements/brno-sw1").json()
    assert view["unsaved_since"] == "2026-01-01T00:00:00Z"
    metrics = ask(world, "GET", "/metrics").text
    assert 'virtcloud_elements_unsaved{kind="switch",site="brno"} 1.0' in metrics
    assert 'virtcloud_elements_unsaved{kind="switch",site="praha"} 0.0' in metrics


def test_reconciling_on_demand_skips_the_pause_between_saves(world: World) -> None:
    world.settle()
    switch = world.switches["brno-sw1"]
    switch.save_fails = BUSY
    world.put("alice", ALICE)
    for _ in range(9):
        world.clock.advance(301)
        world.converge("brno-sw1")
    switch.save_fails = ""
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    assert ask(world, "POST", "/v1/elements/brno-sw1/reconcile").status_code == 200
    assert not is_unsaved(world)


def kill_at_call(world: World, number: int) -> bool:
    """Reconcile, and kill the service at call ``number`` to the switch. Return whether this call was reached."""
    switch = world.switches["brno-sw1"]
    answer, last = switch.answer, len(switch.calls) + number

    def answer_or_kill(call: str) -> None:
        if len(switch.calls) + 1 >= last:
            raise Killed
        answer(call)

    switch.answer = answer_or_kill
    try:
        world.converge("brno-sw1")
    except Killed:
        return True
    finally:
        switch.answer = answer
    return False


@pytest.mark.parametrize("number", range(1, 7))
def test_a_kill_at_any_call_releases_no_unsaved_vlan(world: World, number: int) -> None:
    create_active(world)
    delete_on_hosts(world)
    killed = kill_at_call(world, number)
    assert killed is (number <= len(["read", "apply", "read", "save", "read"]))
    saved = world.switches["brno-sw1"].startup[0].get("p1") == set()
    assert saved or str(world.site("brno").claimed) == "100"
    restart(world)
    world.clock.advance(400)
    world.settle()
    switch = world.switches["brno-sw1"]
    assert (switch.startup[0], switch.carried(), str(world.site("brno").claimed)) == ({"p1": set()}, {}, "")


def test_a_crash_at_any_statement_releases_no_unsaved_vlan(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    first = make_world(tmp_path / "0")
    first.furnish()
    create_active(first)
    delete_on_hosts(first)
    first.close()
    statements = next(statement for statement in range(1, 99) if not crashed_at(first, tmp_path, statement))
    assert statements > 20


def crashed_at(first: World, folder: Path, statement: int) -> bool:
    """Crash a copy of the service at database statement number ``statement``.

    If the statement was reached, restart the copy. Return whether the statement was reached.
    """
    copytree(folder / "0", folder / str(statement))
    world = World(
        f"sqlite:///{folder / str(statement) / 'sbf.db'}",
        clock=FakeClock(first.clock.now),
        switches=FakeSwitches({"brno-sw1": deepcopy(first.switches["brno-sw1"])}),
    )
    switch = world.switches["brno-sw1"]
    with suppress(Crash), crash_at(world, statement) as executed:
        world.converge("brno-sw1")
    if len(executed) >= statement:
        assert switch.startup[0] == {"p1": set()} or str(world.site("brno").claimed) == "100"
        restart(world)
        world.clock.advance(400)
        while world.converge("brno-sw1") is ReconcileOutcome.OVERTAKEN:
            pass
        assert (switch.startup[0], str(world.site("brno").claimed)) == ({"p1": set()}, "")
    world.close()
    return len(executed) >= statement


def test_a_partly_configured_switch_is_saved_once(world: World) -> None:
    """An unmanaged port carries the VLAN ID of bob's cluster, so SBF cannot confirm the wanted state."""
    switch = world.switches["brno-sw1"]
    switch.table = {1: "default"}
    create_active(world)
    world.put("bob", spec("brno-h2", owner="bob", deadline_s=3600))
    switch.ports["p9"] = {101}
    switch.table |= {101: "offices"}
    world.delete("alice")
    saves = switch.saves
    for _ in range(20):
        world.clock.advance(60)
        world.converge("brno-sw1")
    assert (switch.carried(), switch.saves, is_unsaved(world)) == ({"p9": "101"}, saves + 1, False)


def test_a_pending_save_of_a_partly_configured_switch_happens_once(world: World) -> None:
    switch = world.switches["brno-sw1"]
    switch.table = {1: "default"}
    create_active(world)
    world.put("bob", spec("brno-h2", owner="bob", deadline_s=3600))
    switch.ports["p9"] = {101}
    switch.table |= {101: "offices"}
    world.delete("alice")
    switch.before_save = kill
    with pytest.raises(Killed):
        world.converge("brno-sw1")
    switch.before_save = lambda: None
    restart(world)
    saves = switch.saves
    for _ in range(20):
        world.clock.advance(60)
        world.converge("brno-sw1")
    assert (switch.saves, is_unsaved(world)) == (saves + 1, False)


def test_a_switch_with_a_lost_vlan_is_saved_once(world: World) -> None:
    """An administrator moved alice's VLAN to an unmanaged port. SBF cannot restore the VLAN on alice's port."""
    switch = world.switches["brno-sw1"]
    switch.table = {1: "default"}
    create_active(world)
    switch.ports["p1"], switch.ports["p9"] = set(), {100}
    saves = switch.saves
    for _ in range(20):
        world.clock.advance(60)
        world.converge("brno-sw1")
    assert world.view("alice").state is ClusterState.DEGRADED
    assert (switch.saves, is_unsaved(world)) == (saves + 1, False)
