"""Looking now and then whether all of the scheduler's nodes are hosts that SBF can give a cluster to."""

from collections.abc import Callable

from virtcloud.model.errors import VirtcloudError
from virtcloud.scheduler.alerts import Alert, AlertName
from virtcloud.scheduler.nodes import unfit
from virtcloud.scheduler.ports import Clusters, Scheduler
from virtcloud.scheduler.settings import SchedulerKeys


class NodeWatch:
    """Remembers what it found until it is time to look again."""

    def __init__(
        self, scheduler: Scheduler, clusters: Clusters, keys: SchedulerKeys, monotonic: Callable[[], float]
    ) -> None:
        """Look for the first time when first asked."""
        self._scheduler = scheduler
        self._clusters = clusters
        self._keys = keys
        self._monotonic = monotonic
        self._next: float | None = None
        self._found: tuple[Alert, ...] = ()

    def alerts(self) -> tuple[Alert, ...]:
        """Give what is wrong with nodes, and what kept this from being found out; raises nothing of SBF's."""
        now = self._monotonic()
        if self._next is None or now >= self._next:
            self._found = self._look()
            self._next = now + self._keys.nodes_interval
        return self._found

    def _look(self) -> tuple[Alert, ...]:
        try:
            found = unfit(self._scheduler.nodes(), self._clusters.topology(), self._keys.hosts, self._keys.apart)
        except VirtcloudError as error:
            return (Alert(AlertName.NODES_UNREAD, "nodes", str(error)),)
        return tuple(found)
