"""Tests of two choices: a pytest-xdist worker's next work unit, and the test files that ``--quick`` runs."""

from distribution import Record, WorkUnit, choose, is_quick

FAST, SLOW = WorkUnit("fast", 1, ""), WorkUnit("slow", 9, "")
FIRST, SECOND, OTHER = WorkUnit("first", 30, "lab"), WorkUnit("second", 20, "lab"), WorkUnit("other", 9, "bare")


def test_the_longest_unit_of_the_last_lab_is_next() -> None:
    assert choose([FAST, OTHER, SECOND, FIRST], takes_labs=True, lab="lab", taken=["bare"]) == FIRST


def test_a_worker_first_starts_a_lab_that_nobody_uses() -> None:
    assert choose([FIRST, OTHER, SLOW], takes_labs=True, lab="edges", taken=["lab"]) == OTHER


def test_a_worker_without_labs_starts_with_the_longest_unit() -> None:
    assert choose([FAST, FIRST, SLOW], takes_labs=False, lab="", taken=[]) == SLOW


def test_no_second_copy_of_a_lab_starts_for_short_tests() -> None:
    assert choose([FIRST, SECOND, FAST], takes_labs=True, lab="edges", taken=["lab"]) == FAST
    long = WorkUnit("long", 40, "lab")
    assert choose([FIRST, long, FAST], takes_labs=True, lab="edges", taken=["lab"]) == long


def test_slow_files_and_files_of_labs_are_not_quick() -> None:
    table = {
        "tests/unit/slow.py": Record(9),
        "tests/contract/fast.py": Record(2),
        "tests/contract/lab.py": Record(1, "lab"),
    }
    files = [*table, "tests/unit/unrecorded.py", "tests/contract/unrecorded.py"]
    assert [file for file in files if is_quick(file, table)] == ["tests/contract/fast.py", "tests/unit/unrecorded.py"]
