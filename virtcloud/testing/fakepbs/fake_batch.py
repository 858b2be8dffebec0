"""A small batch system, which calls a site's hooks for each job, in the same order as OpenPBS."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from virtcloud.testing.fakepbs.batch_system import (
    BatchJobState,
    BatchRefused,
    BatchSubmission,
    JobOutput,
    JobStatus,
    NoSuchJob,
    Pace,
    ServerStopped,
)
from virtcloud.testing.fakepbs.fake_job import FakeJob, count_chunks
from virtcloud.testing.fakepbs.fake_run import AfterRun, FakeRun, RunEnding
from virtcloud.testing.fakepbs.hook_calls import SERVER_NAME, HookCall, HookCallers, submission_variables
from virtcloud.testing.fakepbs.hook_event import HookJob, HookOutcome
from virtcloud.testing.fakepbs.hook_runner import FakeHost, HookDefinition

TOO_MANY = "job held, too many failed attempts to run"
HOOK_FAILED = "request rejected as filter hook '%s' encountered an exception. Please inform Admin"
REJECTED = "Not Running: PBS Error: %s"


class FakeBatch:
    """Implements the interfaces `Batch` and `Machines`. The end of a ``with`` block ends all processes of `FakeBatch`.

    Each chunk of a job's ``select`` gets a separate host. Hooks of the server run one at a time and block the server,
    as in PBS. Unlike in PBS, each run of a hook has a new interpreter.
    """

    def __init__(
        self,
        hosts: Sequence[FakeHost],
        folder: Path,
        *,
        server_hook: HookDefinition | None = None,
        mom_hook: HookDefinition | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Store the hosts, a folder for the output of jobs, and the hooks."""
        self._hosts = {host.name: host for host in hosts}
        self._folder = folder
        self._hooks = HookCallers(server_hook, mom_hook)
        self._pace = pace or Pace()
        self._records: dict[str, FakeJob] = {}
        self._runs: dict[str, FakeRun] = {}
        self._skipped_s = 0.0
        self._server_is_up = True
        self._closing = False
        self._server = threading.RLock()
        self._changed = threading.Condition(self._server)
        self._threads: list[threading.Thread] = []

    @property
    def seen(self) -> Sequence[HookCall]:
        """Return every hook call that has ended, in order."""
        return tuple(self._hooks.calls)

    def __enter__(self) -> Self:
        """Start the scheduler."""
        self._start_thread(self._schedule)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Kill every script, and wait for the end of every running hook."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for host in self._hosts.values():
            host.die()
        while self._threads:
            self._threads.pop().join()

    def submit(self, wanted: BatchSubmission) -> str:
        """Submit a job (``qsub``). If a hook rejects the job, raise BatchRefused with the hook's message."""
        with self._serve_request():
            identifier = f"{len(self._records)}.{SERVER_NAME}"
            resources = dict(wanted.resources)
            resources.update({key: text for key in ("select", "place", "walltime") if (text := getattr(wanted, key))})
            record = FakeJob(identifier, wanted, resources, submission_variables(wanted.user), self._folder)
            record.hold = "u" if wanted.held else "n"
            outcome = self._run_server_hook("queuejob", record, record.at_submission())
            self._apply_outcome(record, outcome)
            record.resources.setdefault("select", "1:ncpus=1")
            record.set_waiting_state(self._now())
            for file in (record.stdout, record.stderr):
                file.touch()
            self._records[identifier] = record
            return identifier

    def alter(self, job: str, resources: Mapping[str, str]) -> None:
        """Change resources (``qalter -l``).

        If a hook rejects the change, raise BatchRefused with the hook's message.
        """
        with self._serve_request():
            record = self._find_record(job)
            before = record.at_server()
            change = HookJob(job, resources=dict(resources))
            outcome = self._run_server_hook("modifyjob", record, change, before)
            requested = {f"Resource_List.{name}": text for name, text in resources.items()}
            self._apply_outcome(
                record, HookOutcome(outcome.accepted, outcome.message, outcome.failure, changed=requested)
            )
            record.apply_server_hook(outcome)

    def delete(self, job: str, *, force: bool = False) -> None:
        """Delete a job (``qdel``). No hook is called for a job that does not run."""
        with self._serve_request():
            record, run = self._find_record(job), self._runs.get(job)
            if record.state is BatchJobState.FINISHED:
                raise BatchRefused(f"Job has finished {job}")
            if record.state not in (BatchJobState.RUNNING, BatchJobState.EXITING):
                record.state = BatchJobState.FINISHED
            elif force or run is None:
                self._run_server_hook("jobobit", record, record.at_server())
                self._runs.pop(job, None)
                record.state, record.exit_status = BatchJobState.FINISHED, 265
                if run is not None:
                    self._start_thread(run.delete_by_force)
            else:
                self._start_thread(run.delete)

    def rerun(self, job: str) -> None:
        """End a running job and queue it again (``qrerun``)."""
        with self._serve_request():
            run = self._runs.get(job)
            if self._find_record(job).state is not BatchJobState.RUNNING or run is None:
                raise BatchRefused(f"Request invalid for state of job {job}")
            run.requeue()

    def status(self, job: str) -> JobStatus:
        """Return the status of a job."""
        with self._serve_request():
            return self._find_record(job).status()

    def output(self, job: str) -> JobOutput:
        """Return the content of the job's output files, to which hooks may also write."""
        with self._serve_request():
            record = self._find_record(job)
            return JobOutput(record.stdout.read_text(), record.stderr.read_text())

    def kill_host(self, name: str) -> None:
        """Kill a host. After a delay, the server requeues the jobs whose first host is this host."""
        self._hosts[name].die()
        for job, run in list(self._runs.items()):
            if run.first_host.name == name:
                timer = threading.Timer(self._pace.node_fail_requeue, self._requeue_after_host_death, (job, run))
                timer.daemon = True
                timer.start()

    def start_host(self, name: str) -> None:
        """Start a host and run its ``exechost_startup`` hook."""
        self._hosts[name].alive = True
        self._hooks.run_host_hook(self._hosts[name], "exechost_startup")
        with self._changed:
            self._changed.notify_all()

    def stop_server(self) -> None:
        """Stop the server. Requests raise ServerStopped. Reports of hosts wait until the server starts again."""
        with self._server:
            self._server_is_up = False

    def start_server(self) -> None:
        """Start the server again."""
        with self._changed:
            self._server_is_up = True
            self._changed.notify_all()

    def periodic(self) -> None:
        """Run the ``exechost_periodic`` hook of every host once."""
        for host in self._hosts.values():
            if host.alive:
                self._hooks.run_host_hook(host, "exechost_periodic", self._jobs_on(host))

    def skip(self, seconds: float) -> None:
        """Advance this batch system's clock, so that tests need not wait until a job's earliest start."""
        with self._changed:
            self._skipped_s += seconds
            self._changed.notify_all()

    def _now(self) -> float:
        return time.time() + self._skipped_s

    @contextmanager
    def _serve_request(self) -> Iterator[None]:
        with self._changed:
            if not self._server_is_up:
                raise ServerStopped(f"cannot connect to server {SERVER_NAME}")
            yield
            self._changed.notify_all()

    def _find_record(self, job: str) -> FakeJob:
        try:
            return self._records[job]
        except KeyError:
            raise NoSuchJob(f"Unknown Job Id {job}") from None

    def _apply_outcome(self, record: FakeJob, outcome: HookOutcome) -> None:
        if not outcome.accepted:
            raise BatchRefused(outcome.message or HOOK_FAILED % self._hooks.server_name)
        record.apply_server_hook(outcome)

    def _start_thread(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        self._threads.append(thread)
        thread.start()

    def _schedule(self) -> None:
        while not self._closing:
            with self._changed:
                for record in list(self._records.values()):
                    if self._server_is_up and not self._closing:
                        self._try_to_run(record)
                self._changed.wait(self._pace.cycle)

    def _try_to_run(self, record: FakeJob) -> None:
        if record.state in (BatchJobState.QUEUED, BatchJobState.WAITING):
            record.set_waiting_state(self._now())
        hosts = self._find_free_hosts(count_chunks(record.resources.get("select", "1")))
        if record.state is not BatchJobState.QUEUED or hosts is None:
            return
        before = record.hosts
        record.hosts = tuple(host.name for host in hosts)
        outcome = self._run_server_hook("runjob", record, record.at_server())
        record.apply_server_hook(outcome)
        if not outcome.accepted:
            record.hosts = before
            record.comment = REJECTED % (outcome.message or HOOK_FAILED % self._hooks.server_name)
            record.set_waiting_state(self._now())
            return
        record.run_version += 1
        record.state, record.comment = BatchJobState.RUNNING, "Job run on " + "+".join(record.hosts)
        run = FakeRun(record, hosts, self._hooks.run_job_hook, self._pace.kill_delay)
        self._runs[record.id] = run
        self._start_thread(lambda: self._process_obit(run, run.run_to_end()))

    def _find_free_hosts(self, count: int) -> list[FakeHost] | None:
        taken = {name for job in self._runs for name in self._records[job].hosts}
        free = [host for host in self._hosts.values() if host.alive and host.name not in taken]
        return free[:count] if len(free) >= count else None

    def _process_obit(self, run: FakeRun, ending: RunEnding) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._server_is_up or self._closing)
            if ending.next is AfterRun.FORGET or self._runs.get(run.record.id) is not run:
                return
            if ending.obit:
                self._run_server_hook("jobobit", run.record, run.record.at_server())
            del self._runs[run.record.id]
            self._apply_ending(run.record, ending)
            self._changed.notify_all()

    def _apply_ending(self, record: FakeJob, ending: RunEnding) -> None:
        record.exit_status = ending.exit_status
        record.comment = ending.comment or record.comment
        if ending.next is AfterRun.FINISH:
            record.state = BatchJobState.FINISHED
            return
        record.failed_starts += ending.failed_start
        if record.failed_starts > self._pace.failed_starts:
            record.hold, record.comment = "s", TOO_MANY
        record.set_waiting_state(self._now())

    def _requeue_after_host_death(self, job: str, run: FakeRun) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._server_is_up or self._closing)
            if self._closing or self._runs.get(job) is not run:
                return
            run.ended_by_server = True
            self._run_server_hook("jobobit", run.record, run.record.at_server())
            del self._runs[job]
            run.record.set_waiting_state(self._now())
            self._changed.notify_all()

    def _run_server_hook(self, event: str, record: FakeJob, job: HookJob, before: HookJob | None = None) -> HookOutcome:
        others = tuple(
            other.at_server() for other in self._records.values() if other.state is not BatchJobState.FINISHED
        )
        return self._hooks.run_server_hook(event, record, job, before, others)

    def _jobs_on(self, host: FakeHost) -> tuple[HookJob, ...]:
        runs = [run for run in self._runs.values() if host in run.hosts]
        return tuple(run.record.at_host(host.name) for run in runs)
