"""A Torque MoM with virtcloud's real scripts, on a host that may also have a MoM of OpenPBS."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pbs_hooks.torque.scripts.script_entry import main
from support.batch_fakes.scheduler import FakeLog
from support.job_machine.tasks import Life, Task, Tasks
from support.sbf_fakes.world import World
from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import Role
from virtcloud.model.values import Name, UserName
from virtcloud.model.views import JobStatement
from virtcloud.scheduler.job_confirmation import confirm_requested_jobs
from virtcloud.scheduler.job_states import SchedulerServer

REQUEST = "image=x"
EXIT_CODES = {0, 1, 2}
"""The exit codes of a prologue: run the job, abort the job, queue the job again."""


@dataclass
class TorqueJob:
    """A job on one host. ``duration_s`` is the remaining time of its script."""

    id: str
    user: str
    life: Life
    task: Task | None = None
    is_running: bool = False
    duration_s: float = 1e9


class TorqueHost:
    """Torque on the host ``name``, with at most one job."""

    def __init__(self, name: str, folder: Path, tasks: Tasks, world: World, client: SbfClient) -> None:
        self.name, self.folder, self.tasks, self._client = name, folder, tasks, client
        self.job: TorqueJob | None = None
        self.number = 0
        token = folder / "torque.token"
        token.write_text(world.token(Role.JOB_STARTER, name))
        settings = f'"socket": "/run/{name}", "sbf": "http://sbf", "token_file": "{token}", "patience": 100'
        (folder / "torque.json").write_text(f'{{{settings}, "environments": "{folder}/env", "user_keys": false}}')
        (folder / "nodes").write_text(f"{name}\n")
        self._log = FakeLog()
        tasks.start("confirmations", self._confirm)

    def start(self, user: str) -> None:
        if self.job is None:
            self.job = job = TorqueJob(f"{self.number}.torque", user, Life())
            self.number += 1
            job.task = self.tasks.start(f"torque {job.id}", lambda: self._run(job))
            job.task.lives.append(job.life)

    def end(self) -> None:
        if self.job is not None:
            self.job.duration_s = 0

    def reboot(self) -> None:
        """Cut the host's power. Torque runs no epilogue for the job."""
        if self.job is not None:
            self.job.life.dead = True
            self.job = None

    def _run(self, job: TorqueJob) -> None:
        code = self._script("prologue", job)
        assert code in EXIT_CODES, f"the prologue of {job.id} ended with {code}"
        if code == 0:
            job.is_running, began = True, self.tasks.now
            self.tasks.sleep(1e9, lambda: self.tasks.now - began >= job.duration_s)
            job.is_running = False
        self._script("epilogue", job)
        self.job = None

    def _script(self, name: str, job: TorqueJob) -> int:
        common = [job.id, job.user, "users", "job.sh"]
        resources = f"nodes=1,walltime=02:00:00,vcluster={REQUEST}"
        arguments = (
            [*common, resources, "batch", ""] if name == "prologue" else [*common, "1", resources, "", "batch", "", "0"]
        )
        environment: Mapping[str, str] = {"PBS_NODEFILE": str(self.folder / "nodes"), "PBS_MSHOST": self.name}
        return main(name, arguments, environment, str(self.folder / "torque.json"))

    # The batch server.

    def server(self) -> SchedulerServer:
        return SchedulerServer("torque", empty=self.job is None)

    def describe_job(self, number: str, server: SchedulerServer, names: Mapping[str, str]) -> JobStatement:
        job = self.job
        if job is None or job.id != f"{number}.torque":
            return JobStatement(runs=False, words="is not known to torque")
        return JobStatement(runs=True, owner=UserName(job.user), hosts=(Name(self.name),))

    def _confirm(self) -> None:
        while True:
            self.tasks.sleep(1.0)
            if self.job is not None and not self.job.is_running:
                confirm_requested_jobs(self, self._client, {}, self._log)
