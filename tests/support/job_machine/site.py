"""A site: SBF with its devices, hosts with agents and MoMs, two servers of OpenPBS, and their reconciliation."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

from pydantic import SecretStr

from pbs_hooks.kit import sbf_client
from pbs_hooks.openpbs.hooks import runjob
from sbf_service.store.elements.elements import make_element_views
from support.batch_fakes.scheduler import FakeLog
from support.job_machine.agents import HTTP_TIMEOUT_S, SimulatedAgent, SimulatedTime, simulated_time
from support.job_machine.batch import SimulatedBatch
from support.job_machine.hooks import HookCalls, simulated_hooks
from support.job_machine.network import SbfNetwork, SimulatedTransport
from support.job_machine.runs import Mom, RunPhase, SimulatedRun
from support.job_machine.tasks import Life, Tasks
from support.job_machine.torque import TorqueHost
from support.sbf_fakes.world import STARTED, World, make_world
from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import Role
from virtcloud.scheduler.decision import GraceRules
from virtcloud.scheduler.job_reconciler import Clocks, JobReconciler
from virtcloud.scheduler.openpbs_adapter import OpenPbsScheduler
from virtcloud.testing.fakepbs.hook_event import HookEvent

HOSTS = ("brno-h1", "brno-h2", "praha-h1", "plzen-h1")
SERVERS = ("pbs1", "pbs2")
INTERVAL_S, LIST_S, HEARTBEAT_S = 60.0, 60.0, 100.0
"""The seconds between two rounds of reconciliation, two lists of jobs of a MoM, and two heartbeats of an agent."""


class JobSite:
    """The site. ``disturbed_at`` is the time of the last fault that can delay the end or the extension of a cluster."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.world: World = make_world(folder)
        stack.callback(self.world.close)
        self.world.furnish()
        self.tasks = Tasks(self._on_time)
        stack.callback(self.tasks.close)
        self.network = SbfNetwork(self.world, self.tasks)
        stack.callback(self.network.close)
        self.clock = SimulatedTime(self.tasks, STARTED.timestamp())
        self.agents = {name: SimulatedAgent(name, folder, self.network, STARTED.timestamp()) for name in HOSTS}
        self.moms = {name: Mom(name, agent, SERVERS[0]) for name, agent in self.agents.items()}
        stack.enter_context(simulated_time(self.clock, self.agents.values))
        stack.enter_context(simulated_hooks(self.clock, self.network, self._ask))
        self.hooks = HookCalls(folder, self.clock, self.world)
        self.batches = {
            name: SimulatedBatch(name, list(self.moms.values()), self.tasks, self.hooks, self.clock.time)
            for name in SERVERS
        }
        token = self.world.token(Role.SCHEDULER, "reconciliation")
        self._client = stack.enter_context(SbfClient("http://sbf", HTTP_TIMEOUT_S, token=lambda: SecretStr(token)))
        self._client._connection._http.get()._transport = SimulatedTransport(self.network, "reconciliation")
        self.torque = TorqueHost(HOSTS[0], folder, self.tasks, self.world, self._client)
        self.reconciles, self.uses_second_server = True, False
        self.log = FakeLog()
        self.reconcilers = {name: self._make_reconciler(name) for name in SERVERS}
        for agent in self.agents.values():
            agent.start()
            stack.callback(agent.close)
        self._disturbed_at = self._reconciled_at = 0.0
        self.tasks.run(0)

    def _on_time(self, now: float) -> None:
        self.world.clock.now = STARTED + timedelta(seconds=now)

    def _ask(self, path: str, request: dict[str, object], grace: float) -> dict[str, object]:
        return self.agents[Path(path).name].ask(request, grace)

    # Faults.

    def _make_reconciler(self, server: str) -> JobReconciler:
        clocks = Clocks(lambda: self.tasks.now, lambda: self.world.clock.now)
        rules = GraceRules(interval_s=INTERVAL_S)
        return JobReconciler(OpenPbsScheduler(self.batches[server].execute), self._client, rules, self.log, clocks)

    def restart_reconciliation(self) -> None:
        self.disturb()
        self.reconcilers = {name: self._make_reconciler(name) for name in SERVERS}

    def disturb(self) -> None:
        self._disturbed_at = self.tasks.now

    @property
    def disturbed_at(self) -> float:
        if not (self.reconciles and self.network.up and all(batch.up for batch in self.batches.values())):
            return self.tasks.now
        return max(self._disturbed_at, self.network.disturbed_at)

    def restart_server(self, name: str) -> None:
        """Start the server's process again, which forgets the state of the server hook."""
        self.batches[name].up = True
        runjob.forget_refusals()
        os.environ.pop(sbf_client.BREAKER_VARIABLE, None)

    def kill_mom(self, name: str) -> None:
        """Kill a MoM. The scripts on its host continue. The hooks and the starts of jobs on the host end."""
        mom = self.moms[name]
        if not mom.alive:
            return
        self.disturb()
        mom.alive, mom.died_at = False, self.tasks.now
        mom.life.dead = True
        for run in list(mom.jobs):
            if run.head is mom and run.phase is not RunPhase.SCRIPT:
                run.life.dead = True

    def start_mom(self, name: str, *, keeps_records: bool, server: str | None = None) -> None:
        """Start a MoM. The MoM ends the runs that its server no longer knows."""
        mom = self.moms[name]
        if mom.alive:
            return
        self.disturb()
        mom.alive, mom.life = True, Life()
        mom.server = server or mom.server
        self.uses_second_server = self.uses_second_server or mom.server != SERVERS[0]
        for run in list(mom.jobs):
            batch = self.batches[mom.server]
            is_known = batch.runs.get(run.record.id) is run
            if run.head is mom and (not keeps_records or (is_known and run.life.dead and not run.was_starting)):
                run.abandon()
                for one in self.batches.values():
                    one.requeue_without_hook(run)
            elif not keeps_records:
                mom.jobs.remove(run)
            elif not is_known:
                self._discard(mom, run)

    def _discard_ended_runs(self) -> None:
        """End runs whose end a MoM missed. PBS's server reports such runs when the MoM lists its jobs."""
        for mom in self.moms.values():
            for run in list(mom.jobs):
                is_known = self.batches[mom.server].runs.get(run.record.id) is run
                if mom.alive and run.over_at is not None and not is_known and self.tasks.now - run.over_at > LIST_S:
                    self._discard(mom, run)

    def _discard(self, mom: Mom, run: SimulatedRun) -> None:
        """End a run that the server does not know."""
        run.is_killed = True
        task = self.tasks.start(f"discard {run.copy.id}", lambda: run.run_event(mom, "execjob_end", run.record))
        task.lives.append(mom.life)

    def kill_host(self, name: str) -> None:
        """Cut the power of a host. Its relays end, and the files of jobs, which are in memory, are lost."""
        self.kill_mom(name)
        if name == self.torque.name:
            self.torque.reboot()
        agent = self.agents[name]
        agent.kill()
        agent.relays.clear()
        for path in list(agent.mounts.mounted_paths):
            agent.mounts.unmount(path)
        for run in list(self.moms[name].jobs):
            if run.head.name == name:
                run.life.dead = run.is_killed = True
                if run.phase is RunPhase.SCRIPT:
                    run.phase = RunPhase.END
                    run.over_at = self.tasks.now

    # Time.

    def pass_time(self, seconds: float) -> None:
        end = self.tasks.now + seconds
        while self.tasks.now < end:
            step = min(INTERVAL_S / 2 if seconds <= 2 * INTERVAL_S else INTERVAL_S, end - self.tasks.now)
            self.tasks.run(self.tasks.now + step)
            self._converge()
            for batch in self.batches.values():
                batch.tick(step)
                batch.schedule()
            self._list_jobs()
            self._discard_ended_runs()
            self._reconcile()
            self.tasks.run(self.tasks.now)

    def _converge(self) -> None:
        if self.network.up:
            self.world.converge_switches()
            self._confirm_hosts()
            self.world.sweep()
            self.network.readings.clear()

    def _confirm_hosts(self) -> None:
        with self.world.store.read() as unit:
            views = make_element_views(unit)
        for view in views:
            if view.name in self.agents and self.agents[view.name].alive:
                age = None if view.last_seen is None else (self.world.clock.now - view.last_seen).total_seconds()
                if view.confirmed_revision != view.wanted_revision or age is None or age > HEARTBEAT_S:
                    self.world.confirm(view.name, view.wanted_revision)

    def _list_jobs(self) -> None:
        for mom in self.moms.values():
            if mom.alive and self.tasks.now - mom.listed_at >= LIST_S:
                mom.listed_at = self.tasks.now
                jobs = tuple(run.describe(mom) for run in mom.jobs)
                event = HookEvent("exechost_periodic", job_list=jobs, node=mom.name, server=mom.server)
                self.tasks.start(f"list of {mom.name}", partial(self.hooks.run, event)).lives.append(mom.life)

    def _reconcile(self) -> None:
        if self.tasks.now - self._reconciled_at >= INTERVAL_S and self.reconciles:
            self._reconciled_at = self.tasks.now
            for name, reconciler in self.reconcilers.items():
                if name == SERVERS[0] or self.uses_second_server:
                    reconciler.run_round()


@contextmanager
def job_site(folder: Path) -> Iterator[JobSite]:
    with ExitStack() as stack:
        yield JobSite(folder, stack)
