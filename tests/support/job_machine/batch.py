"""A simulated server of OpenPBS with its MoMs. Hooks run as on the fake PBS (`virtcloud.testing.fakepbs`)."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from support.job_machine.hooks import HookCalls
from support.job_machine.runs import PRERUN, RUNNING, Mom, RunPhase, SimulatedRun
from support.job_machine.tasks import Task, Tasks
from virtcloud.scheduler.command import CommandResult
from virtcloud.testing.fakepbs.batch_system import BatchJobState, BatchSubmission
from virtcloud.testing.fakepbs.fake_job import FakeJob, count_chunks
from virtcloud.testing.fakepbs.fake_run import AfterRun, RunEnding
from virtcloud.testing.fakepbs.hook_event import HookEvent, HookJob, HookOutcome

NODE_FAIL_REQUEUE_S = 310.0
WAITING_STATES = (BatchJobState.QUEUED, BatchJobState.WAITING)


class SimulatedBatch:
    """The server. ``outcomes`` are the outcomes of the server hook by event. ``runs`` are the current runs by job."""

    def __init__(
        self, name: str, moms: Sequence[Mom], tasks: Tasks, hooks: HookCalls, now: Callable[[], float]
    ) -> None:
        self.name, self.moms, self.tasks, self.hooks, self.now = name, moms, tasks, hooks, now
        self.up = True
        self.number = 0
        self.records: dict[str, FakeJob] = {}
        self.runs: dict[str, SimulatedRun] = {}
        self.former: list[SimulatedRun] = []
        self.outcomes: list[tuple[str, str, HookOutcome]] = []

    # Requests of users.

    def submit(self, user: str, hosts: int, request: str | None, walltime_s: int, *, array: bool = False) -> str | None:
        """Submit a job. Return its id, or None if the hook rejected the job."""
        resources = {"select": f"{hosts}:ncpus=1", "place": "scatter:excl", "walltime": _format_seconds(walltime_s)}
        resources |= {"vcluster": request} if request else {}
        record = FakeJob(
            f"{self.number}.{self.name}", BatchSubmission(user=user), resources, {"PBS_O_HOST": "x"}, Path("/nowhere")
        )
        submitted = replace(record.at_submission(), attributes=array_attributes(record, array=array))
        outcome = self._run_server_hook("queuejob", record, submitted)
        if not outcome.accepted:
            return None
        self.number += 1
        record.apply_server_hook(outcome)
        self.records[record.id] = record
        return record.id

    def add_from_queue(self, record: FakeJob) -> None:
        """Add a job of an array. The job's request comes from the defaults of a queue."""
        self.records[record.id] = record

    def alter(self, record: FakeJob, resources: dict[str, str]) -> bool:
        before, change = record.at_server(), HookJob(record.id, resources=resources)
        outcome = self._run_server_hook("modifyjob", record, change, before)
        if outcome.accepted:
            for name, text in resources.items():
                record.resources[name] = text
            record.apply_server_hook(outcome)
        return outcome.accepted

    def delete(self, record: FakeJob, *, force: bool) -> None:
        run = self.runs.get(record.id)
        if run is None:
            self._forget(record)
        elif force:
            self._end_run_by_server(run)
            self._forget(record)
            self._start(run, run.delete_by_force)
        elif run.phase in {RunPhase.START, RunPhase.SCRIPT} and run.head.alive:
            self._start(run, run.delete)

    def rerun(self, record: FakeJob, *, force: bool) -> None:
        run = self.runs.get(record.id)
        if run is None:
            return
        if force:
            self._end_run_by_server(run)
            self._start(run, run.delete_by_force)
            record.set_waiting_state(self.now())
        elif run.head.alive and run.phase is RunPhase.SCRIPT:
            run.requeue()

    # The server.

    def schedule(self) -> None:
        if self.up:
            for record in list(self.records.values()):
                self._try_to_run(record)

    def _try_to_run(self, record: FakeJob) -> None:
        if record.state in WAITING_STATES:
            record.set_waiting_state(self.now())
        hosts = self._find_free_moms(count_chunks(record.resources["select"]))
        if record.state is not BatchJobState.QUEUED or hosts is None:
            return
        before = record.hosts
        record.hosts = tuple(mom.name for mom in hosts)
        outcome = self._run_server_hook("runjob", record, record.at_server())
        record.apply_server_hook(outcome)
        if not outcome.accepted:
            record.hosts, record.comment = before, outcome.message
            record.set_waiting_state(self.now())
            return
        record.run_version += 1
        record.state = BatchJobState.RUNNING
        run = SimulatedRun(record, hosts, self.tasks, self.hooks.run, record.submission.user)
        run.duration_s = 1e9
        self.runs[record.id] = run
        run.task = self._start(run, lambda: self._process_obit(run, run.run_to_end()))
        run.task.lives.append(run.life)

    def _find_free_moms(self, count: int) -> list[Mom] | None:
        taken = {name for job in self.runs for name in self.records[job].hosts}
        free = [mom for mom in self.moms if mom.alive and mom.server == self.name and mom.name not in taken]
        return free[:count] if len(free) >= count else None

    def _start(self, run: SimulatedRun, work: Callable[[], object]) -> Task:
        return self.tasks.start(f"run {run.copy.run_version} of {run.copy.id}", work)

    def _process_obit(self, run: SimulatedRun, ending: RunEnding) -> None:
        run.phase = RunPhase.OVER
        if not self.up:
            self.tasks.sleep(1e9, lambda: self.up)
        record = run.record
        if ending.next is AfterRun.FORGET or self.runs.get(record.id) is not run:
            return
        if ending.obit:
            self._run_server_hook("jobobit", record, record.at_server())
        self._drop(run)
        if ending.next is AfterRun.FINISH:
            self._forget(record)
            return
        record.failed_starts += ending.failed_start
        record.set_waiting_state(self.now())

    def _end_run_by_server(self, run: SimulatedRun) -> None:
        run.ended_by_server = True
        self._run_server_hook("jobobit", run.record, run.record.at_server())
        self._drop(run)

    def _drop(self, run: SimulatedRun) -> None:
        del self.runs[run.record.id]
        self.former.append(run)
        run.over_at = self.tasks.now

    def _forget(self, record: FakeJob) -> None:
        record.state = BatchJobState.FINISHED
        self.records.pop(record.id, None)

    def requeue_without_hook(self, run: SimulatedRun) -> None:
        """Queue a job again because its MoM does not know the job. PBS runs no hook."""
        if self.runs.get(run.record.id) is run:
            self._drop(run)
            run.record.set_waiting_state(self.now())

    def lose_database(self) -> None:
        """Replace the server by a new server without jobs. The MoMs end the jobs that this server does not know."""
        for run in list(self.runs.values()):
            run.ended_by_server = True
            self._drop(run)
            self._start(run, run.delete_by_force)
        self.records.clear()
        self.number = 0

    def tick(self, seconds: float) -> None:
        """Advance the used time of scripts, kill scripts at their walltime, and requeue jobs of dead hosts."""
        for run in list(self.runs.values()):
            if run.runs_script and not run.is_suspended:
                run.used_s += seconds
                if run.used_s >= _parse_seconds(run.record.resources["walltime"]):
                    run.is_killed = True
            if self.up and not run.head.alive and self.tasks.now - run.head.died_at > NODE_FAIL_REQUEUE_S:
                self._end_run_by_server(run)
                run.record.set_waiting_state(self.now())

    def _run_server_hook(self, kind: str, record: FakeJob, job: HookJob, before: HookJob | None = None) -> HookOutcome:
        requestor = record.submission.user if kind in {"queuejob", "modifyjob"} else ""
        outcome = self.hooks.run(
            HookEvent(kind, job, before, node=self.name, server=self.name, requestor=requestor, alarm=60)
        )
        self.outcomes.append((record.id, kind, outcome))
        return outcome

    # Commands.

    def execute(self, command: Sequence[str]) -> CommandResult:
        text = " ".join(command[:4])
        if not self.up:
            return CommandResult(text, 111, "", f"cannot connect to server {self.name}, error=111")
        if "-B" in command:
            described = {"server_state": "Active", "total_jobs": len(self.records)}
            return CommandResult(text, 0, json.dumps({"Server": {self.name: described}}), "")
        if command[0] == "qselect":
            wanted = [job for job in self.runs if "vcluster" in self.records[job].resources]
            return CommandResult(text, 0, "".join(f"{job}\n" for job in wanted), "")
        ids = [f"{number}.{self.name}" for number in command[4:]]
        unknown = [f"qstat: Unknown Job Id {job}\n" for job in ids if job not in self.records]
        jobs = {job: self._describe(self.records[job]) for job in ids if job in self.records}
        return CommandResult(text, 153 if unknown else 0, json.dumps({"Jobs": jobs}), "".join(unknown))

    def _describe(self, record: FakeJob) -> dict[str, object]:
        run = self.runs.get(record.id)
        state = str(record.state)
        if run is not None:
            state = "S" if run.is_suspended else "E" if run.phase is RunPhase.END else "R"
        return {
            "job_state": state,
            "substate": PRERUN if run is not None and run.phase is RunPhase.START else RUNNING,
            "run_version": record.run_version,
            "Resource_List": record.resources,
            "resources_used": {"walltime": _format_seconds(int(run.used_s) if run else 0)},
        }


def array_attributes(record: FakeJob, *, array: bool) -> dict[str, str | int]:
    attributes = dict(record.at_submission().attributes)
    return attributes | ({"array_indices_submitted": "1-2"} if array else {})


def _format_seconds(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _parse_seconds(text: str) -> int:
    hours, minutes, seconds = map(int, text.split(":"))
    return hours * 3600 + minutes * 60 + seconds
