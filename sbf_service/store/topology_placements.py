"""The effect of a new topology on the placements of clusters, and on the wanted revisions of elements."""

from collections import defaultdict
from collections.abc import Container, Sequence

from sqlalchemy import select

from sbf_service.domain.paths import LiveCluster, find_cluster_ports, list_elements
from sbf_service.domain.topology_change import TopologyChange
from sbf_service.domain.wanted import compute_wanted, find_edge_peers, find_edge_transports
from sbf_service.store.cluster_tables import PlacementRow
from sbf_service.store.revisions import increment_revisions
from sbf_service.store.tables import ElementRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.element import Device, Edge
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name


def _find_other_destinations(change: TopologyChange) -> set[Name]:
    """Return the gateways at sites whose destinations changed."""
    before, after = change.former, change.topology
    both = before.gateways.keys() & after.gateways.keys() & change.elements
    return {name for name in both if before.site_of[name].destinations != after.site_of[name].destinations}


def update_placements(unit: Unit, change: TopologyChange, live: list[LiveCluster]) -> None:
    """Move the placements of clusters, and increment the revisions of elements whose wanted state changed."""
    former, topology = change.former, change.topology
    before, after = (
        {cluster.id: _find_elements(version, cluster) for cluster in live} for version in (former, topology)
    )
    carried: dict[Name, list[LiveCluster]] = defaultdict(list)
    for cluster in live:
        for name in before[cluster.id] | after[cluster.id]:
            carried[name].append(cluster)
    changed = {
        name
        for name in change.common_elements
        if (name in carried or isinstance(topology.elements[name], Device))
        and _compute_wanted_configuration(name, former, carried.get(name, ()))
        != _compute_wanted_configuration(name, topology, carried.get(name, ()))
    }
    increment_revisions(unit, changed | _find_other_destinations(change))
    unit.session.flush()
    for cluster in live:
        of_cluster = {
            name
            for name in changed & before[cluster.id] & after[cluster.id]
            if compute_wanted(name, former, [cluster]) != compute_wanted(name, topology, [cluster])
        }
        if of_cluster or before[cluster.id] != after[cluster.id]:
            update_cluster_placements(unit, cluster, after[cluster.id], of_cluster)


def _find_elements(topology: Topology, cluster: LiveCluster) -> frozenset[Name]:
    return list_elements(find_cluster_ports(topology, cluster))


def _compute_wanted_configuration(name: Name, topology: Topology, live: Sequence[LiveCluster]) -> object:
    """Return an element's wanted state and, for an edge, the transports and the other edges that its driver needs."""
    wanted = compute_wanted(name, topology, live)
    if not isinstance(topology.elements[name], Edge):
        return wanted
    transports = find_edge_transports(topology, name)
    return wanted, transports, find_edge_peers(topology, name, transports)


def update_cluster_placements(
    unit: Unit, cluster: LiveCluster, elements: frozenset[Name], changed: Container[Name]
) -> None:
    """Place a cluster on ``elements``. Elements with a ``changed`` configuration must confirm the cluster again."""
    found = unit.session.scalars(select(PlacementRow).where(PlacementRow.cluster_id == cluster.id))
    parts = {part.element: part for part in found}
    for name in sorted(elements):
        part = parts.get(name)
        if part is None:
            add_placement(unit, cluster.id, name)
        elif part.removed_revision is not None or name in changed:
            part.added_revision, part.removed_revision = _wanted_revision(unit, name), None
    for element in sorted(parts.keys() - elements):
        if parts[element].removed_revision is None:
            parts[element].removed_revision = _wanted_revision(unit, element)
    unit.changed.add(f"cluster:{cluster.key}")


def add_placement(unit: Unit, cluster_id: str, element: str) -> None:
    """Add a placement that begins with the element's wanted revision. The caller must increment this revision first."""
    revision = _wanted_revision(unit, element)
    unit.session.add(PlacementRow(cluster_id=cluster_id, element=element, added_revision=revision))


def _wanted_revision(unit: Unit, element: str) -> int:
    return unit.session.get_one(ElementRow, element).wanted_revision
