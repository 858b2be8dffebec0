"""Distributes tests over the workers of pytest-xdist: longest first, by recorded durations.

One worker runs all tests of a work unit. A work unit is a file or a part of a file. docs/explanation/tests.md explains
this distribution.
"""

import gc
import json
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

TABLE = Path(__file__).with_name("durations.json")
PIECE_S = 20.0
UNKNOWN_S = 0.2
UNKNOWN_IN_LAB_S = 5.0
"""The assumed duration in seconds of a test without a record: ``UNKNOWN_IN_LAB_S`` in tests/lab, else ``UNKNOWN_S``."""
LAB = "tests/lab/"
WHOLE = (
    *(LAB, "tests/compatibility/", "tests/pbs/", "tests/packages/"),
    *("tests/playbooks/test_one_site.py", "tests/playbooks/test_replicas.py", "tests/playbooks/test_pbs_hooks.py"),
)
"""Files that are never divided, and folders of such files.

The tests of such a file share the processes that one fixture starts.
"""
QUICK_S = 3.0
UNIT = "tests/unit/"
"""``--quick`` runs files without a lab that take at most ``QUICK_S``, and files of unit tests without a record."""
UNMEASURED_S = 60.0
SECOND_START_S = 60.0
LABS = ("lab", "bare", "mixed", "cabled", "paths", "prepared", "edges", "own_state")
"""Fixtures that start a lab."""
PRIVATE_LAB = LABS[-1]
"""The fixture of tests that start their own labs. If a file also uses a shared lab, the shared lab is recorded."""
LAB_OF_FILE = pytest.StashKey[str]()


@dataclass(frozen=True, slots=True)
class Record:
    """The total duration of a file's tests in seconds, and the lab that these tests use, if any."""

    seconds: float
    lab: str = ""


TABLE_OF_RUN = pytest.StashKey[Mapping[str, Record]]()


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """Tests that the same worker runs in sequence."""

    name: str
    seconds: float
    lab: str


def read_table(path: Path = TABLE) -> dict[str, Record]:
    found: dict[str, dict[str, float | str]] = json.loads(path.read_text()) if path.exists() else {}
    return {file: Record(float(one["seconds"]), str(one.get("lab", ""))) for file, one in found.items()}


def write_table(records: Mapping[str, Record], path: Path = TABLE) -> None:
    """Write the durations, longest first. Omit a file of unit tests if it uses no lab and takes less than 0.5 s."""
    longest = sorted(records.items(), key=lambda one: (-round(one[1].seconds), one[0]))
    rows = {
        file: {"seconds": round(one.seconds)} | ({"lab": one.lab} if one.lab else {})
        for file, one in longest
        if one.seconds >= 0.5 or one.lab or not file.startswith(UNIT)
    }
    lines = ",\n".join(f" {json.dumps(file)}: {json.dumps(row)}" for file, row in rows.items())
    path.write_text(f"{{\n{lines}\n}}\n")


def file_of(test: str) -> str:
    return test.partition("::")[0]


def divide(tests: Sequence[str], table: Mapping[str, Record]) -> dict[str, WorkUnit]:
    """Return the unit of each test. The tests of a unit are in the order of collection."""
    counts = Counter(file_of(test) for test in tests)
    seen: Counter[str] = Counter()
    units = {}
    for test in tests:
        file = file_of(test)
        record = table.get(file) or _estimate(file, counts[file])
        pieces = 1 if file.startswith(WHOLE) else min(counts[file], int(record.seconds // PIECE_S) + 1)
        piece = seen[file] * pieces // counts[file]
        seen[file] += 1
        units[test] = WorkUnit(f"{file} {piece + 1}/{pieces}", record.seconds / pieces, record.lab)
    return units


def _estimate(file: str, tests: int) -> Record:
    """Return the record of a file that is not in the table."""
    return Record(UNKNOWN_IN_LAB_S * tests, LABS[0]) if file.startswith(LAB) else Record(UNKNOWN_S * tests)


def choose(waiting: Collection[WorkUnit], *, takes_labs: bool, lab: str, taken: Iterable[str]) -> WorkUnit:
    """Return the unit that a worker runs next.

    ``lab`` is the lab that the worker used last. ``taken`` are the labs of other workers. With ``takes_labs``, the
    worker prefers its last lab, then a lab that no other worker uses. Without ``takes_labs``, the worker prefers units
    without a lab.

    A worker starts a shared lab of another worker a second time in two cases: all waiting units of the lab together
    take at least ``SECOND_START_S`` seconds, or no other unit is left.
    """
    others = set(taken) - {lab, PRIVATE_LAB}
    seconds = Counter[str]()
    for unit in waiting:
        seconds[unit.lab] += round(unit.seconds)

    def rank(unit: WorkUnit) -> tuple[bool, bool, bool, bool, float]:
        fits, runs_elsewhere = bool(unit.lab) is takes_labs, unit.lab in others
        starts_in_vain = runs_elsewhere and seconds[unit.lab] < SECOND_START_S
        return starts_in_vain, not fits, unit.lab != lab, runs_elsewhere, -unit.seconds

    return min(waiting, key=rank)


class LongestFirst(LoadScopeScheduling):
    """A scheduler that assigns the work units that :func:`choose` returns."""

    def __init__(self, config: pytest.Config, log: Producer, table: Mapping[str, Record]) -> None:
        super().__init__(config, log)
        self._table = table
        self._units: dict[str, WorkUnit] = {}
        self._labs: dict[WorkerController, str] = {}

    def schedule(self) -> None:
        if not self._units:
            self._units = divide(next(iter(self.registered_collections.values())), self._table)
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._units[nodeid].name

    def _assign_work_unit(self, node: WorkerController) -> None:
        waiting = {name: self._units[next(iter(tests))] for name, tests in self.workqueue.items()}
        index = list(self.assigned_work).index(node)
        taken = [lab for other, lab in self._labs.items() if other is not node]
        takes_labs = index < (len(self.assigned_work) + 1) // 2
        unit = choose(waiting.values(), takes_labs=takes_labs, lab=self._labs.get(node, ""), taken=taken)
        if unit.lab:
            self._labs[node] = unit.lab
        self.workqueue.move_to_end(unit.name, last=False)
        super()._assign_work_unit(node)


class Recorder:
    """Adds up the durations of a run, and writes the table at the end of the run.

    Records of files that did not run are unchanged.
    """

    def __init__(self, table: Path = TABLE) -> None:
        self._table = table
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._labs: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = file_of(report.nodeid)
        self._seconds[file] += report.duration
        used = [str(value) for key, value in report.user_properties if key == "lab"]
        if used and self._labs.get(file, PRIVATE_LAB) == PRIVATE_LAB:
            self._labs[file] = used[0]

    def pytest_sessionfinish(self) -> None:
        root = self._table.parent.parent
        former = {file: record for file, record in read_table(self._table).items() if (root / file).exists()}
        seen = {file: Record(seconds, self._labs.get(file, "")) for file, seconds in self._seconds.items()}
        write_table(former | seen, self._table)


def lab_of(item: pytest.Item) -> str:
    """Return the lab that is used in a test's file, or "". A file is assumed to use one shared lab at most."""
    return item.stash[LAB_OF_FILE]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("distribution")
    group.addoption("--quick", action="store_true", help=f"only files without a lab that take {QUICK_S:g} s at most")
    group.addoption("--record-durations", action="store_true", help=f"write {TABLE.name} at the end")


def pytest_configure(config: pytest.Config) -> None:
    """Record durations with ``--record-durations``, but not in workers, which report to the main process.

    Disable garbage collection during imports. The garbage collector would find almost no garbage, and would take a
    third of the time of the imports.
    """
    gc.disable()
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--quick``, skip slow files and files of labs before they are imported."""
    if not config.getoption("--quick") or collection_path.suffix != ".py":
        return None
    file = os.path.relpath(collection_path, config.rootpath)
    return True if not is_quick(file, config.stash.setdefault(TABLE_OF_RUN, read_table())) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort tests by their lab, tests without a lab first. With ``--quick``, deselect tests of labs.

    Record the lab of each test for the :class:`Recorder`.
    """
    labs: dict[str, str] = {}
    for item in items:
        used = [name for name in LABS if name in getattr(item, "fixturenames", ()) and "lab" in item.path.parts]
        if used:
            item.user_properties.append(("lab", used[0]))
            labs[file_of(item.nodeid)] = min(labs.get(file_of(item.nodeid), PRIVATE_LAB), used[0], key=LABS.index)
    for item in items:
        item.stash[LAB_OF_FILE] = labs.get(file_of(item.nodeid), "")
    items.sort(key=lab_of)
    if config.getoption("--quick"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("lab")])
        items[:] = [item for item in items if not item.get_closest_marker("lab")]


def pytest_collection_finish() -> None:
    """Make garbage collections rare, and make them skip all objects that exist now.

    These objects never become garbage. With Python's default settings, garbage collection took a seventh of the tests'
    processor time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return twice the number of processors, but at most 8. Tests spend half of their time waiting."""
    return min(2 * len(os.sched_getaffinity(0)), 8)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst:
    """Return the scheduler of this module, regardless of the option ``--dist``."""
    return LongestFirst(config, log, read_table())


def is_quick(file: str, table: Mapping[str, Record]) -> bool:
    """Return whether ``--quick`` runs a file: the file has no recorded lab, and takes at most ``QUICK_S``."""
    record = table.get(file, Record(0 if file.startswith(UNIT) else UNMEASURED_S))
    return record.seconds <= QUICK_S and not record.lab
