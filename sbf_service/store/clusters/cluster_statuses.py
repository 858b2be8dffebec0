"""The statuses of clusters: their states and placements."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import select

from sbf_service.domain.cluster_status import ClusterStatus, PlacementStatus
from sbf_service.domain.error_report import find_cluster_error
from sbf_service.store.clusters.cluster_queries import IDS, find_members_of
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.columns import split_ids
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import WANTED_STATES, ClusterState
from virtcloud.model.element import ElementKind
from virtcloud.model.values import Name

_READ_PLACEMENTS = (
    select(
        PlacementRow.cluster_id,
        ElementRow.name,
        ElementRow.kind,
        ElementRow.site,
        PlacementRow.added_revision,
        PlacementRow.removed_revision,
        PlacementRow.blocked,
        ElementRow.confirmed_revision,
        ElementRow.reachable,
        ElementRow.trouble,
        ElementRow.troubles,
        ElementRow.last_seen,
        ClusterRow.network,
    )
    .join(ElementRow, ElementRow.name == PlacementRow.element)
    .join(ClusterRow, ClusterRow.id == PlacementRow.cluster_id)
    .where(PlacementRow.cluster_id.in_(IDS))
    .order_by(PlacementRow.element)
)


def read_placements(unit: Unit, ids: Iterable[str]) -> dict[str, tuple[PlacementStatus, ...]]:
    """Return the placements of clusters, by cluster ID and sorted by element name."""
    unit.session.flush()
    found: dict[str, list[PlacementStatus]] = defaultdict(list)
    for group in split_ids(ids):
        for row in unit.connection.execute(_READ_PLACEMENTS, {"ids": group}):
            found[row.cluster_id].append(_make_placement_status(row))
    return {cluster_id: tuple(parts) for cluster_id, parts in found.items()}


def read_cluster_statuses(unit: Unit, rows: Sequence[ClusterRow]) -> list[ClusterStatus]:
    """Return the status of each cluster, in the order of ``rows``.

    If a cluster that created a network is ending or has ended, its status includes the network's members that are
    ``UNSETTLED`` (:mod:`.cluster_queries`).
    """
    members = find_members_of(unit, [row.id for row in rows if row.state not in WANTED_STATES and row.network is None])
    parts = read_placements(unit, [row.id for row in (*rows, *chain(*members.values()))])
    return [make_cluster_status(row, parts, members.get(row.id, ())) for row in rows]


def make_cluster_status(
    row: ClusterRow, parts: Mapping[str, tuple[PlacementStatus, ...]], members: Sequence[ClusterRow] = ()
) -> ClusterStatus:
    """Return the status of a cluster from its placements and members."""
    return ClusterStatus(
        id=row.id,
        state=ClusterState(row.state),
        placements=parts.get(row.id, ()),
        deadline=row.deadline,
        lease_ends=row.lease_ends,
        leaving_since=row.leaving_since,
        quarantined=row.quarantined,
        members=tuple(make_cluster_status(member, parts) for member in members),
    )


def _make_placement_status(row: Any) -> PlacementStatus:  # noqa: ANN401 - a row of _READ_PLACEMENTS
    return PlacementStatus(
        element=Name(row.name),
        kind=ElementKind(row.kind),
        site=Name(row.site),
        added=row.added_revision,
        removed=row.removed_revision,
        confirmed=row.confirmed_revision,
        blocked=row.blocked,
        reachable=row.reachable,
        trouble=find_cluster_error(row.trouble, row.troubles, row.cluster_id, row.network),
        last_seen=row.last_seen,
    )
