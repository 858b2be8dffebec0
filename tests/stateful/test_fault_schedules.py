"""Tests of SBF in ten thousand fault schedules (random sequences of calls and faults) on a virtual clock.

For each bug in ``BUGS``, a test plants the bug in the code of SBF, and checks that a schedule finds the bug.
"""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from simulation.invariants import BrokenError, Invariants
from simulation.planting import plant
from simulation.schedule import Schedule
from simulation.store import Element
from support.exploration import list_seeds

from sbf_service.domain import cluster_status, due_elements, ownership
from sbf_service.reconcile import deadlines, device_task, scheduler, worker

SCHEDULES = 10_000
PER_TEST = 1_000
FOUND_WITHIN = 3_000


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    """Disable the log, because pytest would need a tenth of the test's time to format the log lines."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run_schedule(seed: int) -> str | None:
    try:
        Schedule(seed).run()
    except BrokenError as error:
        return f"{error}; to see it: PYTHONPATH=tests .venv/bin/python -m simulation {seed}"
    return None


@pytest.mark.parametrize("first", list_seeds(SCHEDULES)[::PER_TEST])
def test_ten_thousand_fault_schedules_break_nothing(first: int) -> None:
    found = [fault for seed in range(first, first + PER_TEST) if (fault := run_schedule(seed)) is not None]
    assert found == []


CHECKED = "reading.check_read_back()"
BUGS: dict[str, tuple[Any, ...]] = {
    "frees VLAN IDs before all elements confirmed": (
        "invariant 2",
        (
            cluster_status,
            "all(removed)",
            "any(removed)",
        ),
    ),
    "frees VLAN IDs before the members are removed": ("invariant 2", (cluster_status, "not self.members and ", "")),
    "confirms without a read-back check": (
        "invariant ",
        (worker, f"try:\n        {CHECKED}", "try:\n        pass"),
        (worker, f"        {CHECKED}\n        overtaken", "        overtaken"),
    ),
    "does not read again after a save": (
        "invariant ",
        (worker, "if not driver.save():", "if driver.save() is not None:"),
    ),
    "confirms an unsaved configuration": ("invariant ", (worker, "reading = self._save(driver, reading)", "pass")),
    "ignores a failed save": (
        "invariant ",
        (device_task, "not self.task.unsaved and list_observed_items(self.observed) == self.task.saved", "True"),
    ),
    "ignores an interrupted save": ("invariant ", (device_task, "not self.task.unsaved and ", "")),
    "deletes VLANs that SBF did not create": (
        "invariant 4",
        (ownership, "return vlan in created and (not name or is_default_name(vlan, name))", "return True"),
        (ownership, "    for vlan in VlanSet(ports) | unowned:", "    for vlan in unowned:"),
        (device_task, "        self.check_ownership()\n", ""),
    ),
    "continues without its lease": (
        "invariant 8",
        (
            worker,
            "announced = self.transactions.announce(reading, why, drifted=drifted)",
            (
                "try:\n            announced = self.transactions.announce(reading, why, drifted=drifted)\n"
                "        except LeaseLostError:\n            announced = True"
            ),
        ),
    ),
    "changes a device before the change is recorded": (
        "invariant 8",
        (worker, "if (difference or drifted) and not self._announce(reading, drifted=drifted):", "if False:"),
    ),
    "ignores drift": (
        "invariant 5",
        (worker, "reading.has_drifted", "False"),
    ),
    "never frees a device": (
        "invariant 3",
        (scheduler, "self._queue.record_outcome(status, outcome)\n            self._free", "str"),
    ),
    "never retries after a failure": ("invariant 3", (due_elements, " and clock < retry.not_before", "")),
    "ignores deadlines": ("invariant 3", (deadlines, "self.transactions.apply_transitions()", "pass")),
}
"""For each bug, by its description: the beginning of the expected error, and the changes that plant the bug.

A change is a module, a part of the module's source text, and the new text of this part.
"""


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_planted_in_the_code_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    broken, *changes = BUGS[bug]
    for module, old, new in changes:
        plant(monkeypatch, module, old, new)
    found = next((fault for seed in range(FOUND_WITHIN) if (fault := run_schedule(seed)) is not None), "none")
    assert found.startswith(broken)


def test_the_invariants_read_no_uncounted_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation does not check the invariants again if only fields in ``Element.uncounted`` have changed."""
    read, check_all = set[str](), Invariants.check_all

    def record_read(row: Element, name: str) -> object:
        read.add(name)
        return object.__getattribute__(row, name)

    def check(invariants: Invariants) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Element, "__getattribute__", record_read)
            check_all(invariants)

    monkeypatch.setattr(Invariants, "check_all", check)
    Schedule(7).run()
    assert "confirmed" in read
    assert not read & Element.uncounted


def test_a_seed_always_has_the_same_events() -> None:
    logs = []
    for _ in range(2):
        schedule = Schedule(7)
        schedule.run()
        logs.append(schedule.log)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 80
