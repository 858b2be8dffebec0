from collections.abc import Iterable

from support.job_machine.batch import SimulatedBatch
from support.job_machine.checks import JobChecks
from support.job_machine.network import CallFault
from support.job_machine.runs import RunPhase, SimulatedRun
from support.job_machine.site import HOSTS, SERVERS, JobSite
from virtcloud.model.errors import VirtcloudError
from virtcloud.testing.fakepbs.batch_system import BatchSubmission
from virtcloud.testing.fakepbs.fake_job import FakeJob, count_chunks

ROUNDS = 40
Action = tuple[object, ...]


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
        """Submit an array that requests a cluster. The hook refuses it unless the request is a queue's default."""
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
        end, longest = self.site.tasks.now + seconds, 30.0 if seconds <= 120 else 60.0
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
        """Deliver an earlier call again, as a network that repeats packets does."""
        sent = self.site.network.sent
        if len(sent) > back and self.site.network.up:
            self.site.disturb()
            self.site.network.deliver(sent[-1 - back])

    def start_a_torque_job(self, user: str) -> None:
        self.site.torque.start(user)

    def end_the_torque_job(self) -> None:
        self.site.torque.end()

    def expire_an_alarm(self, index: int) -> None:
        """Interrupt a waiting hook, as the hook's alarm does when it expires."""
        waiting = [run for batch in self.batches.values() for run in batch.runs.values() if run.phase is RunPhase.START]
        for run in waiting[index : index + 1]:
            run.interrupt()

    # The end.

    def recover(self) -> None:
        """After all faults end, all jobs run to their end, and no trace of them remains."""
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
