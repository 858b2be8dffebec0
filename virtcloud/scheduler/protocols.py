"""What reconciliation needs of a batch system, of SBF and of a log, in our words."""

from collections.abc import Collection, Mapping
from typing import Protocol

from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import ClusterView
from virtcloud.scheduler.job_states import SchedulerJob, SchedulerServer


class Scheduler(Protocol):
    """A batch system; each call raises SchedulerSilent when the answer failed, was late, or is not whole."""

    def server(self) -> SchedulerServer:
        """Say which server answers."""

    def jobs(self, server: SchedulerServer, asked: Collection[str]) -> Mapping[ClusterKey, SchedulerJob]:
        """Give every job whose number is ``asked``, whatever became of it, and those that run and want a cluster."""

    def nodes(self) -> Collection[str]:
        """Give the hosts that jobs run on."""


class ClusterApi(Protocol):
    """SBF."""

    def clusters(self, owner: str | None = None, *, ended: bool = False) -> list[ClusterView]:
        """Give the clusters that have not ended."""

    def delete_cluster(self, key: str, attempt: int | None = None, owner: str | None = None) -> ClusterView:
        """End a cluster; raises Gone when a later attempt than ``attempt``, or another ``owner``, has its key."""

    def extend_lease(
        self, key: str, seconds: float, attempt: int | None = None, owner: str | None = None
    ) -> ClusterView:
        """Extend a cluster's lease to at least ``seconds`` from now; raises Gone as ``delete_cluster``."""

    def topology(self) -> Topology:
        """Give what there is; raises NotFound before it was said."""


class Log(Protocol):
    """Events with their fields."""

    def info(self, event: str, **fields: object) -> None:
        """Log what went as it should."""

    def warning(self, event: str, **fields: object) -> None:
        """Log what did not."""

    def exception(self, event: str, **fields: object) -> None:
        """Log what should never have been, with its traceback."""
