from datetime import timedelta

from sbf_service.store.clusters.cluster_lists import ClusterFilter, list_newest
from support.job_machine.runs import RunPhase, SimulatedRun
from support.job_machine.site import HOSTS, INTERVAL_S, SERVERS, JobSite
from virtcloud.agent.job_socket.job_records import RecordPhase
from virtcloud.agent.job_socket.removals import LOST_CHECK_S
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView
from virtcloud.testing.fakepbs.hook_event import HookOutcome

GRACE_S, GRACE_EMPTY_S = 120 + 3 * INTERVAL_S, 900 + 3 * INTERVAL_S
"""The seconds for which a cluster may outlive its job: the grace period and three rounds of reconciliation.

``GRACE_EMPTY_S`` applies after a server has had no jobs.
"""
JOB_GRACE_S = 300.0
LEASE_S = 1000.0
SETTLED_S = 200.0
"""The seconds within which a running job must have its relay.

After a job's end, its relay must be removed within ``JOB_GRACE_S`` plus this time.
"""
TORQUE_LEASE_S = 9000.0
"""The lease of a Torque job's cluster. If no program reports the job's end, the cluster ends with its lease."""
LATE = timedelta(seconds=60)
RETRY, HOLD = "; the job will be tried again", "; the job is held for the administrators"


class JobChecks:
    """The invariants. ``deleted`` are the clusters (key, attempt) that their owners ended, or whose lease ended."""

    def __init__(self, site: JobSite) -> None:
        self.site = site
        self.deleted: set[tuple[str, int]] = set()
        self._orphans: dict[str, float] = {}
        self._seen_outcomes: dict[str, int] = dict.fromkeys(SERVERS, 0)
        self._started: dict[int, str] = {}
        self._empty_at: dict[str, float] = dict.fromkeys(SERVERS, -GRACE_EMPTY_S)
        self._bad_access: dict[tuple[str, str], float] = {}

    def check(self) -> None:
        with self.site.world.store.read() as unit:
            views = list_newest(unit, ClusterFilter(ended=True), 1000)
        self.check_running(views)
        self.check_torque(views)
        self.check_ended(views)
        self.check_networks(views)
        self.check_access()
        self.check_hooks()

    def list_runs(self) -> list[SimulatedRun]:
        return [run for batch in self.site.batches.values() for run in batch.runs.values()]

    def check_running(self, views: list[ClusterView]) -> None:
        """Check that each running script has its cluster, unless the owner ended the cluster.

        After a fault, the lease may also have ended.
        """
        own = {(str(view.key), view.attempt, str(view.spec.owner)): view for view in views}
        for run in self.list_runs():
            if not run.runs_script or "vcluster" not in run.copy.resources:
                continue
            is_late = self._started_after_deletion(run)
            assert not is_late, f"{run.copy.id} runs although it was deleted"
            view = own.get((run.copy.id, run.copy.run_version, run.user))
            assert view is not None, f"{run.copy.id} runs as attempt {run.copy.run_version} without a cluster"
            if (view.key, view.attempt) in self.deleted or view.state in WANTED_STATES:
                continue
            if view.network is not None and (view.reason or "").startswith("its network"):
                continue  # members of a network end with the job that created the network
            assert view.lease_ends <= self.site.world.clock.now, f"{view.key} lost its cluster: {view.reason}"
            undisturbed = self.site.tasks.now - self.site.disturbed_at
            assert undisturbed < LEASE_S, f"{view.key}: the lease was not extended for {undisturbed} s"

    def _started_after_deletion(self, run: SimulatedRun) -> bool:
        """Return whether the script started after ``qdel``, although no fault could hide the deletion from the hook."""
        if run.started_at is None or run.deleted_at is None:
            return False
        return run.started_at > run.deleted_at > self.site.disturbed_at

    def check_torque(self, views: list[ClusterView]) -> None:
        """A running Torque job has a cluster until the cluster's lease ends."""
        job, now = self.site.torque.job, self.site.world.clock.now
        if job is not None and job.is_running:
            view = max((view for view in views if view.key == job.id), key=lambda view: view.attempt, default=None)
            assert view is not None, f"{job.id} runs without a cluster"
            kept = view.state in WANTED_STATES or view.lease_ends <= now
            assert kept, f"{view.key} lost its cluster: {view.reason}"

    def check_ended(self, views: list[ClusterView]) -> None:
        """Check that each cluster ends within the grace period after the end of its job's run."""
        now, orphans = self.site.tasks.now, {}
        runs = {(run.copy.id, run.copy.run_version, run.user) for run in self.list_runs()}
        torque = self.site.torque.job
        if torque is not None:
            runs |= {(torque.id, attempt, torque.user) for attempt in range(1, 20)}
        for name, batch in self.site.batches.items():
            if not batch.records:
                self._empty_at[name] = now
        for view in views:
            if view.key.endswith(".torque"):  # no reconciliation: the lease ends the cluster
                assert view.state not in WANTED_STATES or view.lease_ends > self.site.world.clock.now - LATE
            elif view.state in WANTED_STATES and (view.key, view.attempt, view.spec.owner) not in runs:
                orphans[view.id] = since = max(self._orphans.get(view.id, now), self.site.disturbed_at)
                was_empty = now - self._empty_at[view.key.partition(".")[2]] < GRACE_EMPTY_S
                limit = GRACE_EMPTY_S if was_empty else GRACE_S
                assert now - since <= limit, f"{view.key}, attempt {view.attempt} outlives its job by {now - since} s"
        self._orphans = orphans

    def check_networks(self, views: list[ClusterView]) -> None:
        """Check that each script has its cluster's network, and shares the network only with clusters that joined."""
        own = {(str(view.key), view.attempt, str(view.spec.owner)): view for view in views}
        vlans: dict[tuple[str, str], ClusterView] = {}
        for run in self.list_runs():
            view = own.get((run.copy.id, run.copy.run_version, run.user))
            if not run.runs_script or view is None or view.state not in WANTED_STATES:
                continue
            site = Name(run.head.name.partition("-")[0])
            assert run.env["VCLUSTER_ID"] == view.key
            assert run.env["VCLUSTER_VLAN"] == str(view.vlans[site]), f"{view.key} has another VLAN ID"
            for at, vlan in view.vlans.items():
                other = vlans.setdefault((at, str(vlan)), view)
                assert (other.network or other.key) == (view.network or view.key), f"{other.key} and {view.key}"

    def check_access(self) -> None:
        """A host has relays for exactly the jobs whose scripts run on this host."""
        now, bad = self.site.tasks.now, {}
        for name, agent in self.site.agents.items():
            running = {
                run.copy.id
                for run in self.list_runs()
                if run.runs_script and run.head.name == name and "vcluster" in run.copy.resources
            }
            torque = self.site.torque.job if name == self.site.torque.name else None
            running |= {torque.id} if torque is not None and torque.is_running else set()
            starting = {torque.id} if torque is not None else set()
            starting |= {run.copy.id for run in self.site.moms[name].jobs if run.phase is not RunPhase.OVER}
            missing = running - set(agent.relays)
            for key in missing | (set(agent.relays) - running - starting):
                since = max(self._bad_access.get((name, key), now), self.site.disturbed_at)
                bad[name, key] = since
                limit = SETTLED_S if key in missing else JOB_GRACE_S + SETTLED_S
                if key.endswith(".torque") and key not in missing:
                    limit = TORQUE_LEASE_S + LOST_CHECK_S
                kind = "no access" if key in missing else "the access of an ended job"
                assert now - since <= limit or not agent.alive, f"{name} has {kind} {key} for {now - since} s"
        self._bad_access = bad

    def check_hooks(self) -> None:
        for name, batch in self.site.batches.items():
            new = batch.outcomes[self._seen_outcomes[name] :]
            self._seen_outcomes[name] = len(batch.outcomes)
            for job, event, outcome in new:
                check_server_outcome(job, event, outcome)
            for run in (*batch.runs.values(), *batch.former[-20:]):
                while run.outcomes:
                    check_mom_outcome(run, *run.outcomes.pop())
            batch.former = batch.former[-20:]

    def find_remnants(self) -> list[str]:
        world = self.site.world
        with world.store.read() as unit:
            views = list_newest(unit, ClusterFilter(ended=True), 1000)
        found = [f"{view.key} {view.state}" for view in views if view.state in WANTED_STATES or view.vlans]
        for name in HOSTS:
            agent, mom = self.site.agents[name], self.site.moms[name]
            assert agent.records is not None
            left = [job for job in agent.records.all() if job.phase is not RecordPhase.GONE]
            if left or agent.relays or agent.mounts.mounted_paths or mom.jobs:
                found.append(f"{name}: {left} {agent.relays.keys()} {agent.mounts.mounted_paths} {mom.jobs}")
        return found + [name for name, switch in world.switches.found.items() if switch.carried()]


def check_server_outcome(job: str, event: str, outcome: HookOutcome) -> None:
    """The server hook answers within two seconds, and reports only documented errors."""
    about = f"{event} of {job}: {outcome}"
    assert outcome.failure is None, about
    assert outcome.seconds <= 2.1, about
    assert not any("Traceback" in text or "internal error" in text for _, text in outcome.log), about
    if event == "jobobit":
        assert outcome.accepted, about
    if event == "runjob" and not outcome.accepted:
        assert (
            "Execution_Time" in outcome.changed
            or outcome.changed.get("Hold_Types") == "u"
            or ("already" in str(outcome.message))
        ), about
        assert outcome.changed.get("Hold_Types") != "s", about


def check_mom_outcome(run: SimulatedRun, mom: str, event: str, outcome: HookOutcome) -> None:
    about = f"{event} of {run.copy.id} on {mom}: {outcome}"
    assert not any("Traceback" in text or "internal error" in text for _, text in outcome.log), about
    limit = {"execjob_begin": 15, "execjob_prologue": 560, "execjob_launch": 40, "execjob_end": 45}.get(event, 15)
    assert outcome.seconds <= limit, about
    if outcome.accepted:
        return
    assert event in {"execjob_begin", "execjob_prologue", "execjob_launch"}, about
    if outcome.failure is not None:
        assert run.was_interrupted, about
        return
    message = str(outcome.message)
    assert message.startswith("vcluster: "), about
    assert HOLD not in message, about
    assert outcome.delete == (not message.endswith(RETRY)), about
    if outcome.delete:
        assert run.deleted or "arrays are not supported" in message, about
    elif event == "execjob_launch":
        assert outcome.rerun, about
