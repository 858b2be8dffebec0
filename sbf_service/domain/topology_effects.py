"""The effects of a new topology on live clusters. Pure.

SBF computes these effects before the transaction that applies the new topology. The transaction computes only the
effects on clusters that changed in the meantime.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sbf_service.domain.paths import LiveCluster, find_elements
from sbf_service.domain.topology_change import TopologyChange
from sbf_service.domain.wanted import compute_wanted, find_edge_peers, find_edge_transports
from virtcloud.model.element import Device, Edge
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.yield_points import with_yield_points


@dataclass(frozen=True, slots=True)
class ClusterElements:
    """The elements that carry a cluster in the former and in the new topology."""

    cluster: LiveCluster
    before: frozenset[Name]
    after: frozenset[Name]


@dataclass(frozen=True, slots=True)
class ClusterMove:
    """The elements that must confirm a cluster again or for the first time, and the elements that the cluster leaves.

    The elements in ``added`` are new on the cluster's path, or have another configuration for the cluster.
    """

    cluster: LiveCluster
    added: frozenset[Name]
    left: frozenset[Name]


@dataclass(slots=True)
class TopologyEffects:
    """The effects of a topology change on live clusters. :meth:`update` computes only missing and outdated effects.

    Clusters are compared as Python objects: an unchanged cluster must be the same object in each call.

    - ``known``: the elements of each cluster, by cluster ID.
    - ``changed``: the elements that are in both topologies and whose configuration changes.
    - ``of_clusters``: each key is a cluster's ID and a changed element. The value is the cluster, and whether the
      cluster's configuration on this element changes.
    - ``moves``: the result of :meth:`list_moves`, or None if an update has made it outdated.
    """

    change: TopologyChange
    known: dict[str, ClusterElements] = field(default_factory=dict)
    changed: frozenset[Name] | None = None
    of_clusters: dict[tuple[str, Name], tuple[LiveCluster, bool]] = field(default_factory=dict)
    moves: Sequence[ClusterMove] | None = None

    def prepare(self, live: Sequence[LiveCluster]) -> None:
        """Compute the effects. Ignore errors: their causes can disappear before the change is applied."""
        for cluster in with_yield_points(live):
            with suppress(VirtcloudError):
                self.known[cluster.id] = self._find_elements(cluster)
        with suppress(VirtcloudError, KeyError):  # KeyError: a host moves to a site where its cluster has no VLAN
            self.update(live)
            self.list_moves()

    def has_path(self, cluster: LiveCluster) -> bool:
        """Return whether it is known that the cluster has a path in both topologies."""
        known = self.known.get(cluster.id)
        return known is not None and known.cluster is cluster

    def update(self, live: Sequence[LiveCluster]) -> None:
        """Compute the effects on these clusters.

        Raise the errors of :func:`find_elements` if a cluster has no path in one of the two topologies.
        """
        new, names = [one for one in live if not self.has_path(one)], {one.id for one in live}
        replaced = {one.id for one in new} | (self.known.keys() - names)
        if replaced:
            self.moves = None
        former = [self.known.pop(name) for name in replaced & self.known.keys()]
        added = {one.id: self._find_elements(one) for one in new}
        self.known |= added
        if self.changed is None:
            common = frozenset[Name]() if self.change.keeps_paths else self.change.common_elements
            self.changed = self._find_changed(common)
            return
        touched = frozenset[Name]().union(*(one.before | one.after for one in (*former, *added.values())))
        if touched:
            self.changed = self.changed - touched | self._find_changed(touched & self.change.common_elements)

    def list_moves(self) -> Sequence[ClusterMove]:
        """Return the clusters whose elements or configurations change. Compute the result once after each update."""
        if self.moves is None:
            moves = (self._find_move(elements) for elements in with_yield_points(self.known.values()))
            self.moves = [move for move in moves if move.added or move.left]
        return self.moves

    def _find_move(self, elements: ClusterElements) -> ClusterMove:
        both = (self.changed or frozenset()) & elements.before & elements.after
        changed = {name for name in both if self._is_changed_of(name, elements.cluster)}
        added = (elements.after - elements.before) | changed
        return ClusterMove(elements.cluster, added, elements.before - elements.after)

    def _is_changed_of(self, name: Name, cluster: LiveCluster) -> bool:
        known, is_changed = self.of_clusters.get((cluster.id, name), (None, False))
        if known is not cluster:
            before, after = (compute_wanted(name, one, [cluster]) for one in (self.change.former, self.change.topology))
            is_changed = before != after
            self.of_clusters[cluster.id, name] = cluster, is_changed
        return is_changed

    def _find_elements(self, cluster: LiveCluster) -> ClusterElements:
        before, after = (find_elements(one, cluster) for one in (self.change.former, self.change.topology))
        return ClusterElements(cluster, before, after)

    def _find_changed(self, names: frozenset[Name]) -> frozenset[Name]:
        carried: dict[Name, list[LiveCluster]] = defaultdict(list)
        for elements in with_yield_points(self.known.values()):
            for name in names & (elements.before | elements.after):
                carried[name].append(elements.cluster)
        after = self.change.topology.elements
        concerned = (name for name in with_yield_points(names) if name in carried or isinstance(after[name], Device))
        return frozenset(name for name in concerned if self._is_changed(name, carried.get(name, [])))

    def _is_changed(self, name: Name, live: Sequence[LiveCluster]) -> bool:
        if len(live) == 1 and not isinstance(self.change.topology.elements[name], Edge):
            return self._is_changed_of(name, live[0])  # the common case for hosts: compute the wanted state only once
        before = _compute_configuration(name, self.change.former, live)
        return before != _compute_configuration(name, self.change.topology, live)


def _compute_configuration(name: Name, topology: Topology, live: Sequence[LiveCluster]) -> object:
    wanted = compute_wanted(name, topology, live)
    if not isinstance(topology.elements[name], Edge):
        return wanted
    transports = find_edge_transports(topology, name)
    return wanted, transports, find_edge_peers(topology, name, transports)
