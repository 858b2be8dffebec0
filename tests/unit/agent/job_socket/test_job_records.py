"""Tests of requests and job records, and of jobs that the batch system does not list.

An uncounted run is a run of a batch system that counts no attempts. Its attempt number is 0.
"""

import pytest

from virtcloud.agent.job_socket.job_records import (
    JobRecord,
    MissingJobs,
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
"""The attempt and phase after the request, or the slug of the error."""


def job(attempt: int, phase: RecordPhase = RecordPhase.ASKED, user: str = "alice") -> JobRecord:
    return JobRecord(cluster=KEY, attempt=attempt, phase=phase, head=True, user=user)


def outcome(request: str, former: JobRecord | None, attempt: int) -> Outcome:
    run = JobRunId(KEY, attempt, "alice")
    requests = {
        "up": lambda: record_announcement(
            former, UpRequest(do="up", cluster=KEY, attempt=attempt, head=True, user="alice")
        ),
        "cancel": lambda: record_cancellation(former, run, "qdel"),
        "remove": lambda: record_end(former, run, "its job ended"),
        "state": lambda: find_run(former, run),
    }
    try:
        record = requests[request]()
    except VirtcloudError as error:
        return error.slug
    return record.attempt, record.phase.value


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
    ("former", "up", "state", "cancel", "remove"),
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
def test_each_request_about_the_first_run_has_its_effect(
    former: str, up: Outcome, state: Outcome, cancel: Outcome, remove: Outcome
) -> None:
    outcomes = [outcome(request, KNOWN[former], 1) for request in ("up", "state", "cancel", "remove")]
    assert outcomes == [up, state, cancel, remove]


@pytest.mark.parametrize("former", ["1 asked", "1 cancelled", "1 leaving", "1 gone"])
def test_a_later_run_replaces_the_former_run_in_any_phase(former: str) -> None:
    outcomes = {request: outcome(request, KNOWN[former], 2) for request in ("up", "state", "cancel", "remove")}
    assert outcomes == {
        "up": (2, "asked"),
        "state": "not-found",
        "cancel": (2, "cancelled"),
        "remove": (2, "leaving"),
    }


def test_an_uncounted_run_waits_for_the_former_runs_removal() -> None:
    with pytest.raises(AttemptWaits, match=r"cluster 12\.pbs: the former run is still being removed; retry later"):
        record_announcement(job(0, RecordPhase.LEAVING), UpRequest(do="up", cluster=KEY, attempt=0))
    assert (record_removal(job(0)), record_removal(job(1))) == (None, job(1, RecordPhase.GONE))


def test_a_new_uncounted_run_replaces_a_run_that_was_up() -> None:
    """The host crashed during the former run, which had been cancelled."""
    former = job(0, RecordPhase.CANCELLED).model_copy(update={"was_up": True})
    announced = record_announcement(former, UpRequest(do="up", cluster=KEY, attempt=0, head=True, user="alice"))
    assert announced == job(0)


def test_a_repeated_announcement_removes_no_information() -> None:
    former = job(1)
    assert record_announcement(former, UpRequest(do="up", cluster=KEY, attempt=1)) == former
    assert (
        record_end(record_cancellation(former, JobRunId(KEY, 1), "qdel"), JobRunId(KEY, 1), "its job ended").reason
        == "qdel"
    )


def test_errors_of_late_requests_name_the_present_attempt() -> None:
    with pytest.raises(Gone, match=r"^cluster 12\.pbs: attempt 1 is over; attempt 2 was announced to this host$"):
        record_end(job(2), JobRunId(KEY, 1), "")
    with pytest.raises(NotFound, match=r"^cluster 12\.pbs, attempt 3 was never announced to this host's agent"):
        find_run(job(2), JobRunId(KEY, 3))


@pytest.mark.parametrize("attempt", [1, 2, 3])
@pytest.mark.parametrize("phase", sorted(RecordPhase))
def test_only_an_announcement_replaces_another_users_job(phase: RecordPhase, attempt: int) -> None:
    """A reinstalled batch system reuses IDs of former jobs. Requests about former jobs may arrive late."""
    outcomes = {
        request: outcome(request, job(2, phase, "bob"), attempt) for request in ("up", "state", "cancel", "remove")
    }
    assert outcomes == {"up": (attempt, "asked"), "state": "gone", "cancel": "gone", "remove": "gone"}


def test_an_uncounted_run_waits_for_another_users_removal() -> None:
    with pytest.raises(AttemptWaits):
        record_announcement(
            job(0, RecordPhase.LEAVING, "bob"), UpRequest(do="up", cluster=KEY, attempt=0, user="alice")
        )


LISTED_JOB = JobRecord(cluster=ClusterKey("a"), attempt=1, head=True)
OTHER_HOST = JobRecord(cluster=ClusterKey("b"), attempt=1)
MISSING_LEAVING = JobRecord(cluster=ClusterKey("c"), attempt=1, head=True, phase=RecordPhase.LEAVING)
MISSING_CANCELLED = JobRecord(cluster=ClusterKey("d"), attempt=1, head=True, phase=RecordPhase.CANCELLED)
OF_TORQUE = JobRecord(cluster=ClusterKey("e"), attempt=0, head=True)
MISSING_SINCE_1000 = MissingJobs(1060, {LISTED_JOB.run: 1000})


def test_a_newly_missing_job_is_not_overdue() -> None:
    missing = find_missing_jobs([LISTED_JOB], set(), MissingJobs(), now=1000, grace=0)
    assert (missing.since, missing.overdue) == ({LISTED_JOB.run: 1000}, ())


def test_a_missing_job_is_overdue_after_the_grace_period() -> None:
    early = find_missing_jobs([LISTED_JOB], set(), MISSING_SINCE_1000, now=1119, grace=120)
    late = find_missing_jobs([LISTED_JOB], set(), MISSING_SINCE_1000, now=1120, grace=120)
    assert (early.overdue, early.since, late.overdue) == ((), {LISTED_JOB.run: 1000}, (LISTED_JOB,))


def test_a_gap_between_lists_restarts_the_grace_period() -> None:
    """Without lists, the agent does not know whether the job continued. The last list arrived at 1060."""
    before = find_missing_jobs([LISTED_JOB], set(), MISSING_SINCE_1000, now=1179, grace=120)
    after = find_missing_jobs([LISTED_JOB], set(), MISSING_SINCE_1000, now=1180, grace=120)
    assert (before.overdue, after.overdue, after.since) == ((LISTED_JOB,), (), {LISTED_JOB.run: 1180})


def test_a_listed_job_is_no_longer_missing() -> None:
    assert find_missing_jobs([LISTED_JOB], {"a"}, MISSING_SINCE_1000, now=1060, grace=120).since == {}


def test_an_uncounted_run_is_never_missing() -> None:
    """Lists of OpenPBS do not contain the jobs of Torque on the same host."""
    missing = find_missing_jobs([OF_TORQUE], set(), MissingJobs(1060, {OF_TORQUE.run: 1000}), now=1120, grace=120)
    assert (missing.since, missing.overdue) == ({}, ())


def test_a_job_that_is_being_removed_is_not_missing() -> None:
    missing = find_missing_jobs([OTHER_HOST, MISSING_LEAVING, MISSING_CANCELLED], set(), MissingJobs(), now=1, grace=0)
    assert set(missing.since) == {OTHER_HOST.run, MISSING_CANCELLED.run}
