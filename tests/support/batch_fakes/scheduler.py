from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.errors import Gone, SchedulerUnavailable, VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import ClusterView
from virtcloud.scheduler.command import CommandResult
from virtcloud.scheduler.job_states import JobPhase, SchedulerJob, SchedulerServer, job_cluster_key

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
SERVER = SchedulerServer("pbssrv", empty=False)
SPEC = ClusterSpec.model_validate({"owner": "alice", "hosts": ["brno-h1"]})


def job(number: int, phase: JobPhase = JobPhase.RUNNING, attempt: int | None = 1, **fields: object) -> SchedulerJob:
    """Return a job that requests a cluster and has a walltime of an hour."""
    fields = {"walltime_s": 3600, "wants_cluster": True, "description": f"is {phase}", **fields}
    return SchedulerJob(key=job_cluster_key(str(number), SERVER), phase=phase, attempt=attempt, **fields)  # type: ignore[arg-type]


def cluster(
    key: str,
    state: ClusterState = ClusterState.ACTIVE,
    attempt: int = 1,
    lease_s: float = 7200,
    created_by: str | None = "scheduler@pbssrv",
) -> ClusterView:
    return ClusterView(
        key=ClusterKey(key),
        id=f"id-{key}-{attempt}",
        attempt=attempt,
        version=1,
        state=state,
        vlans={},
        lease_ends=NOW + timedelta(seconds=lease_s),
        spec=SPEC,
        created_by=created_by,
    )


class FakeScheduler:
    """A batch system with some jobs. It reports every unknown job as gone."""

    def __init__(self, *jobs: SchedulerJob) -> None:
        self.known = {job.key: job for job in jobs}
        self.failing: str | None = None
        self.empty = False
        self.hosts: Collection[str] = ()
        self.queried: list[set[str]] = []

    def server(self) -> SchedulerServer:
        self._check()
        return SchedulerServer(SERVER.name, self.empty)

    def jobs(self, server: SchedulerServer, numbers: Collection[str]) -> Mapping[ClusterKey, SchedulerJob]:
        self._check()
        self.queried.append(set(numbers))
        gone = {job_cluster_key(number, server): job(int(number), JobPhase.GONE, None) for number in numbers}
        return gone | {key: job for key, job in self.known.items() if key in gone or job.phase is JobPhase.RUNNING}

    def nodes(self) -> Mapping[str, str]:
        self._check()
        return {name: name for name in self.hosts}

    def _check(self) -> None:
        if self.failing:
            raise SchedulerUnavailable(self.failing)


class FakeClusterApi:
    """An SBF that stores clusters and records calls."""

    def __init__(self, *clusters: ClusterView) -> None:
        self.stored = {cluster.key: cluster for cluster in clusters}
        self.failing: VirtcloudError | None = None
        self.refusing: VirtcloudError | None = None
        self.ended: list[tuple[str, int | None]] = []
        self.extended: list[tuple[str, float]] = []
        self.stored_topology: Topology | None = None

    def clusters(self, owner: str | None = None, *, ended: bool = False) -> list[ClusterView]:
        if self.failing:
            raise self.failing
        return list(self.stored.values())

    def delete_cluster(self, key: str, attempt: int | None = None, owner: str | None = None) -> ClusterView:
        self._check()
        view = self.stored[ClusterKey(key)]
        if owner not in {None, view.spec.owner}:
            raise Gone(f"cluster {key} belongs to {view.spec.owner}, not to {owner}")
        if attempt is not None and attempt < view.attempt:
            raise Gone(f"cluster {key}: attempt {attempt} has ended")
        self.ended.append((key, attempt))
        self.stored[view.key] = view.model_copy(update={"state": ClusterState.DRAINING})
        return view

    def extend_lease(
        self, key: str, seconds: float, attempt: int | None = None, owner: str | None = None
    ) -> ClusterView:
        self._check()
        view = self.stored[ClusterKey(key)]
        if (attempt, owner) != (view.attempt, view.spec.owner):
            raise Gone(f"cluster {key}: attempt {attempt} of {owner} has ended")
        self.extended.append((key, seconds))
        self.stored[view.key] = view.model_copy(update={"lease_ends": NOW + timedelta(seconds=seconds)})
        return view

    def topology(self) -> Topology:
        assert self.stored_topology is not None
        return self.stored_topology

    def _check(self) -> None:
        if self.refusing:
            raise self.refusing


class FakeLog:
    """Stores the names of events, and the names and subjects of alerts."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        self.events.append(event)

    def warning(self, event: str, **fields: object) -> None:
        self.events.append(" ".join([event, *(str(fields[key]) for key in ("alert", "about") if key in fields)]))

    def exception(self, event: str, **fields: object) -> None:
        self.events.append(event)


class FakeClocks:
    """A monotonic clock and the time of day. ``seconds`` advances both; ``set_by`` changes only the time of day."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.set_by = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds - 1000 + self.set_by)


class FakeCommands:
    """Runs no commands. Records each command, and returns the result for the longest matching prefix."""

    def __init__(self, answers: Mapping[str, tuple[int, str, str]]) -> None:
        """Store ``answers``: a prefix of a command line -> (exit code, stdout, stderr)."""
        self.answers = dict(answers)
        self.lines: list[str] = []

    def __call__(self, command: Sequence[str]) -> CommandResult:
        line = " ".join(command)
        self.lines.append(line)
        longest = max((prefix for prefix in self.answers if line.startswith(prefix)), key=len)
        return CommandResult(longest, *self.answers[longest])
