"""The clusters of one element: wanted, confirmed, added and removed clusters.

The statements are module constants, because building a statement takes longer than executing it.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import and_, bindparam, or_, select, union

from sbf_service.domain.paths import LiveCluster
from sbf_service.store.clusters.cluster_queries import IS_UNSETTLED, IS_WANTED, read_clusters, select_clusters
from sbf_service.store.clusters.live_clusters import make_live_clusters
from sbf_service.store.clusters.transitions import ClusterSelection
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.columns import NAME_TYPE
from sbf_service.store.unit_of_work import Unit

_ON_ELEMENT = PlacementRow.element == bindparam("element")
_STAYS = PlacementRow.removed_revision.is_(None)
_PLACED = select(PlacementRow.cluster_id).where(_ON_ELEMENT)
_ADDED = select_clusters(
    ClusterRow.id.in_(
        _PLACED.where(
            PlacementRow.added_revision > bindparam("before"),
            PlacementRow.added_revision <= bindparam("revision"),
            _STAYS,
        )
    )
)
_IS_MARKED = PlacementRow.cluster_id.in_(bindparam("marked", type_=NAME_TYPE, expanding=True))
_IS_NEWLY_REMOVED = PlacementRow.removed_revision > bindparam("highest")
_ALL_REMOVED = _PLACED.where(PlacementRow.removed_revision <= bindparam("revision"), PlacementRow.blocked.is_(False))
_REMOVED = select_clusters(ClusterRow.id.in_(_ALL_REMOVED.where(_IS_NEWLY_REMOVED)))
"""Selects the clusters of :func:`read_removed_clusters` in the usual case, without ``marked``.

The database uses the index of removals to skip earlier removals.
"""
_REMOVED_OR_MARKED = select_clusters(ClusterRow.id.in_(_ALL_REMOVED.where(or_(_IS_NEWLY_REMOVED, _IS_MARKED))))
_WANTED = select_clusters(IS_WANTED, ClusterRow.id.in_(_PLACED.where(_STAYS)))
_CONFIRMED = _PLACED.where(
    _STAYS, PlacementRow.added_revision <= bindparam("confirmed"), PlacementRow.blocked.is_(False)
)
_IS_ADDED = and_(
    _STAYS, PlacementRow.added_revision > bindparam("before"), PlacementRow.added_revision <= bindparam("revision")
)
_IS_REMOVED = and_(
    PlacementRow.removed_revision > bindparam("before"), PlacementRow.removed_revision <= bindparam("revision")
)
COMPLETED_PLACEMENTS = union(_PLACED.where(IS_UNSETTLED, _IS_ADDED), _PLACED.where(IS_UNSETTLED, _IS_REMOVED))
"""Selects the IDs of the clusters that an element's revisions ``before`` + 1 to ``revision`` added or removed.

Clusters whose state can no longer change are omitted.
"""
COMPLETED_ON_ELEMENT = ClusterSelection(ClusterRow.id.in_(COMPLETED_PLACEMENTS))


def read_wanted_clusters(unit: Unit, element: str) -> list[LiveCluster]:
    """Return the clusters that an element must carry."""
    return make_live_clusters(unit, read_clusters(unit, _WANTED, {"element": element}))


def find_confirmed_clusters(unit: Unit, element: str, confirmed: int) -> frozenset[str]:
    """Return the IDs of the clusters that an element must carry, and that a revision up to ``confirmed`` added.

    Omit clusters with a blocked placement.
    """
    unit.session.flush()
    return frozenset(unit.connection.execute(_CONFIRMED, {"element": element, "confirmed": confirmed}).scalars())


def read_added_clusters(unit: Unit, element: str, before: int, revision: int) -> list[LiveCluster]:
    """Return the clusters that a revision from ``before`` + 1 to ``revision`` added to an element."""
    added = {"element": element, "before": before, "revision": revision}
    return make_live_clusters(unit, read_clusters(unit, _ADDED, added))


def read_removed_clusters(
    unit: Unit, element: str, highest: int, revision: int, marked: Collection[str]
) -> Sequence[ClusterRow]:
    """Return the clusters that a revision from ``highest`` + 1 to ``revision`` removed from an element.

    Include also earlier removals of the clusters whose IDs are in ``marked``. Omit clusters with a blocked placement.
    """
    removed = {"element": element, "highest": highest, "revision": revision}
    if not marked:
        return read_clusters(unit, _REMOVED, removed)
    return read_clusters(unit, _REMOVED_OR_MARKED, removed | {"marked": sorted(marked)})
