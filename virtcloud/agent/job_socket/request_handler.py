"""Answers requests: one call of :meth:`Desk.answer` each, from many threads at once."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from virtcloud.agent import log
from virtcloud.agent.job_socket import start_barrier
from virtcloud.agent.job_socket.job_records import (
    JobRecord,
    JobRecordStore,
    RecordPhase,
    find_missing_jobs,
    find_run,
    forget_run,
    record_announcement,
    record_cancellation,
    record_end,
)
from virtcloud.agent.job_socket.removals import JobRemovals
from virtcloud.agent.job_socket.script_access import ScriptAccess
from virtcloud.agent.job_socket.socket_requests import (
    CancelRequest,
    JobRunId,
    ListRequest,
    RemoveRequest,
    RunningRequest,
    SocketRequest,
    StateRequest,
    UpRequest,
)
from virtcloud.agent.job_socket.start_barrier import BarrierResult, BarrierState, StartBarrier
from virtcloud.model.errors import Gone, Refused

SocketAnswer = dict[str, Any]
OK_ANSWER: SocketAnswer = {"ok": True}


@dataclass(frozen=True, slots=True)
class HandlerDependencies:
    """What the desk works with. ``wake`` lets the converger look at once; ``grace_s`` lies between two misses."""

    records: JobRecordStore
    script_access: ScriptAccess
    removals: JobRemovals
    open_barrier: Callable[[], StartBarrier]
    wake_reconciler: Callable[[], None]
    grace_s: float


class RequestHandler:
    """The answers."""

    def __init__(self, office: HandlerDependencies, clock: Callable[[], float] = time.monotonic) -> None:
        """Work with ``office``; ``clock`` counts seconds."""
        self._with = office
        self._clock = clock
        self._last_results: dict[JobRunId, BarrierResult] = {}
        self._missing_since: dict[JobRunId, float] = {}
        self._missing_lock = threading.Lock()
        self._closing = threading.Event()

    def close(self) -> None:
        """Let who waits wait no longer."""
        self._closing.set()
        self._with.records.wake()

    def answer(self, request: SocketRequest) -> SocketAnswer:
        """Do what is asked and say so; raises the model's exceptions. Everything may be repeated."""
        match request:
            case UpRequest():
                return self._up(request)
            case StateRequest():
                return self._state(request)
            case CancelRequest():
                return self._cancel(request)
            case RemoveRequest():
                return self._remove(request)
            case RunningRequest():
                return self._running(request)
            case ListRequest():
                return {"ok": True, "clusters": [_format_record(job) for job in self._with.records.all()]}

    def _up(self, request: UpRequest) -> SocketAnswer:
        job = self._with.records.change(request.cluster, lambda known: record_announcement(known, request))
        self._clear_missing(job)
        self._with.wake_reconciler()
        log.info("up", cluster=request.cluster, attempt=request.attempt, head=request.head)
        return OK_ANSWER

    def _state(self, request: StateRequest) -> SocketAnswer:
        ends = self._clock() + request.wait
        with self._with.open_barrier() as watch:
            while True:
                job = find_run(self._with.records.get(request.cluster), request.run)
                self._clear_missing(job)
                standing = start_barrier.evaluate_record(job) or watch.check(job, ends - self._clock())
                news = standing.state is not BarrierState.WAITING or standing != self._last_results.get(job.run)
                if news or self._clock() >= ends or self._closing.is_set():
                    self._last_results[job.run] = standing
                    return self._format_state(job, standing, watch)

    def _format_state(self, job: JobRecord, standing: BarrierResult, watch: StartBarrier) -> SocketAnswer:
        facts: dict[str, str] = {}
        if standing.state is BarrierState.UP and watch.view and watch.site:
            try:
                facts = self._with.script_access.provide_environment(job, watch.view, watch.site)
            except Refused as error:
                standing = BarrierResult(BarrierState.FAILED, reason=str(error))
            standing = self._recheck_record(job) or standing
        if standing.state is not BarrierState.WAITING:
            log.info("state", cluster=job.cluster, attempt=job.attempt, state=standing.state, reason=standing.reason)
        said = {"state": standing.state, "missing": list(standing.missing), "reason": standing.reason}
        return {"ok": True, **said, "facts": facts if standing.state is BarrierState.UP else {}}

    def _recheck_record(self, job: JobRecord) -> BarrierResult | None:
        """Look once more: another thread may have been told so while guests were asked."""
        return start_barrier.evaluate_record(find_run(self._with.records.get(job.cluster), job.run))

    def _cancel(self, request: CancelRequest) -> SocketAnswer:
        self._with.records.change(
            request.cluster, lambda known: record_cancellation(known, request.run, request.reason)
        )
        log.info("cancelled", cluster=request.cluster, attempt=request.attempt, reason=request.reason)
        return OK_ANSWER

    def _remove(self, request: RemoveRequest) -> SocketAnswer:
        ledger = self._with.records
        job = self._end_run(request.run, "its job ended")
        ledger.wait(lambda known: self._closing.is_set() or not _is_ending(known, job), job.cluster, request.wait)
        if not _is_ending(ledger.get(job.cluster), job):
            return {"ok": True, "gone": True, "missing": []}
        return {"ok": True, "gone": False, "missing": self._with.removals.describe_missing(job)}

    def _running(self, request: RunningRequest) -> SocketAnswer:
        """Compare; runs that are missed for the second time, a grace period after the first, are removed."""
        present = {cluster for cluster, _ in request.clusters}
        with self._missing_lock:
            found = find_missing_jobs(
                self._with.records.all(), present, self._missing_since, self._clock(), self._with.grace_s
            )
            self._missing_since = found.since
        for job in found.overdue:
            log.warning("missed", cluster=job.cluster, attempt=job.attempt, head=job.head)
            self._end_missing(job)
        return OK_ANSWER

    def _end_missing(self, job: JobRecord) -> None:
        """Let the cluster of a lost script end; what only had guests here is another host's to end."""
        if not job.head:
            self._last_results.pop(job.run, None)
            self._with.records.change(job.cluster, lambda known: forget_run(known, job.run))
            return
        with suppress(Gone):  # a later run came in the meantime
            self._end_run(job.run, "the batch system does not have its job any more")

    def _end_run(self, run: JobRunId, reason: str) -> JobRecord:
        job = self._with.records.change(run.cluster, lambda known: record_end(known, run, reason))
        self._last_results.pop(job.run, None)
        return job

    def _clear_missing(self, job: JobRecord) -> None:
        """Somebody waits for it: it is not missed, whatever the batch system's list says."""
        with self._missing_lock:
            self._missing_since.pop(job.run, None)


def _is_ending(known: JobRecord | None, job: JobRecord) -> bool:
    return known is not None and known.is_same_run(job) and known.phase is RecordPhase.LEAVING


def _format_record(job: JobRecord) -> SocketAnswer:
    """Say what is known without asking anybody."""
    here = start_barrier.evaluate_record(job)
    state = here.state if here else BarrierState.UP if job.was_up else BarrierState.WAITING
    listed = {"cluster": job.cluster, "attempt": job.attempt, "state": state, "head": job.head, "user": job.user}
    return {**listed, "leaving": job.phase is RecordPhase.LEAVING}
