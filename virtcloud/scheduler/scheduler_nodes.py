"""Finds nodes of a batch system that are not hosts in SBF's topology. Jobs on these nodes could get no cluster."""

from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import fnmatchcase

from virtcloud.jobs.host_names import element_of_host
from virtcloud.model.element import ElementKind, kind_of
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.scheduler.decision import Alert, AlertName
from virtcloud.scheduler.protocols import ClusterApi, Scheduler
from virtcloud.scheduler.scheduler_settings import SchedulerSettings

REMEDY = "add it to the topology, name it in [scheduler.hosts], or list it in 'apart'"


def find_unfit_nodes(
    nodes: Collection[str], topology: Topology, names: Mapping[str, str], apart: Collection[str]
) -> list[Alert]:
    """Return an alert for each node that is not a host in the topology.

    ``names`` and ``apart`` are the settings ``hosts`` and ``apart``.
    """
    asked = sorted(one for one in nodes if not any(fnmatchcase(one, pattern) for pattern in apart))
    return [alert for node in asked for alert in _check_node(node, element_of_host(node, names), topology)]


def _check_node(node: str, element: str, topology: Topology) -> Iterator[Alert]:
    found = next((one for name, one in topology.elements.items() if name == element), None)
    if found is None or kind_of(found) is not ElementKind.HOST:
        what = "nothing of that name" if found is None else f"a {kind_of(found)} of that name"
        text = f"host {node} is {element} to SBF, which knows {what}: {REMEDY}"
        yield Alert(AlertName.HOST_UNKNOWN, node, text)


class NodeWatch:
    """Checks the nodes at the interval ``nodes_interval``. Between two checks, the alerts of the last check apply."""

    def __init__(
        self, scheduler: Scheduler, clusters: ClusterApi, keys: SchedulerSettings, monotonic: Callable[[], float]
    ) -> None:
        """Create the watch. The first call checks the nodes."""
        self._scheduler = scheduler
        self._clusters = clusters
        self._keys = keys
        self._monotonic = monotonic
        self._next: float | None = None
        self._found: tuple[Alert, ...] = ()

    def alerts(self) -> tuple[Alert, ...]:
        """Return the alerts about nodes. A failed check is also an alert."""
        now = self._monotonic()
        if self._next is None or now >= self._next:
            self._found = self._look()
            self._next = now + self._keys.nodes_interval
        return self._found

    def _look(self) -> tuple[Alert, ...]:
        try:
            found = find_unfit_nodes(
                self._scheduler.nodes(), self._clusters.topology(), self._keys.hosts, self._keys.apart
            )
        except VirtcloudError as error:
            return (Alert(AlertName.NODES_UNREAD, "nodes", str(error)),)
        return tuple(found)
