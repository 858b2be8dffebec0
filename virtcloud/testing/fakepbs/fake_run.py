"""One run of a job. The hook events have the order that was measured on OpenPBS 23.06 with three hosts."""

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
    """No action: the server has already acted, or the server receives no report."""


@dataclass(frozen=True, slots=True)
class RunEnding:
    """The end of a run. ``next`` is the server's next action. If ``obit`` is true, the server runs the jobobit hook."""

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
    ended_by_server: bool = False
    """Whether the server ended the run without a report from the hosts."""
    script: "subprocess.Popen[bytes] | None" = None
    _env: dict[str, str] = field(default_factory=dict)

    @property
    def first_host(self) -> FakeHost:
        """The first host."""
        return self.hosts[0]

    @property
    def sisters(self) -> Sequence[FakeHost]:
        """The other hosts."""
        return self.hosts[1:]

    def run_to_end(self) -> RunEnding:
        """Run all events and the script until the run has ended."""
        return self._begin() or self._prologue() or self._launch() or self._script()

    def _begin(self) -> RunEnding | None:
        outcome = self.hook(self.first_host, "execjob_begin", self.record)
        if not outcome.accepted:
            # The first host gets no abort and no end event, and the server runs no jobobit.
            next_action = AfterRun.FINISH if outcome.delete else AfterRun.REQUEUE
            return RunEnding(
                next_action,
                FAILED_STATUS if outcome.delete else None,
                obit=False,
                comment=REFUSED_BY_HOST,
                failed_start=True,
            )
        if not self.first_host.alive and not self.ended_by_server:
            # The host died while the server was sending the job.
            return RunEnding(AfterRun.REQUEUE, obit=False, failed_start=True)
        outcomes = self._run_on_each(self.sisters, "execjob_begin")
        accepted_hosts = [
            host for host, outcome in zip(self.sisters, outcomes, strict=True) if outcome.accepted and host.alive
        ]
        if len(accepted_hosts) == len(self.sisters):
            return self._ending_without_report()
        return self._aborted(accepted_hosts, delete=any(outcome.delete for outcome in outcomes if not outcome.accepted))

    def _prologue(self) -> RunEnding | None:
        outcome = self.hook(self.first_host, "execjob_prologue", self.record)
        if self.ended_by_server and outcome.accepted and self.first_host.alive:
            self.hook(self.first_host, "execjob_launch", self.record)  # the job is deleted: its script does not run
        return self._ending_without_report() or (
            None if outcome.accepted else self._aborted(self.sisters, delete=outcome.delete)
        )

    def _launch(self) -> RunEnding | None:
        with ThreadPoolExecutor(1) as pool:
            prologues = pool.submit(self._run_on_each, self.sisters, "execjob_prologue")
            outcome = self.hook(self.first_host, "execjob_launch", self.record)
            refused = [prologue for prologue in prologues.result() if not prologue.accepted]
        if not outcome.accepted:
            return self._aborted(self.sisters, delete=not outcome.rerun)
        self._env = dict(outcome.env or {})
        if refused:
            return self._aborted(self.sisters, delete=any(prologue.delete for prologue in refused))
        return self._ending_without_report()

    def _script(self) -> RunEnding:
        self.script = self.first_host.start(
            self.record.submission.script, self._env, self.record.stdout, self.record.stderr
        )
        status = self.script.wait()
        return self._ending_without_report() or self._ended(status if status >= 0 else BY_SIGNAL - status)

    def _ended(self, status: int) -> RunEnding:
        self._run_on_each(self.sisters, "execjob_preterm")
        self._run_on_each(self.sisters, "execjob_epilogue")
        self.hook(self.first_host, "execjob_epilogue", self.record)
        self._run_on_each(self.hosts, "execjob_end")
        if self.rerun and not self.deleted:
            return self._ending_without_report() or RunEnding(AfterRun.REQUEUE, RERUN_STATUS)
        return self._ending_without_report() or RunEnding(AfterRun.FINISH, status)

    def _aborted(self, sisters: Iterable[FakeHost], *, delete: bool) -> RunEnding:
        for event in ("execjob_abort", "execjob_epilogue"):
            self.hook(self.first_host, event, self.record)
        self._run_on_each(sisters, "execjob_abort")
        self.hook(self.first_host, "execjob_end", self.record)
        if delete:
            return self._ending_without_report() or RunEnding(AfterRun.FINISH, FAILED_STATUS)
        return self._ending_without_report() or RunEnding(AfterRun.REQUEUE, RERUN_STATUS, failed_start=True)

    def delete(self) -> None:
        """Apply ``qdel``: the first host runs the preterm event. A prologue that waits is not interrupted."""
        self.deleted = True
        self.hook(self.first_host, "execjob_preterm", self.record)
        self._kill()

    def requeue(self) -> None:
        """Apply ``qrerun``: end the script. The hooks of the run's end follow."""
        self.rerun = True
        self._kill()

    def delete_by_force(self) -> None:
        """Apply ``qdel -W force``: the hosts run the end event.

        A waiting prologue continues, and then the launch event runs.
        """
        self.ended_by_server = True
        self._kill()
        self._run_on_each([*self.sisters, self.first_host], "execjob_end")

    def _kill(self) -> None:
        """Send SIGTERM to the script now, and SIGKILL after ``kill_delay`` seconds.

        A signal is omitted if no script has started when the signal is due.
        """
        self._signal(signal.SIGTERM)
        killer = threading.Timer(self.kill_delay, self._signal, (signal.SIGKILL,))
        killer.daemon = True
        killer.start()

    def _signal(self, number: signal.Signals) -> None:
        if self.script is not None:
            self.first_host.end(self.script, number)

    def _run_on_each(self, hosts: Iterable[FakeHost], event: str) -> list[HookOutcome]:
        host_list = list(hosts)
        if not host_list:
            return []
        with ThreadPoolExecutor(len(host_list)) as pool:
            return list(pool.map(lambda host: self.hook(host, event, self.record), host_list))

    def _ending_without_report(self) -> RunEnding | None:
        """Return the ending if no report reaches the server, otherwise None.

        The server receives no report if the job was deleted by force or if its first host died.
        """
        return FORGOTTEN if self.ended_by_server or not self.first_host.alive else None
