"""Removal of the clusters of finished jobs.

The agent requests the end of each cluster, and queries SBF until the cluster is removed from this host. Until then, the
job's record has the phase ``leaving``, so a restarted agent continues the removal.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from virtcloud.agent import log
from virtcloud.agent.job_socket import start_barrier
from virtcloud.agent.job_socket.job_record_store import JobRecordStore
from virtcloud.agent.job_socket.job_records import (
    UNCOUNTED_ATTEMPT,
    JobRecord,
    RecordPhase,
    forget_run,
    record_removal,
)
from virtcloud.agent.job_socket.script_access import ScriptAccess
from virtcloud.agent.job_socket.socket_requests import JobRunId
from virtcloud.agent.job_socket.start_barrier import JobClusterApi
from virtcloud.agent.supervision import ReportProgress, StartSupervisedThread, start_unsupervised
from virtcloud.current_call import work_for
from virtcloud.jobs.request_ids import job_request_id, make_traceparent
from virtcloud.model.call_context import CallContext
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.errors import Gone, NotFound, VirtcloudError
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView, PlacementProgress

MIN_PAUSE_S, MAX_PAUSE_S, PAUSE_FACTOR = 0.2, 10.0, 1.3
"""Shortest and longest pause in seconds between two calls to SBF, and the factor by which each pause is longer than the
previous pause. A new removal begins with the shortest pause.
"""
LOST_CHECK_S = 3600.0
"""Interval in seconds of the search for lost runs. The first search is at the agent's start."""
ACCESS_CHECK_S = 60.0
"""Interval in seconds of the search for jobs whose relay has ended.

A job's relay is the process by which the job's script reaches the cluster's guests.
"""
PROGRESS_S, MAX_REMOVAL_S = 30.0, 600.0
"""In seconds: interval of progress reports while no run is being removed, and longest time between two reports.

The agent ends if the thread reports no progress for this longest time.
"""


class JobRemovals:
    """The thread that removes the clusters of finished jobs."""

    def __init__(self, element: Name, sbf: JobClusterApi, records: JobRecordStore, script_access: ScriptAccess) -> None:
        """Create an object for clusters on the host ``element``."""
        self._element = element
        self._sbf = sbf
        self._records = records
        self._script_access = script_access
        self._delete_sent: set[JobRunId] = set()
        self._missing: dict[JobRunId, list[str]] = {}
        self._never_up: list[JobRecord] = []
        """The runs whose cluster had not been up yet at the last error-free search for lost runs."""
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, start: StartSupervisedThread = start_unsupervised) -> None:
        """Start the thread. First, the thread opens the access of running jobs to their guests again."""
        self._thread = start("removals", self._run, MAX_REMOVAL_S)

    def stop(self, seconds: float) -> None:
        """Stop the thread after its present call to SBF. Wait at most ``seconds`` for its end."""
        self._closing.set()
        self._records.wake()
        if self._thread is not None:
            self._thread.join(seconds)

    def describe_missing(self, job: JobRecord) -> list[str]:
        """Return one sentence for each reason why a run's removal is incomplete."""
        return self._missing.get(job.run) or ["the end of the cluster has not been requested from SBF yet"]

    def _run(self, report_progress: ReportProgress) -> None:
        pause, former_runs, is_open = MIN_PAUSE_S, frozenset[JobRunId](), False
        check_at = reopen_at = time.monotonic()
        while not self._closing.is_set():
            report_progress()
            if not is_open or time.monotonic() >= reopen_at:
                is_open = self._script_access.reopen(report_progress) or is_open
                reopen_at = time.monotonic() + ACCESS_CHECK_S
            if time.monotonic() >= check_at and self._forget_lost_runs(report_progress):
                check_at = time.monotonic() + LOST_CHECK_S
            ending = self._list_ending()
            for job in ending:
                with work_for(make_job_call(job.cluster, job.attempt)):
                    self._remove(job)
                report_progress()
            runs = frozenset(job.run for job in ending)
            pause = MIN_PAUSE_S if runs - former_runs else min(pause * PAUSE_FACTOR, MAX_PAUSE_S)
            former_runs = runs
            self._records.pause(PROGRESS_S if is_open and not ending else pause, unless=partial(self._has_new, runs))

    def _forget_lost_runs(self, report_progress: ReportProgress) -> bool:
        """Close the access of each lost run, and delete the run's record.

        Return False if the search must be repeated, because the check of a run failed.

        Only the runs of Torque, which have no attempt number, are checked. Torque sends no lists of jobs, and does not
        report the end of a job if the host crashes. If the cluster of such a run was up, the run is lost when SBF has
        removed the cluster from this host. If the cluster was never up, the run is lost when two successive error-free
        searches have found the run's record: the cluster of a new run may not exist yet. The records are compared by
        identity, because the records of two runs can be equal.
        """
        errors: list[str | None] = []
        jobs = [job for job in self._records.all() if job.attempt == UNCOUNTED_ATTEMPT]
        for job in jobs:
            if job.phase is RecordPhase.LEAVING or not (job.was_up or any(job is one for one in self._never_up)):
                continue
            report_progress()
            with work_for(make_job_call(job.cluster, job.attempt)):
                errors.append(_attempt_step(self._forget_if_lost, job))
        if not any(errors):
            self._never_up = [job for job in jobs if not job.was_up]
        return not any(errors)

    def _forget_if_lost(self, job: JobRecord) -> None:
        with suppress(NotFound, Gone):
            if describe_remainder(self._sbf.cluster(job.cluster), job, self._element) is not None:
                return
        self._script_access.close(job)
        self._records.change(job.cluster, lambda known: forget_run(known, job.run) if known is job else known)
        log.warning("run_lost", cluster=job.cluster)

    def _has_new(self, known_runs: frozenset[JobRunId]) -> bool:
        return self._closing.is_set() or any(job.run not in known_runs for job in self._list_ending())

    def _list_ending(self) -> list[JobRecord]:
        return [job for job in self._records.all() if job.phase is RecordPhase.LEAVING]

    def _remove(self, job: JobRecord) -> None:
        """Close the run's access and end its cluster. An error of one step does not prevent the other step.

        If both steps are complete, record the removal.
        """
        missing = [text for step in (self._close_access, self._end_cluster) if (text := _attempt_step(step, job))]
        missing = missing or [text for text in [_attempt_step(self._record_removal, job)] if text]
        if missing and self._missing.get(job.run) != missing:
            log.info("removal_waits", cluster=job.cluster, attempt=job.attempt, missing="; ".join(missing))
        self._missing[job.run] = missing
        if not missing:
            self._delete_sent.discard(job.run)
            del self._missing[job.run]
            log.info("run_removed", cluster=job.cluster, attempt=job.attempt)

    def _close_access(self, job: JobRecord) -> None:
        self._script_access.close(job)

    def _record_removal(self, job: JobRecord) -> None:
        self._records.change(
            job.cluster, lambda known: record_removal(known) if known and known.is_same_run(job) else known
        )

    def _end_cluster(self, job: JobRecord) -> str | None:
        """At the first call for a run, request the end of the cluster. At later calls, query the cluster.

        If the cluster is wanted again, for example after a restore of SBF's database, the next call repeats the
        request. Return None if the cluster is removed from this host; otherwise one sentence with the reason.
        """
        try:
            if job.run in self._delete_sent:
                view = self._sbf.cluster(job.cluster)
            else:
                view = self._sbf.delete_cluster(job.cluster, attempt=job.attempt or None, owner=job.user)
                self._delete_sent.add(job.run)
        except (NotFound, Gone):
            # The cluster was never created, does not use this host, or belongs to a later attempt.
            return None
        if view.state in WANTED_STATES:
            self._delete_sent.discard(job.run)
        return describe_remainder(view, job, self._element)


def _attempt_step(step: Callable[[JobRecord], str | None], job: JobRecord) -> str | None:
    """Run a step. Return None if the step is complete; otherwise the reason or the step's error as one line."""
    try:
        return step(job)
    except VirtcloudError as error:
        return " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001 - reported and retried like any other error
        return str(log.internal_error(error, cluster=job.cluster, attempt=job.attempt))


def describe_remainder(view: ClusterView, job: JobRecord, element: Name) -> str | None:
    """Return one sentence that states why a run is not removed from ``element`` yet; None if the run is removed. Pure.

    ``view`` is SBF's answer about the run's cluster.
    """
    if job.belongs_to_other(view.spec.owner) or (job.attempt != UNCOUNTED_ATTEMPT and view.attempt > job.attempt):
        return None
    placement = start_barrier.find_placement(view, element)
    if placement is None or placement.progress is PlacementProgress.REMOVED:
        return None
    if view.state in WANTED_STATES:
        return f"SBF reports that cluster {job.cluster} is {view.state}, although its end was requested"
    return start_barrier.format_unconfirmed(placement, " the removal")


def make_job_call(cluster: str, attempt: int) -> CallContext:
    """Return the request ID and the trace context of a job's attempt, as the hooks compute them."""
    request_id = job_request_id(cluster, attempt)
    return CallContext(request_id=request_id, traceparent=make_traceparent(request_id))
