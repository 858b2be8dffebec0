"""Tests of job records: a table with the effect of each request on each record."""

import pytest

from virtcloud.agent.job_socket.job_records import (
    JobRecord,
    RecordPhase,
    find_missing_jobs,
    find_run,
    record_announcement,
    record_cancellation,
    record_end,
    record_removal,
)
from virtcloud.agent.job_socket.socket_requests import JobRunId, UpRequest
from virtcloud.model.errors import AttemptWaits, Gone, NotFound, VirtcloudError
from virtcloud.model.values import ClusterKey

KEY = ClusterKey("12.pbs")
Outcome = tuple[int, str] | str
"""The resulting attempt and phase, or the slug of the error."""


def job(attempt: int, phase: RecordPhase = RecordPhase.ASKED, user: str = "alice") -> JobRecord:
    return JobRecord(cluster=KEY, attempt=attempt, phase=phase, head=True, user=user)


def outcome(verb: str, known: JobRecord | None, attempt: int) -> Outcome:
    run = JobRunId(KEY, attempt, "alice")
    verbs = {
        "up": lambda: record_announcement(
            known, UpRequest(do="up", cluster=KEY, attempt=attempt, head=True, user="alice")
        ),
        "cancel": lambda: record_cancellation(known, run, "qdel"),
        "remove": lambda: record_end(known, run, "its job ended"),
        "state": lambda: find_run(known, run),
    }
    try:
        made = verbs[verb]()
    except VirtcloudError as error:
        return error.slug
    return made.attempt, made.phase.value


KNOWN = {
    "nothing": None,
    "1 asked": job(1),
    "1 cancelled": job(1, RecordPhase.CANCELLED),
    "1 leaving": job(1, RecordPhase.LEAVING),
    "1 gone": job(1, RecordPhase.GONE),
    "2 asked": job(2),
    "2 gone": job(2, RecordPhase.GONE),
}
ASKED, CANCELLED, LEAVING, DONE = (1, "asked"), (1, "cancelled"), (1, "leaving"), (1, "gone")


@pytest.mark.parametrize(
    ("known", "up", "state", "cancel", "remove"),
    [
        ("nothing", ASKED, "not-found", CANCELLED, LEAVING),
        ("1 asked", ASKED, ASKED, CANCELLED, LEAVING),
        ("1 cancelled", CANCELLED, CANCELLED, CANCELLED, LEAVING),
        ("1 leaving", "gone", LEAVING, LEAVING, LEAVING),
        ("1 gone", "gone", DONE, DONE, DONE),
        ("2 asked", "gone", "gone", "gone", "gone"),
        ("2 gone", "gone", "gone", "gone", "gone"),
    ],
)
def test_each_request_about_the_first_run(
    known: str, up: Outcome, state: Outcome, cancel: Outcome, remove: Outcome
) -> None:
    seen = [outcome(verb, KNOWN[known], 1) for verb in ("up", "state", "cancel", "remove")]
    assert seen == [up, state, cancel, remove]


@pytest.mark.parametrize("known", ["1 asked", "1 cancelled", "1 leaving", "1 gone"])
def test_a_later_run_replaces_an_earlier_one_in_any_phase(known: str) -> None:
    seen = {verb: outcome(verb, KNOWN[known], 2) for verb in ("up", "state", "cancel", "remove")}
    assert seen == {"up": (2, "asked"), "state": "not-found", "cancel": (2, "cancelled"), "remove": (2, "leaving")}


def test_an_uncounted_run_waits_for_the_former_runs_removal() -> None:
    with pytest.raises(AttemptWaits, match=r"cluster 12\.pbs: the former run is still being removed; retry later"):
        record_announcement(job(0, RecordPhase.LEAVING), UpRequest(do="up", cluster=KEY, attempt=0))
    assert (record_removal(job(0)), record_removal(job(1))) == (None, job(1, RecordPhase.GONE))


def test_a_repeated_announcement_removes_no_information() -> None:
    known = job(1)
    assert record_announcement(known, UpRequest(do="up", cluster=KEY, attempt=1)) == known
    assert (
        record_end(record_cancellation(known, JobRunId(KEY, 1), "qdel"), JobRunId(KEY, 1), "its job ended").reason
        == "qdel"
    )


def test_late_calls_are_told_what_came_since() -> None:
    with pytest.raises(Gone, match=r"^cluster 12\.pbs: attempt 1 is over; attempt 2 was announced to this host$"):
        record_end(job(2), JobRunId(KEY, 1), "")
    with pytest.raises(NotFound, match=r"^cluster 12\.pbs, attempt 3 was never announced to this host's agent"):
        find_run(job(2), JobRunId(KEY, 3))


@pytest.mark.parametrize("attempt", [1, 2, 3])
@pytest.mark.parametrize("phase", sorted(RecordPhase))
def test_only_an_announcement_takes_the_place_of_another_users_job(phase: RecordPhase, attempt: int) -> None:
    """A batch system that was installed again reuses ids of former jobs, and requests about former jobs arrive late."""
    seen = {verb: outcome(verb, job(2, phase, "bob"), attempt) for verb in ("up", "state", "cancel", "remove")}
    assert seen == {"up": (attempt, "asked"), "state": "gone", "cancel": "gone", "remove": "gone"}


def test_an_uncounted_run_waits_for_another_users_removal() -> None:
    with pytest.raises(AttemptWaits):
        record_announcement(
            job(0, RecordPhase.LEAVING, "bob"), UpRequest(do="up", cluster=KEY, attempt=0, user="alice")
        )


A = JobRecord(cluster=ClusterKey("a"), attempt=1, head=True)
SISTER = JobRecord(cluster=ClusterKey("b"), attempt=1)
MISSING_LEAVING = JobRecord(cluster=ClusterKey("c"), attempt=1, head=True, phase=RecordPhase.LEAVING)
MISSING_CANCELLED = JobRecord(cluster=ClusterKey("d"), attempt=1, head=True, phase=RecordPhase.CANCELLED)


def test_the_first_miss_only_starts_the_clock() -> None:
    found = find_missing_jobs([A], set(), {}, now=1000, grace=0)
    assert (found.since, found.overdue) == ({A.run: 1000}, ())


def test_a_second_miss_counts_once_the_grace_period_is_over() -> None:
    early = find_missing_jobs([A], set(), {A.run: 1000}, now=1119, grace=120)
    late = find_missing_jobs([A], set(), {A.run: 1000}, now=1120, grace=120)
    assert (early.overdue, early.since, late.overdue) == ((), {A.run: 1000}, (A,))


def test_a_job_that_was_seen_in_between_begins_anew() -> None:
    assert find_missing_jobs([A], {"a"}, {A.run: 1000}, now=1060, grace=120).since == {}


def test_only_jobs_that_do_not_leave_already_are_missed() -> None:
    found = find_missing_jobs([SISTER, MISSING_LEAVING, MISSING_CANCELLED], set(), {}, now=1, grace=0)
    assert set(found.since) == {SISTER.run, MISSING_CANCELLED.run}
