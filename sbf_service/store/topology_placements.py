"""The placements of clusters after a new topology or a change of gateways."""

from collections.abc import Container, Sequence

from sqlalchemy import select

from sbf_service.domain.paths import LiveCluster
from sbf_service.domain.topology_change import TopologyChange
from sbf_service.domain.topology_effects import TopologyEffects
from sbf_service.store.cluster_tables import PlacementRow
from sbf_service.store.revisions import increment_revisions
from sbf_service.store.service_nodes import move_services
from sbf_service.store.tables import ElementRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.values import Name


def update_placements(unit: Unit, effects: TopologyEffects, live: Sequence[LiveCluster]) -> None:
    """Change the placements of clusters.

    Also increment the revisions of elements that a cluster leaves: a placement must end with a later revision than it
    began.
    """
    effects.update(live)
    moved = move_services(unit, effects.change, live)
    changed = (effects.changed or set()) | effects.list_left_elements()
    increment_revisions(unit, changed | find_other_destinations(effects.change) | moved)
    unit.session.flush()
    for elements in effects.known.values():
        of_cluster = effects.find_changed_elements_of(elements)
        if of_cluster or elements.before != elements.after:
            update_cluster_placements(unit, elements.cluster, elements.after, of_cluster)


def find_other_destinations(change: TopologyChange) -> set[Name]:
    """Return the gateways of both topologies whose site changes its destinations."""
    before, after = change.former, change.topology
    both = before.gateways.keys() & after.gateways.keys()
    return {name for name in both if before.site_of[name].destinations != after.site_of[name].destinations}


def update_cluster_placements(
    unit: Unit, cluster: LiveCluster, elements: frozenset[Name], changed: Container[Name]
) -> None:
    """Add placements of a cluster on ``elements``, and end its other placements.

    The placements on elements in ``changed`` must be confirmed again.
    """
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
    """Add a placement with the element's wanted revision, which the caller must first increment."""
    revision = _wanted_revision(unit, element)
    unit.session.add(PlacementRow(cluster_id=cluster_id, element=element, added_revision=revision))


def _wanted_revision(unit: Unit, element: str) -> int:
    return unit.session.get_one(ElementRow, element).wanted_revision
