"""A run of a job on simulated hosts, with the order of events of `FakeRun`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from support.job_machine.agents import SimulatedAgent
from support.job_machine.tasks import Killed, Life, Task, Tasks
from virtcloud.testing.fakepbs.fake_job import FakeJob
from virtcloud.testing.fakepbs.fake_run import FakeRun, RunEnding
from virtcloud.testing.fakepbs.hook_event import HookEvent, HookJob, HookOutcome
from virtcloud.testing.fakepbs.hook_runner import FakeHost

NOT_RUN = HookOutcome(accepted=True)
PRERUN, RUNNING = 41, 42
RunHook = Callable[[HookEvent], HookOutcome]


class RunPhase(StrEnum):
    """What a run does now."""

    START = "start"
    SCRIPT = "script"
    END = "end"
    OVER = "over"


class Mom(FakeHost):
    """The MoM of a host. ``jobs`` are the runs that the MoM knows, also after a restart that keeps its records."""

    def __init__(self, name: str, agent: SimulatedAgent, server: str) -> None:
        super().__init__(name)
        self.agent, self.server, self.life = agent, server, Life()
        self.jobs: list[SimulatedRun] = []
        self.died_at = 0.0
        self.listed_at = 0.0


class SimulatedRun(FakeRun):
    """A run with a copy of the job, as sent to the hosts. ``outcomes`` are the outcomes of the run's hooks."""

    def __init__(self, record: FakeJob, moms: Sequence[Mom], tasks: Tasks, run_hook: RunHook, user: str) -> None:
        super().__init__(record, moms, self.run_event, 1.0)
        self.moms, self.tasks, self.run_hook, self.user = moms, tasks, run_hook, user
        self.copy = replace(record)
        self.phase, self.life = RunPhase.START, Life()
        self.env: dict[str, str] = {}
        self.is_suspended = self.is_killed = False
        self.used_s = self.duration_s = 0.0
        self.over_at: float | None = None
        self.outcomes: list[tuple[str, str, HookOutcome]] = []
        self.task: Task | None = None
        self.was_interrupted = False
        self.deleted_at: float | None = None
        self.started_at: float | None = None

    @property
    def head(self) -> Mom:
        return self.moms[0]

    @property
    def runs_script(self) -> bool:
        return self.phase is RunPhase.SCRIPT and not self.is_killed

    def run_event(self, host: FakeHost, event: str, _record: FakeJob) -> HookOutcome:
        """Run the MoM hook of a host. Apply the hook's changes to the job, unless they do not reach the server."""
        mom = next(one for one in self.moms if one is host)
        if not mom.alive:
            return NOT_RUN
        if event == "execjob_begin":
            mom.jobs.append(self)
        outcome = self._run_hook(mom, event)
        over = "execjob_end" if mom is self.head else "execjob_abort"
        if event in {over, "execjob_end"} or (event == "execjob_begin" and not outcome.accepted):
            mom.jobs = [run for run in mom.jobs if run is not self]
        self.outcomes.append((mom.name, event, outcome))
        self.copy.apply_mom_hook(mom.name, outcome)
        if self.record.run_version == self.copy.run_version and not self.ended_by_server:
            self.record.apply_mom_hook(mom.name, outcome)
        return outcome

    def _run_hook(self, mom: Mom, kind: str) -> HookOutcome:
        job = self.describe(mom)
        event = HookEvent(kind, job, node=mom.name, server=mom.server, env={"PBS_JOBID": job.id}, alarm=600)
        task, life = self.tasks.current, mom.life
        assert task is not None
        task.lives.append(life)
        try:
            return self.run_hook(event)
        except Killed:
            if life.dead and not (self.life.dead and self.life in task.lives):
                return NOT_RUN
            raise
        finally:
            task.lives.remove(life)

    def describe(self, mom: Mom) -> HookJob:
        described = self.copy.at_host(mom.name)
        substate = PRERUN if self.phase is RunPhase.START else RUNNING
        return replace(described, attributes={**described.attributes, "substate": substate})

    def _run_on_each(self, hosts: Iterable[FakeHost], event: str) -> list[HookOutcome]:
        return [self.run_event(host, event, self.record) for host in hosts]

    def _launch(self) -> RunEnding | None:
        outcome = self.run_event(self.head, "execjob_launch", self.record)
        refused = [one for one in self._run_on_each(self.sisters, "execjob_prologue") if not one.accepted]
        if not outcome.accepted:
            return self._aborted(self.sisters, delete=not outcome.rerun)
        self.env = dict(outcome.env or {})
        if refused:
            return self._aborted(self.sisters, delete=any(one.delete for one in refused))
        return self._ending_without_report()

    def _script(self) -> RunEnding:
        """Run the script until it ends, is killed or has used its walltime.

        If the first host's MoM is dead when the script ends, wait for the restart of this MoM.
        """
        self.phase, self.started_at = RunPhase.SCRIPT, self.tasks.now
        self.tasks.sleep(1e9, lambda: self.is_killed or self.used_s >= self.duration_s)
        self.phase = RunPhase.END
        self.over_at = self.tasks.now
        if not self.head.alive:
            self.tasks.sleep(1e9, lambda: self.head.alive)
        return self._ending_without_report() or self._ended(0)

    def delete(self) -> None:
        self.deleted_at = self.tasks.now
        super().delete()

    def _kill(self) -> None:
        """Kill the script. A script that has not started yet still starts later, as measured with OpenPBS."""
        self.is_killed = self.is_killed or self.phase is RunPhase.SCRIPT

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the MoM hook that the run waits for, as the expired alarm of this hook does."""
        if self.task is not None and any(mom.life in self.task.lives for mom in self.moms):
            self.was_interrupted = True
            self.tasks.kill(self.task, KeyboardInterrupt())

    @property
    def was_starting(self) -> bool:
        """Whether the first MoM died during the job's start. As measured, PBS then waits for ``qrerun -W force``."""
        return self.life.dead and self.phase is RunPhase.START

    def abandon(self) -> None:
        """End all processes of the run without any event."""
        self.life.dead = self.is_killed = True
        self.phase = RunPhase.OVER
        for mom in self.moms:
            mom.jobs = [run for run in mom.jobs if run is not self]
