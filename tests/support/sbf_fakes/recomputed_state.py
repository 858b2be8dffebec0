"""The comparison of SBF's computed values with the same values computed from scratch.

After a change of the topology or of a cluster, SBF recomputes only the values that the change affects: placements,
revisions, look-ups of the topology, and cached paths.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from sbf_service.domain.paths import LiveCluster, find_elements
from sbf_service.domain.wanted import compute_wanted, find_edge_peers, find_edge_transports
from sbf_service.store.clusters.live_clusters import read_live_clusters
from sbf_service.store.elements.elements import read_wanted_revision
from sbf_service.store.tables.cluster_tables import PlacementRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit
from support.sbf_fakes.ethernet_segments import is_connected
from virtcloud.model.element import Edge
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name


@dataclass
class RecomputedState:
    """The values that the last check computed from scratch.

    - ``configurations``: the revision and the wanted configuration of each element, by name.
    - ``topology``: the topology without look-ups and cached paths of former topologies.
    """

    configurations: dict[str, tuple[int, object]] = field(default_factory=dict)
    topology: Topology | None = None
    checks: int = 0

    def check(self, unit: Unit) -> list[LiveCluster]:
        """Compare the topology, all placements and revisions, and the wanted state of one element.

        Return the live clusters.
        """
        topology, live = self._check_topology(read_topology(unit)), read_live_clusters(unit)
        placements = defaultdict(set)
        for part in unit.session.query(PlacementRow).filter(PlacementRow.removed_revision.is_(None)):
            placements[part.cluster_id].add(part.element)
        for cluster in live:
            assert is_connected(topology, cluster), f"the path of cluster {cluster.key} is interrupted"
            assert placements[cluster.id] == find_elements(topology, cluster), f"{cluster.key} is not on its path"
        rows = [row for row in unit.session.query(ElementRow) if row.name in topology.elements]
        for row in rows:
            self._check_revision(topology, live, Name(row.name), row.wanted_revision)
        name = sorted(topology.elements)[self.checks % len(topology.elements)]
        on_element = [one for one in live if name in find_elements(topology, one)]
        assert read_wanted_revision(unit, name).wanted == compute_wanted(name, topology, on_element)
        self.checks += 1
        return live

    def _check_topology(self, topology: Topology) -> Topology:
        if self.topology != topology:
            self.topology = Topology.model_validate(topology.model_dump(mode="json"))
            assert self.topology == topology
            assert self.topology.elements == topology.elements
            assert self.topology.peers == topology.peers
        assert self.topology is not None
        return self.topology

    def _check_revision(self, topology: Topology, live: list[LiveCluster], name: Name, revision: int) -> None:
        """Check that an element has a new revision if its configuration has changed since the last check.

        The configuration of an edge also contains its description, its transports and the other edges' addresses.
        """
        configuration: object = compute_wanted(
            name, topology, [one for one in live if name in find_elements(topology, one)]
        )
        if isinstance(topology.elements[name], Edge):
            transports = find_edge_transports(topology, name)
            peers = {key: set(found) for key, found in find_edge_peers(topology, name, transports).items()}
            configuration = configuration, topology.elements[name], transports, peers
        former = self.configurations.get(name)
        if former is not None and former[1] != configuration:
            assert former[0] < revision, f"{name} is not configured again: {former[1]} became {configuration}"
        self.configurations[name] = revision, configuration
