"""Finds nodes of a batch system that are not hosts in SBF's topology. A job on such a node cannot get a cluster."""

from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import fnmatchcase

from virtcloud.jobs.host_names import element_of_host
from virtcloud.model.element import ElementKind, kind_of
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.scheduler.decision import Alert, AlertName
from virtcloud.scheduler.protocols import ClusterApi, Scheduler
from virtcloud.scheduler.scheduler_settings import SchedulerSettings

REMEDY = "add the host to the topology, set its name in [scheduler.hosts], or list the node in 'apart'"
ALERT_SHARE = 0.1


def find_unfit_nodes(
    nodes: Mapping[str, str], topology: Topology, names: Mapping[str, str], apart: Collection[str]
) -> list[Alert]:
    """Return an alert for each node that is not a host in the topology. Skip nodes that match a pattern of ``apart``.

    ``nodes`` maps nodes to their host names. ``names`` is the setting ``hosts``, which maps nodes to their names in
    SBF's topology. Both ``names`` and ``apart`` can contain names of nodes and host names.
    """
    alerts: list[Alert] = []
    for node, host in sorted(nodes.items()):
        if not any(fnmatchcase(name, pattern) for name in (node, host) for pattern in apart):
            element = names.get(node) or names.get(host) or element_of_host(node, names)
            alerts.extend(_check_node(node, element, topology))
    return alerts


def _check_node(node: str, name: str, topology: Topology) -> Iterator[Alert]:
    element = {str(key): element for key, element in topology.elements.items()}.get(name)
    if element is None or kind_of(element) is not ElementKind.HOST:
        observed = "no such element" if element is None else f"a {kind_of(element)}"
        text = f"node {node}: expected host {name} in SBF's topology, found {observed}: {REMEDY}"
        yield Alert(AlertName.HOST_UNKNOWN, node, text)


class NodeWatch:
    """Checks the nodes at the interval ``nodes_interval``. Between two checks, the alerts of the last check apply.

    After a check with alerts, the next check follows after ``ALERT_SHARE`` of the interval, so that an alert ends soon.
    """

    def __init__(
        self, scheduler: Scheduler, clusters: ClusterApi, keys: SchedulerSettings, monotonic: Callable[[], float]
    ) -> None:
        """Create the watch. The first call of ``alerts`` checks the nodes."""
        self._scheduler = scheduler
        self._clusters = clusters
        self._keys = keys
        self._monotonic = monotonic
        self._next: float | None = None
        self._alerts: tuple[Alert, ...] = ()

    def alerts(self) -> tuple[Alert, ...]:
        """Return the alerts about nodes. A failed check is also an alert."""
        now = self._monotonic()
        if self._next is None or now >= self._next:
            self._alerts = self._check()
            self._next = now + self._keys.nodes_interval * (ALERT_SHARE if self._alerts else 1)
        return self._alerts

    def _check(self) -> tuple[Alert, ...]:
        try:
            alerts = find_unfit_nodes(
                self._scheduler.nodes(), self._clusters.topology(), self._keys.hosts, self._keys.apart
            )
        except VirtcloudError as error:
            return (Alert(AlertName.NODES_UNREAD, "nodes", str(error)),)
        return tuple(alerts)
