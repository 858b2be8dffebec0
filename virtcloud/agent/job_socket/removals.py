"""Removal of the clusters of finished jobs: SBF is asked to end each, until SBF reports that this host is clean.

The job's record stores that the run is over, so a restarted agent continues, even when SBF is unreachable for hours.
"""

import threading
from collections.abc import Callable
from functools import partial

from virtcloud.agent import log
from virtcloud.agent.job_socket import start_barrier
from virtcloud.agent.job_socket.job_records import (
    UNCOUNTED_ATTEMPT,
    JobRecord,
    JobRecordStore,
    RecordPhase,
    record_removal,
)
from virtcloud.agent.job_socket.script_access import ScriptAccess
from virtcloud.agent.job_socket.socket_requests import JobRunId
from virtcloud.agent.job_socket.start_barrier import JobClusterApi
from virtcloud.agent.supervision import ReportProgress, StartSupervisedThread, start_unsupervised
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.errors import Gone, NotFound, VirtcloudError
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView, PlacementProgress

MIN_PAUSE_S, MAX_PAUSE_S, PAUSE_FACTOR = 0.2, 10.0, 1.3
"""Pauses in seconds between two calls to SBF; a new removal starts with the shortest."""
PROGRESS_S, MAX_REMOVAL_S = 30.0, 600.0
"""Seconds between two reports of progress while no run ends, and the longest time for one run."""


class JobRemovals:
    """The thread that ends clusters of finished jobs."""

    def __init__(self, element: Name, sbf: JobClusterApi, records: JobRecordStore, script_access: ScriptAccess) -> None:
        """Work on the host ``element``; no thread runs yet."""
        self._element = element
        self._sbf = sbf
        self._records = records
        self._script_access = script_access
        self._delete_sent: set[JobRunId] = set()
        self._missing: dict[JobRunId, list[str]] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, start: StartSupervisedThread = start_unsupervised) -> None:
        """Reopen the access of running jobs and begin, in a thread that ``start`` starts."""
        self._thread = start("removals", self._run, MAX_REMOVAL_S)

    def stop(self, seconds: float) -> None:
        """Stop after the current call to SBF; wait for it up to ``seconds``."""
        self._closing.set()
        self._records.wake()
        if self._thread is not None:
            self._thread.join(seconds)

    def describe_missing(self, job: JobRecord) -> list[str]:
        """Return what keeps a run on this host."""
        return self._missing.get(job.run) or ["SBF has not been asked yet"]

    def _run(self, report_progress: ReportProgress) -> None:
        self._script_access.reopen(report_progress)
        pause, before = MIN_PAUSE_S, frozenset[JobRunId]()
        while not self._closing.is_set():
            report_progress()
            ending = self._list_ending()
            for job in ending:
                self._try(job)
                report_progress()
            now = frozenset(job.run for job in ending)
            pause = MIN_PAUSE_S if now - before else min(pause * PAUSE_FACTOR, MAX_PAUSE_S)
            before = now
            self._records.pause(pause if ending else PROGRESS_S, unless=partial(self._has_new, now))

    def _has_new(self, seen: frozenset[JobRunId]) -> bool:
        return self._closing.is_set() or any(job.run not in seen for job in self._list_ending())

    def _list_ending(self) -> list[JobRecord]:
        return [job for job in self._records.all() if job.phase is RecordPhase.LEAVING]

    def _try(self, job: JobRecord) -> None:
        """Close the run's access and end its cluster, each even if the other fails; then record the removal."""
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
        """Record that the run is removed from this host; repeated until it succeeds, for instance on a full disk."""
        self._records.change(job.cluster, lambda now: record_removal(now) if now and now.is_same_run(job) else now)

    def _end_cluster(self, job: JobRecord) -> str | None:
        """End the cluster at SBF, or check its progress; return None when this host carries nothing of the run."""
        try:
            if job.run in self._delete_sent:
                view = self._sbf.cluster(job.cluster)
            else:
                view = self._sbf.delete_cluster(job.cluster, attempt=job.attempt or None, owner=job.user)
                self._delete_sent.add(job.run)
        except (NotFound, Gone):  # never created, without a part on this host, or replaced by a later attempt
            return None
        return describe_remainder(view, job, self._element)


def _attempt_step(step: Callable[[JobRecord], str | None], job: JobRecord) -> str | None:
    """Run a step; return what is missing or the error in one line. All errors are retried."""
    try:
        return step(job)
    except VirtcloudError as error:
        return " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001 - reported, and retried like any error
        return str(log.internal_error(error, cluster=job.cluster, attempt=job.attempt))


def describe_remainder(view: ClusterView, job: JobRecord, element: Name) -> str | None:
    """PURE. Return what of a finished run remains on this host; None when nothing remains."""
    if job.belongs_to_other(view.spec.owner) or (job.attempt != UNCOUNTED_ATTEMPT and view.attempt > job.attempt):
        return None
    part = start_barrier.find_placement(view, element)
    if part is None or part.progress is PlacementProgress.REMOVED:
        return None
    if view.state in WANTED_STATES:
        return f"SBF says that cluster {job.cluster} is {view.state}, though it was asked to end it"
    return start_barrier.format_unconfirmed(part, " that it removed it")
