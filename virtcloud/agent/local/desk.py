"""Answers requests: one call of :meth:`Desk.answer` each, from many threads at once."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from virtcloud.agent import log
from virtcloud.agent.local import barrier
from virtcloud.agent.local.absence import absent
from virtcloud.agent.local.barrier import Standing, Verdict
from virtcloud.agent.local.job import Job, Phase, announced, asked_for, cancelled, forgotten, leaving
from virtcloud.agent.local.ledger import Ledger
from virtcloud.agent.local.places import Places
from virtcloud.agent.local.removals import Removals
from virtcloud.agent.local.requests import AskState, Cancel, ListJobs, Remove, Request, Run, Running, Up
from virtcloud.agent.local.watch import Watch
from virtcloud.model.errors import Gone, Refused

Answer = dict[str, Any]
DONE: Answer = {"ok": True}


@dataclass(frozen=True, slots=True)
class Office:
    """What the desk works with. ``wake`` lets the converger look at once; ``grace_s`` lies between two misses."""

    ledger: Ledger
    places: Places
    removals: Removals
    watch: Callable[[], Watch]
    wake: Callable[[], None]
    grace_s: float


class Desk:
    """The answers."""

    def __init__(self, office: Office, clock: Callable[[], float] = time.monotonic) -> None:
        """Work with ``office``; ``clock`` counts seconds."""
        self._office = office
        self._clock = clock
        self._told: dict[Run, Standing] = {}
        self._missed: dict[Run, float] = {}
        self._counting = threading.Lock()
        self._closing = threading.Event()

    def close(self) -> None:
        """Let who waits wait no longer."""
        self._closing.set()
        self._office.ledger.wake()

    def answer(self, request: Request) -> Answer:
        """Do what is asked and say so; raises the model's exceptions. Everything may be repeated."""
        match request:
            case Up():
                return self._up(request)
            case AskState():
                return self._state(request)
            case Cancel():
                return self._cancel(request)
            case Remove():
                return self._remove(request)
            case Running():
                return self._running(request)
            case ListJobs():
                return {"ok": True, "clusters": [_listed(job) for job in self._office.ledger.all()]}

    def _up(self, request: Up) -> Answer:
        job = self._office.ledger.change(request.cluster, lambda known: announced(known, request))
        self._is_there(job)
        self._office.wake()
        log.info("up", cluster=request.cluster, attempt=request.attempt, head=request.head)
        return DONE

    def _state(self, request: AskState) -> Answer:
        ends = self._clock() + request.wait
        with self._office.watch() as watch:
            while True:
                job = asked_for(self._office.ledger.get(request.cluster), request.run)
                self._is_there(job)
                standing = barrier.of_job(job) or watch.look(job, ends - self._clock())
                news = standing.verdict is not Verdict.WAITING or standing != self._told.get(job.run)
                if news or self._clock() >= ends or self._closing.is_set():
                    self._told[job.run] = standing
                    return self._said(job, standing, watch)

    def _said(self, job: Job, standing: Standing, watch: Watch) -> Answer:
        facts: dict[str, str] = {}
        if standing.verdict is Verdict.UP and watch.view and watch.site:
            try:
                facts = self._office.places.facts(job, watch.view, watch.site)
            except Refused as error:
                standing = Standing(Verdict.FAILED, reason=str(error))
            standing = self._given_up(job) or standing
        if standing.verdict is not Verdict.WAITING:
            log.info("state", cluster=job.cluster, attempt=job.attempt, state=standing.verdict, reason=standing.reason)
        said = {"state": standing.verdict, "missing": list(standing.missing), "reason": standing.reason}
        return {"ok": True, **said, "facts": facts if standing.verdict is Verdict.UP else {}}

    def _given_up(self, job: Job) -> Standing | None:
        """Look once more: another thread may have been told so while guests were asked."""
        return barrier.of_job(asked_for(self._office.ledger.get(job.cluster), job.run))

    def _cancel(self, request: Cancel) -> Answer:
        self._office.ledger.change(request.cluster, lambda known: cancelled(known, request.run, request.reason))
        log.info("cancelled", cluster=request.cluster, attempt=request.attempt, reason=request.reason)
        return DONE

    def _remove(self, request: Remove) -> Answer:
        ledger = self._office.ledger
        job = self._leave(request.run, "its job ended")
        ledger.wait(lambda known: self._closing.is_set() or not _leaves(known, job), job.cluster, request.wait)
        if not _leaves(ledger.get(job.cluster), job):
            return {"ok": True, "gone": True, "missing": []}
        return {"ok": True, "gone": False, "missing": self._office.removals.missing(job)}

    def _running(self, request: Running) -> Answer:
        """Compare; runs that are missed for the second time, a grace period after the first, are removed."""
        present = {cluster for cluster, _ in request.clusters}
        with self._counting:
            found = absent(self._office.ledger.all(), present, self._missed, self._clock(), self._office.grace_s)
            self._missed = found.since
        for job in found.overdue:
            log.warning("missed", cluster=job.cluster, attempt=job.attempt, head=job.head)
            self._lose(job)
        return DONE

    def _lose(self, job: Job) -> None:
        """Let the cluster of a lost script end; what only had guests here is another host's to end."""
        if not job.head:
            self._told.pop(job.run, None)
            self._office.ledger.change(job.cluster, lambda known: forgotten(known, job.run))
            return
        with suppress(Gone):  # a later run came in the meantime
            self._leave(job.run, "the batch system does not have its job any more")

    def _leave(self, run: Run, reason: str) -> Job:
        job = self._office.ledger.change(run.cluster, lambda known: leaving(known, run, reason))
        self._told.pop(job.run, None)
        return job

    def _is_there(self, job: Job) -> None:
        """Somebody waits for it: it is not missed, whatever the batch system's list says."""
        with self._counting:
            self._missed.pop(job.run, None)


def _leaves(known: Job | None, job: Job) -> bool:
    return known is not None and known.is_run(job) and known.phase is Phase.LEAVING


def _listed(job: Job) -> Answer:
    """Say what is known without asking anybody."""
    here = barrier.of_job(job)
    state = here.verdict if here else Verdict.UP if job.was_up else Verdict.WAITING
    listed = {"cluster": job.cluster, "attempt": job.attempt, "state": state, "head": job.head, "user": job.user}
    return {**listed, "leaving": job.phase is Phase.LEAVING}
