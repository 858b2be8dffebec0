from pathlib import Path

import pytest
from simulation.planting import plant
from stateful.topology_machine import TopologyMachine
from stateful.topology_sequences import run
from support.exploration import list_seeds
from support.sbf_fakes.switches import FakeDriver
from support.sbf_fakes.topology_changes import Choice, make_topology
from support.sbf_fakes.world import spec

from sbf_service.reconcile import transactions
from virtcloud.model.topology import Topology

STEPS = 45


@pytest.mark.parametrize("seed", list_seeds(4))
def test_the_invariants_hold_during_changes_of_the_topology(tmp_path: Path, seed: int) -> None:
    run(TopologyMachine(f"sqlite:///{tmp_path / 'sbf.db'}"), seed, range(STEPS))


@pytest.mark.postgresql
@pytest.mark.parametrize("seed", list_seeds(1))
def test_the_invariants_hold_on_postgresql(postgresql: str, seed: int) -> None:
    run(TopologyMachine(postgresql), 1000 + seed, range(STEPS))


def test_a_planted_bug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker adds a VLAN to a port that has become a port of a transport since the worker read its task."""
    plant(monkeypatch, transactions, " or _is_outdated(unit, reading)", "")
    machine = TopologyMachine(f"sqlite:///{tmp_path / 'sbf.db'}")
    machine.world.put("x", spec(hosts=["b-h1", "c-h1"]))
    machine.world.settle()
    machine.world.put("y", spec(hosts=["a-h1", "a-h2"]))
    document = make_topology().model_dump(mode="json")
    next(link for link in document["links"] if link["a"] == "a-sw1:p4")["a"] = "a-sw1:p2"
    document["sites"][0]["attachments"][0]["port"] = "a-sw1:p4"
    moved = Topology.model_validate(document)
    machine.world.switches["a-sw1"].before_read = lambda: machine.world.put_topology(moved)
    machine.all_invariants_hold()
    machine.world.converge("a-sw1")
    with pytest.raises(AssertionError, match="two networks share the Ethernet segment"):
        machine.all_invariants_hold()
    machine.world.close()


def test_a_configuration_that_was_not_saved_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = TopologyMachine(f"sqlite:///{tmp_path / 'sbf.db'}")
    monkeypatch.setattr(FakeDriver, "save", lambda _driver: True)
    machine.world.put("x", spec(hosts=["a-h1", "a-h2"]))
    machine.world.settle()
    machine.all_invariants_hold()
    for number in range(50):
        machine.restart_a_device(Choice(f"{number}"))
    with pytest.raises(AssertionError, match="a-sw1 lacks VLAN 100 of x"):
        machine.all_invariants_hold()
    machine.world.close()


def test_a_failed_check_during_a_reconciliation_is_found(tmp_path: Path) -> None:
    """The worker reports the exception of the check as an error of the device."""
    machine = TopologyMachine(f"sqlite:///{tmp_path / 'sbf.db'}")

    def fail() -> None:
        raise AssertionError("the check failed")

    with pytest.raises(AssertionError, match="the check failed"):
        machine.converge_during("a-sw1", "before_read", fail)
    machine.world.close()
