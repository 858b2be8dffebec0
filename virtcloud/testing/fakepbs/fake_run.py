"""One run of a job: its hook events in the order measured on an OpenPBS 23.06 with three hosts."""

import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from virtcloud.testing.fakepbs.fake_job import FakeJob
from virtcloud.testing.fakepbs.hook_event import HookOutcome
from virtcloud.testing.fakepbs.hook_runner import FakeHost

if TYPE_CHECKING:
    import subprocess

FAILED_STATUS = -17
RERUN_STATUS = -16
BY_SIGNAL = 256
REFUSED_BY_HOST = "Not Running: PBS Error: Execution server rejected request"

HookRunner = Callable[[FakeHost, str, FakeJob], HookOutcome]


class AfterRun(StrEnum):
    """The server's action after a run."""

    FINISH = "finish"
    REQUEUE = "requeue"
    FORGET = "forget"
    """No action: the server has already acted, or it receives no report."""


@dataclass(frozen=True, slots=True)
class RunEnding:
    """The result of a run. ``obit``: whether the server calls ``jobobit``."""

    next: AfterRun
    exit_status: int | None = None
    obit: bool = True
    comment: str | None = None
    failed_start: bool = False


FORGOTTEN = RunEnding(AfterRun.FORGET, obit=False)


@dataclass(slots=True)
class FakeRun:
    """A run of the job ``record`` on ``hosts``. The script runs on the first host."""

    record: FakeJob
    hosts: Sequence[FakeHost]
    hook: HookRunner
    kill_delay: float
    deleted: bool = False
    rerun: bool = False
    over: bool = False
    """True if the server ended the run without a report of the hosts."""
    script: "subprocess.Popen[bytes] | None" = None
    _env: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> FakeHost:
        """The first host."""
        return self.hosts[0]

    @property
    def sisters(self) -> Sequence[FakeHost]:
        """The other hosts."""
        return self.hosts[1:]

    def play(self) -> RunEnding:
        """Run all events and the script. Return when the run has ended."""
        return self._begin() or self._prologue() or self._launch() or self._script()

    def _begin(self) -> RunEnding | None:
        outcome = self.hook(self.head, "execjob_begin", self.record)
        if not outcome.accepted:
            # The first host gets no abort and no end event, and the server runs no jobobit.
            where = AfterRun.FINISH if outcome.delete else AfterRun.REQUEUE
            return RunEnding(
                where, FAILED_STATUS if outcome.delete else None, obit=False, comment=REFUSED_BY_HOST, failed_start=True
            )
        if not self.head.alive and not self.over:
            # The host died while the server was sending the job.
            return RunEnding(AfterRun.REQUEUE, obit=False, failed_start=True)
        outcomes = self._each(self.sisters, "execjob_begin")
        began = [host for host, outcome in zip(self.sisters, outcomes, strict=True) if outcome.accepted and host.alive]
        if len(began) == len(self.sisters):
            return self._lost()
        return self._aborted(began, delete=any(one.delete for one in outcomes if not one.accepted))

    def _prologue(self) -> RunEnding | None:
        outcome = self.hook(self.head, "execjob_prologue", self.record)
        if self.over and outcome.accepted and self.head.alive:
            self.hook(self.head, "execjob_launch", self.record)  # the job is deleted: its script does not run
        return self._lost() or (None if outcome.accepted else self._aborted(self.sisters, delete=outcome.delete))

    def _launch(self) -> RunEnding | None:
        with ThreadPoolExecutor(1) as pool:
            prologues = pool.submit(self._each, self.sisters, "execjob_prologue")
            outcome = self.hook(self.head, "execjob_launch", self.record)
            refused = [one for one in prologues.result() if not one.accepted]
        if not outcome.accepted:
            return self._aborted(self.sisters, delete=not outcome.rerun)
        self._env = dict(outcome.env or {})
        if refused:
            return self._aborted(self.sisters, delete=any(one.delete for one in refused))
        return self._lost()

    def _script(self) -> RunEnding:
        self.script = self.head.start(self.record.wanted.script, self._env, self.record.stdout, self.record.stderr)
        status = self.script.wait()
        return self._lost() or self._ended(status if status >= 0 else BY_SIGNAL - status)

    def _ended(self, status: int) -> RunEnding:
        self._each(self.sisters, "execjob_preterm")
        self._each(self.sisters, "execjob_epilogue")
        self.hook(self.head, "execjob_epilogue", self.record)
        self._each(self.hosts, "execjob_end")
        if self.rerun and not self.deleted:
            return self._lost() or RunEnding(AfterRun.REQUEUE, RERUN_STATUS)
        return self._lost() or RunEnding(AfterRun.FINISH, status)

    def _aborted(self, sisters: Iterable[FakeHost], *, delete: bool) -> RunEnding:
        """Run the events of a start that a host rejected."""
        for event in ("execjob_abort", "execjob_epilogue"):
            self.hook(self.head, event, self.record)
        self._each(sisters, "execjob_abort")
        self.hook(self.head, "execjob_end", self.record)
        if delete:
            return self._lost() or RunEnding(AfterRun.FINISH, FAILED_STATUS)
        return self._lost() or RunEnding(AfterRun.REQUEUE, RERUN_STATUS, failed_start=True)

    def delete(self) -> None:
        """Apply ``qdel``: the first host runs preterm. A prologue that waits there continues."""
        self.deleted = True
        self.hook(self.head, "execjob_preterm", self.record)
        self._kill()

    def requeue(self) -> None:
        """Apply ``qrerun``. No hook is called."""
        self.rerun = True
        self._kill()

    def drop(self) -> None:
        """Apply ``qdel -W force``: the hosts run the end event. A prologue that waits continues, and launch follows."""
        self.over = True
        self._kill()
        self._each([*self.sisters, self.head], "execjob_end")

    def _kill(self) -> None:
        """Terminate the running script now and kill it after the delay. A script that starts later is not killed."""
        self._signal(signal.SIGTERM)
        killer = threading.Timer(self.kill_delay, self._signal, (signal.SIGKILL,))
        killer.daemon = True
        killer.start()

    def _signal(self, number: signal.Signals) -> None:
        if self.script is not None:
            self.head.end(self.script, number)

    def _each(self, hosts: Iterable[FakeHost], event: str) -> list[HookOutcome]:
        """Run the hook of an event on several hosts at the same time."""
        several = list(hosts)
        if not several:
            return []
        with ThreadPoolExecutor(len(several)) as pool:
            return list(pool.map(lambda host: self.hook(host, event, self.record), several))

    def _lost(self) -> RunEnding | None:
        """Return the ending of a run without a report: the job was deleted by force, or its first host died."""
        return FORGOTTEN if self.over or not self.head.alive else None
