"""The handler of the job socket's requests."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from virtcloud.agent import log
from virtcloud.agent.job_socket import start_barrier
from virtcloud.agent.job_socket.job_record_store import JobRecordStore
from virtcloud.agent.job_socket.job_records import (
    JobRecord,
    MissingJobs,
    RecordPhase,
    find_missing_jobs,
    find_run,
    forget_run,
    record_announcement,
    record_cancellation,
    record_end,
)
from virtcloud.agent.job_socket.removals import JobRemovals, make_job_call
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
from virtcloud.current_call import work_for
from virtcloud.model.errors import Gone, Refused

SocketAnswer = dict[str, Any]
JOB_REQUESTS = (UpRequest, StateRequest, CancelRequest, RemoveRequest)
"""The requests that concern one attempt of a job."""
OK_ANSWER: SocketAnswer = {"ok": True}


@dataclass(frozen=True, slots=True)
class HandlerDependencies:
    """The objects that the handler uses.

    ``wake_reconciler`` ends a pause of the reconciler. If a job is missing from the batch system's list for ``grace_s``
    seconds, the agent ends the job's run.
    """

    records: JobRecordStore
    script_access: ScriptAccess
    removals: JobRemovals
    open_barrier: Callable[[], StartBarrier]
    wake_reconciler: Callable[[], None]
    grace_s: float


class RequestHandler:
    """Answers the requests of the job socket. Thread-safe."""

    def __init__(self, dependencies: HandlerDependencies, clock: Callable[[], float] = time.monotonic) -> None:
        """Store ``dependencies``. ``clock`` returns seconds."""
        self._dependencies = dependencies
        self._clock = clock
        self._last_results: dict[JobRunId, BarrierResult] = {}
        """The result in the last answer to a request ``state``, for each waiting run."""
        self._missing = MissingJobs()
        self._missing_lock = threading.Lock()
        self._closing = threading.Event()

    def close(self) -> None:
        """Answer all waiting requests immediately, because the agent stops."""
        self._closing.set()
        self._dependencies.records.wake()

    def answer(self, request: SocketRequest) -> SocketAnswer:
        """Execute a request, and return the answer. Idempotent.

        Raise BadInput, Gone, NotFound, AttemptWaits or Refused (`ERROR_SLUGS` of `socket_requests` explains these
        errors).
        """
        call = make_job_call(request.cluster, request.attempt) if isinstance(request, JOB_REQUESTS) else None
        with work_for(call):
            return self._answer(request)

    def _answer(self, request: SocketRequest) -> SocketAnswer:
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
                return {"ok": True, "clusters": [_format_record(job) for job in self._dependencies.records.all()]}

    def _up(self, request: UpRequest) -> SocketAnswer:
        job = self._dependencies.records.change(request.cluster, lambda known: record_announcement(known, request))
        self._reset_missing_since(job)
        self._dependencies.wake_reconciler()
        log.info("run_announced", cluster=request.cluster, attempt=request.attempt, head=request.head)
        return OK_ANSWER

    def _state(self, request: StateRequest) -> SocketAnswer:
        deadline = self._clock() + request.wait
        with self._dependencies.open_barrier() as barrier:
            while True:
                job = find_run(self._dependencies.records.get(request.cluster), request.run)
                self._reset_missing_since(job)
                result = start_barrier.evaluate_record(job) or barrier.check(job, deadline - self._clock())
                changed = result.state is not BarrierState.WAITING or result != self._last_results.get(job.run)
                if changed or self._clock() >= deadline or self._closing.is_set():
                    self._record_result(job.run, result)
                    return self._format_state(job, result, barrier)

    def _record_result(self, run: JobRunId, result: BarrierResult) -> None:
        if result.state is BarrierState.WAITING:
            self._last_results[run] = result
        else:
            self._last_results.pop(run, None)

    def _format_state(self, job: JobRecord, result: BarrierResult, barrier: StartBarrier) -> SocketAnswer:
        facts: dict[str, str] = {}
        if result.state is BarrierState.UP and barrier.view and barrier.site:
            try:
                facts = self._dependencies.script_access.provide_environment(job, barrier.view, barrier.site)
            except Refused as error:
                result = BarrierResult(BarrierState.FAILED, reason=str(error))
            result = self._recheck_record(job) or result
        if result.state is not BarrierState.WAITING:
            log.info(
                "barrier_state", cluster=job.cluster, attempt=job.attempt, state=result.state, reason=result.reason
            )
        answer = {"ok": True, "state": result.state, "missing": list(result.missing), "reason": result.reason}
        return {**answer, "facts": facts if result.state is BarrierState.UP else {}}

    def _recheck_record(self, job: JobRecord) -> BarrierResult | None:
        return start_barrier.evaluate_record(find_run(self._dependencies.records.get(job.cluster), job.run))

    def _cancel(self, request: CancelRequest) -> SocketAnswer:
        self._dependencies.records.change(
            request.cluster, lambda known: record_cancellation(known, request.run, request.reason)
        )
        log.info("run_cancelled", cluster=request.cluster, attempt=request.attempt, reason=request.reason)
        return OK_ANSWER

    def _remove(self, request: RemoveRequest) -> SocketAnswer:
        records = self._dependencies.records
        job = self._end_run(request.run, "its job ended")
        records.wait(lambda known: self._closing.is_set() or not _is_ending(known, job), job.cluster, request.wait)
        if not _is_ending(records.get(job.cluster), job):
            return {"ok": True, "gone": True, "missing": []}
        return {"ok": True, "gone": False, "missing": self._dependencies.removals.describe_missing(job)}

    def _running(self, request: RunningRequest) -> SocketAnswer:
        listed = {cluster for cluster, _ in request.clusters}
        with self._missing_lock:
            missing = find_missing_jobs(
                self._dependencies.records.all(), listed, self._missing, self._clock(), self._dependencies.grace_s
            )
            self._missing = missing
        for job in missing.overdue:
            log.warning("job_missing", cluster=job.cluster, attempt=job.attempt, head=job.head)
            self._end_missing(job)
        return OK_ANSWER

    def _end_missing(self, job: JobRecord) -> None:
        """End the run and cluster of a missing job if its script runs on this host. Otherwise, delete the job's record.

        If the script runs on another host, that host's agent ends the cluster. In this case, also delete the files of
        an earlier attempt whose script ran on this host.
        """
        if not job.head:
            self._last_results.pop(job.run, None)
            try:
                self._dependencies.script_access.close(job)
            except Refused as error:  # the record stays: at the next list of jobs, the agent tries again
                log.warning("access_not_closed", cluster=job.cluster, error=error)
                return
            self._dependencies.records.change(job.cluster, lambda known: forget_run(known, job.run))
            return
        with suppress(Gone):  # another thread has announced a later run
            self._end_run(job.run, "its job is missing from the batch system's list of jobs")

    def _end_run(self, run: JobRunId, reason: str) -> JobRecord:
        job = self._dependencies.records.change(run.cluster, lambda known: record_end(known, run, reason))
        self._last_results.pop(job.run, None)
        return job

    def _reset_missing_since(self, job: JobRecord) -> None:
        with self._missing_lock:
            self._missing.since.pop(job.run, None)


def _is_ending(known: JobRecord | None, job: JobRecord) -> bool:
    return known is not None and known.is_same_run(job) and known.phase is RecordPhase.LEAVING


def _format_record(job: JobRecord) -> SocketAnswer:
    recorded = start_barrier.evaluate_record(job)
    state = recorded.state if recorded else BarrierState.UP if job.was_up else BarrierState.WAITING
    listed = {"cluster": job.cluster, "attempt": job.attempt, "state": state, "head": job.head, "user": job.user}
    return {**listed, "leaving": job.phase is RecordPhase.LEAVING}
