"""Ends clusters whose job is over: SBF is asked until it has heard, and until it says that this host is rid of it.

What is to leave stands in the ledger, so an agent that is killed goes on, also when SBF is away for hours.
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
"""Between two questions; a new removal starts again with the first pause."""
PROGRESS_S, MAX_REMOVAL_S = 30.0, 600.0
"""Seconds between two signs of life while no job leaves, and for one job at most."""


class JobRemovals:
    """The thread that ends them."""

    def __init__(self, element: Name, sbf: JobClusterApi, ledger: JobRecordStore, places: ScriptAccess) -> None:
        """Work on the host ``element``; nothing is done yet."""
        self._element = element
        self._sbf = sbf
        self._records = ledger
        self._script_access = places
        self._delete_sent: set[JobRunId] = set()
        self._missing: dict[JobRunId, list[str]] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, start: StartSupervisedThread = start_unsupervised) -> None:
        """Reopen the places that were open, and begin, in a thread that ``start`` starts."""
        self._thread = start("removals", self._run, MAX_REMOVAL_S)

    def stop(self, seconds: float) -> None:
        """End, when what is being asked has been answered; after ``seconds`` it is left to itself."""
        self._closing.set()
        self._records.wake()
        if self._thread is not None:
            self._thread.join(seconds)

    def describe_missing(self, job: JobRecord) -> list[str]:
        """Say what keeps it here."""
        return self._missing.get(job.run) or ["SBF has not been asked yet"]

    def _run(self, beat: ReportProgress) -> None:
        self._script_access.reopen(beat)
        pause, before = MIN_PAUSE_S, frozenset[JobRunId]()
        while not self._closing.is_set():
            beat()
            leaving = self._list_ending()
            for job in leaving:
                self._try(job)
                beat()
            now = frozenset(job.run for job in leaving)
            pause = MIN_PAUSE_S if now - before else min(pause * PAUSE_FACTOR, MAX_PAUSE_S)
            before = now
            self._records.pause(pause if leaving else PROGRESS_S, unless=partial(self._has_new, now))

    def _has_new(self, seen: frozenset[JobRunId]) -> bool:
        return self._closing.is_set() or any(job.run not in seen for job in self._list_ending())

    def _list_ending(self) -> list[JobRecord]:
        return [job for job in self._records.all() if job.phase is RecordPhase.LEAVING]

    def _try(self, job: JobRecord) -> None:
        """Close its place and end it, each whether or not the other can be done."""
        missing = [words for step in (self._close_access, self._end_cluster) if (words := _attempt_step(step, job))]
        missing = missing or [words for words in [_attempt_step(self._record_removal, job)] if words]
        if missing and self._missing.get(job.run) != missing:
            log.info("not_gone_yet", cluster=job.cluster, attempt=job.attempt, missing="; ".join(missing))
        self._missing[job.run] = missing
        if not missing:
            self._delete_sent.discard(job.run)
            del self._missing[job.run]
            log.info("gone", cluster=job.cluster, attempt=job.attempt)

    def _close_access(self, job: JobRecord) -> None:
        self._script_access.close(job)

    def _record_removal(self, job: JobRecord) -> None:
        """Record that this host is rid of the run; on a full disk this is repeated until it succeeds."""
        self._records.change(job.cluster, lambda now: record_removal(now) if now and now.is_same_run(job) else now)

    def _end_cluster(self, job: JobRecord) -> str | None:
        """Ask SBF to end it, or how far it is with that; None: this host is rid of it."""
        try:
            if job.run in self._delete_sent:
                view = self._sbf.cluster(job.cluster)
            else:
                view = self._sbf.delete_cluster(job.cluster, attempt=job.attempt or None, owner=job.user)
                self._delete_sent.add(job.run)
        except (NotFound, Gone):  # it was never asked for, has no part here, or a later attempt has its place
            return None
        return describe_remainder(view, job, self._element)


def _attempt_step(step: Callable[[JobRecord], str | None], job: JobRecord) -> str | None:
    """Do a step; give in one line what is missing, also when it was a fault of ours: it is tried again."""
    try:
        return step(job)
    except VirtcloudError as error:
        return " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001 - reported, and retried like any error
        return str(log.internal_error(error, cluster=job.cluster, attempt=job.attempt))


def describe_remainder(view: ClusterView, job: JobRecord, element: Name) -> str | None:
    """PURE. Say what of a run that is over is still on this host; None: nothing."""
    if job.belongs_to_other(view.spec.owner) or (job.attempt != UNCOUNTED_ATTEMPT and view.attempt > job.attempt):
        return None
    part = start_barrier.find_placement(view, element)
    if part is None or part.progress is PlacementProgress.REMOVED:
        return None
    if view.state in WANTED_STATES:
        return f"SBF says that cluster {job.cluster} is {view.state}, though it was asked to end it"
    return start_barrier.format_unconfirmed(part, " that it removed it")
