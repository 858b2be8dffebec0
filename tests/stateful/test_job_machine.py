"""Tests of batch jobs and their clusters under any sequence of users' actions, faults, kills and restarts.

The hooks of OpenPBS, the agents' job sockets, SBF and the reconciliation are real. PBS, the network between the
programs, and the time are simulated. The seeds are fixed.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from exploration import list_seeds
from job_machine.batch import SimulatedBatch
from job_machine.checks import JobChecks
from job_machine.network import CallFault
from job_machine.runs import RunPhase, SimulatedRun
from job_machine.site import HOSTS, SERVERS, JobSite, job_site
from simulation.planting import plant

from virtcloud.agent.job_socket import job_records, removals, request_handler
from virtcloud.model.errors import VirtcloudError
from virtcloud.scheduler import decision
from virtcloud.testing.fakepbs.batch_system import BatchSubmission
from virtcloud.testing.fakepbs.fake_job import FakeJob, count_chunks

STEPS, ROUNDS = 40, 40
Action = tuple[object, ...]
YES_OR_NO, INDEX, USERS = (True, False), range(6), ("daemon", "bin")
REQUESTS = (None, "image=x", "image=x", "image=x", "image=x:name=mine", "image=x:net=mine", "image=x:guests=2")
CALLERS = ("server hook", "server hook", "reconciliation", *(f"agent {name}" for name in HOSTS[:2]))
RULES = {
    "submit": (18, (USERS, (1, 1, 1, 2, 2, 3), REQUESTS, (600, 3600), YES_OR_NO)),
    "submit_an_array": (1, (USERS, YES_OR_NO)),
    "pass_time": (28, ((0.5, 2.0, 10.0, 30.0, 30.0, 60.0, 60.0, 120.0, 120.0, 400.0),)),
    "pass_a_long_time": (1, ()),
    "end_a_script": (4, (INDEX,)),
    "delete": (6, (INDEX, (False, False, False, True))),
    "rerun": (4, (INDEX, (False, False, True))),
    "suspend": (2, (INDEX,)),
    "change_walltime": (2, (INDEX, (600, 7200))),
    "end_the_cluster": (1, (INDEX,)),
    "kill_a_mom": (3, (HOSTS,)),
    "start_a_mom": (5, (HOSTS, (True, True, False))),
    "reboot": (2, (HOSTS,)),
    "move_a_host": (1, (HOSTS, SERVERS)),
    "stop_or_start_a_server": (3, (SERVERS,)),
    "lose_the_database": (1, (SERVERS,)),
    "kill_an_agent": (4, (HOSTS,)),
    "plan_an_agents_death": (6, (HOSTS, range(1, 9))),
    "start_an_agent": (8, (HOSTS,)),
    "restart_sbf": (1, ()),
    "stop_or_start_sbf": (3, ()),
    "stop_or_start_reconciliation": (1, ()),
    "disturb_a_call": (8, (CALLERS, tuple(CallFault))),
    "deliver_late_calls": (4, ()),
    "repeat_a_call": (4, (range(40),)),
    "start_a_torque_job": (4, (USERS,)),
    "end_the_torque_job": (2, ()),
    "expire_an_alarm": (1, (INDEX,)),
}
"""The weight of each rule, and the choices for its arguments."""


def draw_actions(seed: int, steps: int = STEPS) -> list[Action]:
    """Return a random sequence of actions. The first word of an action is the name of a method of `JobRules`."""
    random = Random(seed)
    weights = {name: weight for name, (weight, _) in RULES.items()}
    drawn = random.choices(list(weights), list(weights.values()), k=steps)
    return [(name, *(random.choice(choices) for choices in RULES[name][1])) for name in drawn]


class JobRules:
    """The actions of users, administrators, PBS, the network and the machines."""

    def __init__(self, site: JobSite) -> None:
        self.site, self.checks = site, JobChecks(site)
        self.batches = site.batches

    def run(self, actions: Iterable[Action]) -> None:
        for name, *arguments in actions:
            getattr(self, str(name))(*arguments)
            self.site.tasks.run(self.site.tasks.now)
            self.checks.check()
        self.recover()

    # Users.

    def submit(self, user: str, hosts: int, request: str | None, walltime_s: int, second: bool) -> None:
        batch = self.batches[SERVERS[second and any(mom.server == SERVERS[1] for mom in self.site.moms.values())]]
        if batch.up and len(batch.records) < 5:
            batch.submit(user, hosts, request, walltime_s)

    def submit_an_array(self, user: str, from_queue: bool) -> None:
        """Submit an array, whose request the hook refuses, or which gets its request from the defaults of a queue."""
        batch = self.batches[SERVERS[0]]
        if batch.up and not from_queue:
            assert batch.submit(user, 1, "image=x", 600, array=True) is None
        elif batch.up:
            resources = {"select": "1:ncpus=1", "place": "scatter:excl", "walltime": "00:10:00", "vcluster": "image=x"}
            batch.number += 1
            name = f"{batch.number - 1}[1].{batch.name}"
            batch.add_from_queue(FakeJob(name, BatchSubmission(user=user), resources, {}, self.site.folder))

    def delete(self, index: int, force: bool) -> None:
        for batch, record in self._choose_job(index):
            batch.delete(record, force=force)

    def rerun(self, index: int, force: bool) -> None:
        for batch, record in self._choose_job(index):
            batch.rerun(record, force=force)

    def change_walltime(self, index: int, seconds: int) -> None:
        for batch, record in self._choose_job(index):
            batch.alter(record, {"walltime": f"{seconds // 3600:02}:{seconds // 60 % 60:02}:00"})

    def end_a_script(self, index: int) -> None:
        for run in self._choose_run(index):
            run.duration_s = 0

    def suspend(self, index: int) -> None:
        for run in self._choose_run(index):
            run.is_suspended = not run.is_suspended

    def end_the_cluster(self, index: int) -> None:
        """End a job's cluster by ``virtcloud cluster delete``."""
        for run in self._choose_run(index):
            try:
                view = self.site.world.delete(run.copy.id, run.copy.run_version, run.user)
            except VirtcloudError:
                continue
            self.site.network.readings.clear()
            self.checks.deleted.add((view.key, view.attempt))

    def _choose_job(self, index: int) -> list[tuple[SimulatedBatch, FakeJob]]:
        jobs = [(batch, job) for batch in self.batches.values() if batch.up for job in batch.records.values()]
        return [jobs[index % len(jobs)]] if jobs else []

    def _choose_run(self, index: int) -> list[SimulatedRun]:
        runs = [run for batch in self.batches.values() for run in batch.runs.values() if run.runs_script]
        return [runs[index % len(runs)]] if runs else []

    # Machines and programs.

    def pass_time(self, seconds: float) -> None:
        end, longest = self.site.tasks.now + seconds, 30.0 if seconds <= 120 else 60.0  # noqa: PLR2004 - seconds
        while self.site.tasks.now < end:
            self.site.pass_time(min(longest, end - self.site.tasks.now))
            self.checks.check()

    def kill_a_mom(self, host: str) -> None:
        self.site.kill_mom(host)

    def start_a_mom(self, host: str, keeps_records: bool) -> None:
        self.site.start_mom(host, keeps_records=keeps_records)

    def pass_a_long_time(self) -> None:
        self.pass_time(1800)

    def reboot(self, host: str) -> None:
        self.site.kill_host(host)
        self.site.agents[host].start()
        self.site.start_mom(host, keeps_records=True)

    def move_a_host(self, host: str, server: str) -> None:
        """Connect a host to another server. The administrator installs its MoM again."""
        self.site.kill_mom(host)
        self.site.start_mom(host, keeps_records=False, server=server)

    def stop_or_start_a_server(self, name: str) -> None:
        self.site.disturb()
        if self.batches[name].up:
            self.batches[name].up = False
        else:
            self.site.restart_server(name)

    def lose_the_database(self, name: str) -> None:
        if self.batches[name].up:
            self.site.disturb()
            self.site.restart_server(name)
            self.batches[name].lose_database()

    def kill_an_agent(self, host: str) -> None:
        self.site.disturb()
        self.site.agents[host].kill()

    def plan_an_agents_death(self, host: str, effects: int) -> None:
        self.site.disturb()
        self.site.agents[host].kill_after = effects

    def start_an_agent(self, host: str) -> None:
        self.site.disturb()
        self.site.agents[host].start()

    def restart_sbf(self) -> None:
        self.site.disturb()
        self.site.network.restart()

    def stop_or_start_sbf(self) -> None:
        self.site.disturb()
        self.site.network.up = not self.site.network.up

    def stop_or_start_reconciliation(self) -> None:
        self.site.restart_reconciliation()
        self.site.reconciles = not self.site.reconciles

    def disturb_a_call(self, caller: str, fault: CallFault) -> None:
        self.site.network.faults[caller] = fault

    def deliver_late_calls(self) -> None:
        network = self.site.network
        while network.late and network.up:
            self.site.disturb()
            network.deliver(network.late.pop(0))

    def repeat_a_call(self, back: int) -> None:
        """Deliver an earlier call again, as a network does that repeats packets."""
        sent = self.site.network.sent
        if len(sent) > back and self.site.network.up:
            self.site.disturb()
            self.site.network.deliver(sent[-1 - back])

    def start_a_torque_job(self, user: str) -> None:
        self.site.torque.start(user)

    def end_the_torque_job(self) -> None:
        self.site.torque.end()

    def expire_an_alarm(self, index: int) -> None:
        """Let the alarm of a waiting hook expire."""
        waiting = [run for batch in self.batches.values() for run in batch.runs.values() if run.phase is RunPhase.START]
        for run in waiting[index : index + 1]:
            run.interrupt()

    # The end.

    def recover(self) -> None:
        """Without further faults, all jobs run to their end, and nothing of them remains."""
        site = self.site
        site.network.faults.clear()
        site.network.up = site.reconciles = True
        self.deliver_late_calls()
        for name in HOSTS:
            site.agents[name].kill_after = None
            site.agents[name].start()
            site.start_mom(name, keeps_records=True)
        for name in SERVERS:
            site.restart_server(name)
        site.disturb()
        for _ in range(ROUNDS):
            if all(job.hold != "n" for batch in self.batches.values() for job in batch.records.values()):
                break
            self.pass_time(60)
            for batch in self.batches.values():
                self.let_runs_end(batch)
        left = [(job.id, job.state, job.comment) for one in self.batches.values() for job in one.records.values()]
        assert all(job.hold != "n" for one in self.batches.values() for job in one.records.values()), left
        site.torque.end()
        for pause in [60] * ROUNDS + [600] * ROUNDS:
            if not self.checks.find_remnants():
                break
            self.pass_time(pause)
        self.pass_time(200)
        assert not (remnants := self.checks.find_remnants()), remnants

    def let_runs_end(self, batch: SimulatedBatch) -> None:
        for record in list(batch.records.values()):
            # The network of the job may have ended, and the job's hosts may have moved to the other server.
            hosts = sum(mom.server == batch.name for mom in self.site.moms.values())
            lacks_hosts = count_chunks(record.resources["select"]) > hosts
            if record.id not in batch.runs and (lacks_hosts or "net=" in record.resources.get("vcluster", "")):
                batch.delete(record, force=False)
        for run in list(batch.runs.values()):
            run.is_suspended = False
            run.duration_s = min(run.duration_s, run.used_s + 60)
            if run.was_starting:
                batch.rerun(run.record, force=True)


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can change the owners of files")


def run(folder: Path, actions: Iterable[Action]) -> None:
    with job_site(folder) as site:
        JobRules(site).run(actions)


@pytest.mark.parametrize("seed", list_seeds(10))
def test_jobs_keep_their_clusters_and_clusters_end_with_jobs(tmp_path: Path, seed: int) -> None:
    run(tmp_path, draw_actions(seed))


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        ((job_records, "now - since[job.run] >= grace", "True"), "lost its cluster"),
        ((job_records, "if job.attempt != UNCOUNTED_ATTEMPT\n        and job", "if job"), "lost its cluster"),
        ((removals, "attempt=job.attempt or None", "attempt=None"), "lost its cluster"),
        ((decision, "and cluster.attempt < job.attempt", "and cluster.attempt < 0"), "outlives"),
        ((request_handler, "            self._end_missing(job)\n", "            pass\n"), "the access of an ended job"),
    ],
)
def test_a_planted_bug_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: tuple[ModuleType, str, str], message: str
) -> None:
    plant(monkeypatch, *planted)
    with pytest.raises(AssertionError, match=message):
        for seed in range(60):
            (of_seed := tmp_path / str(seed)).mkdir()
            run(of_seed, draw_actions(seed))
