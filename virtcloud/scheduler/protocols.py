"""The interfaces through which reconciliation uses a batch system, SBF and a log."""

from collections.abc import Collection, Mapping
from typing import Protocol

from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import ClusterView
from virtcloud.scheduler.job_states import SchedulerJob, SchedulerServer


class Scheduler(Protocol):
    """A batch system. Every call raises SchedulerUnavailable if the answer is an error, late or incomplete."""

    def server(self) -> SchedulerServer:
        """Return the batch system's server."""

    def jobs(self, server: SchedulerServer, numbers: Collection[str]) -> Mapping[ClusterKey, SchedulerJob]:
        """Return the jobs with these numbers, in any state, and all running jobs that requested a cluster."""

    def nodes(self) -> Mapping[str, str]:
        """Return the host name of each node of the batch system, by the node's name, with or without a running job."""


class ClusterApi(Protocol):
    """The calls of SBF that reconciliation needs."""

    def clusters(self, owner: str | None = None, *, ended: bool = False) -> list[ClusterView]:
        """Return the running clusters of all owners, or only the running clusters of ``owner``.

        If ``ended`` is true, return the newest clusters, running or ended.
        """

    def delete_cluster(self, key: str, attempt: int | None = None, owner: str | None = None) -> ClusterView:
        """Delete a cluster. Raise Gone if a later attempt, or a cluster of another owner, has the key now."""

    def extend_lease(
        self, key: str, seconds: float, attempt: int | None = None, owner: str | None = None
    ) -> ClusterView:
        """Extend a cluster's lease to at least ``seconds`` from now.

        Raise Gone if a later attempt, or a cluster of another owner, has the key now.
        """

    def topology(self) -> Topology:
        """Return the topology. Raise NotFound if SBF has no topology yet."""


class Log(Protocol):
    """A log of events with fields."""

    def info(self, event: str, **fields: object) -> None:
        """Log an expected event."""

    def warning(self, event: str, **fields: object) -> None:
        """Log a fault."""

    def exception(self, event: str, **fields: object) -> None:
        """Log an unexpected error with its traceback."""
