"""The effects of a new topology on live clusters: their elements, and the configurations that change. Pure.

SBF computes the effects before the transaction that applies the new topology. In the transaction, SBF computes again
only the effects on clusters that other calls have changed in the meantime.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sbf_service.domain.paths import LiveCluster, find_cluster_ports, find_elements
from sbf_service.domain.topology_change import TopologyChange
from sbf_service.domain.wanted import compute_wanted, find_edge_peers, find_edge_transports
from virtcloud.model.element import Device, Edge
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name


@dataclass(frozen=True, slots=True)
class ClusterElements:
    """The elements that carry a cluster in the former and in the new topology."""

    cluster: LiveCluster
    before: frozenset[Name]
    after: frozenset[Name]


@dataclass(frozen=True, slots=True)
class TopologyEffects:
    """The effects of a change. ``known`` has the clusters for which paths were computed, by cluster ID."""

    change: TopologyChange
    known: dict[str, LiveCluster] = field(default_factory=dict)
    compared: dict[Name, tuple[Sequence[LiveCluster], bool]] = field(default_factory=dict)
    """For each element: the clusters on the element when the configurations were compared, and whether the
    configuration changes.
    """

    def prepare(self, live: Sequence[LiveCluster]) -> None:
        """Compute the effects. Ignore errors, because their causes can disappear before the change is applied."""
        self.change.compute()
        self.known.update({cluster.id: cluster for cluster in live})
        for cluster in live:
            for topology in (self.change.former, self.change.topology):
                with suppress(VirtcloudError):
                    find_cluster_ports(topology, cluster)
        with suppress(VirtcloudError, KeyError):  # KeyError: a host moves to a site where its cluster has no VLAN
            self.find_changed_elements(self.find_elements(live))

    def share(self, live: Iterable[LiveCluster]) -> list[LiveCluster]:
        """Return ``live``, but replace each cluster by the equal cluster in ``known``, if there is one.

        The comparison of identical Python objects is fast.
        """
        return [known if (known := self.known.get(cluster.id)) == cluster else cluster for cluster in live]

    def find_elements(self, live: Iterable[LiveCluster]) -> list[ClusterElements]:
        """Return the elements of each cluster. Every cluster must have a path in both topologies."""
        return [
            ClusterElements(
                cluster, *(find_elements(one, cluster) for one in (self.change.former, self.change.topology))
            )
            for cluster in live
        ]

    def find_changed_elements(self, clusters: Iterable[ClusterElements]) -> set[Name]:
        """Return the elements that are in both topologies, and whose configuration changes."""
        carried: dict[Name, list[LiveCluster]] = defaultdict(list)
        for elements in clusters:
            for name in elements.before | elements.after:
                carried[name].append(elements.cluster)
        after = self.change.topology.elements
        concerned = (name for name in self.change.common_elements if name in carried or isinstance(after[name], Device))
        return {name for name in concerned if self._is_changed(name, carried.get(name, []))}

    def _is_changed(self, name: Name, live: Sequence[LiveCluster]) -> bool:
        known, is_changed = self.compared.get(name, (None, False))
        if known != live:
            before = _compute_configuration(name, self.change.former, live)
            is_changed = before != _compute_configuration(name, self.change.topology, live)
            self.compared[name] = live, is_changed
        return is_changed

    def find_changed_elements_of(self, elements: ClusterElements, changed: set[Name]) -> set[Name]:
        """Return the elements of ``changed`` on which the configuration of this cluster changes."""
        former, topology, one = self.change.former, self.change.topology, [elements.cluster]
        both = changed & elements.before & elements.after
        return {name for name in both if compute_wanted(name, former, one) != compute_wanted(name, topology, one)}


def _compute_configuration(name: Name, topology: Topology, live: Sequence[LiveCluster]) -> object:
    """Return an element's wanted state and, for an edge, the transports and the other edges that its driver needs."""
    wanted = compute_wanted(name, topology, live)
    if not isinstance(topology.elements[name], Edge):
        return wanted
    transports = find_edge_transports(topology, name)
    return wanted, transports, find_edge_peers(topology, name, transports)
