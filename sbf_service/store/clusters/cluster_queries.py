"""Queries of clusters by condition, element, site, network or ID."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    and_,
    bindparam,
    exists,
    false,
    literal_column,
    or_,
    select,
    true,
    union,
)
from sqlalchemy.orm import QueryableAttribute, aliased

from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.columns import NAME_TYPE, equals_any, split_ids
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.tables.vlan_tables import ClaimRow
from sbf_service.store.tables.vpn_tables import ClusterGatewayRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import ENDED_STATES, WANTED_STATES, ClusterState

NOT_ENDED = equals_any(ClusterRow.state, frozenset(ClusterState) - ENDED_STATES)
"""The condition that a cluster has not ended.

The database can use an index of states, because most clusters have ended.
"""
UNSETTLED = or_(NOT_ENDED, and_(equals_any(ClusterRow.state, ENDED_STATES), ClusterRow.quarantined == true()))
"""The condition that a cluster is *unsettled*: not ended, or with quarantined claims, and can therefore still change.
"""
IS_WANTED = (ClusterRow.state + "").in_([literal_column(f"'{state}'") for state in sorted(WANTED_STATES)])
"""The condition that a cluster is in one of ``WANTED_STATES``, without the use of the index of states.

Use this condition in queries with another condition that has a better index.
"""
IS_UNSETTLED = PlacementRow.settled == false()
"""The condition that a placement's cluster is ``UNSETTLED``.

The partial index ``ix_placements_unsettled`` has this condition.
"""
IDS = bindparam("ids", type_=NAME_TYPE, expanding=True)
_MEMBER = aliased(ClusterRow)
_READ_CLUSTERS = select(ClusterRow).order_by(ClusterRow.created_at, ClusterRow.key)


def select_clusters(*conditions: ColumnElement[bool]) -> Select[ClusterRow]:
    """Return the statement that reads the clusters that meet the conditions, oldest first.

    Use a module constant for a frequent statement: building it takes longer than executing it.
    """
    return _READ_CLUSTERS.where(*conditions)


def read_clusters(unit: Unit, statement: Select[ClusterRow], parameters: Mapping[str, object]) -> Sequence[ClusterRow]:
    """Execute a statement of :func:`select_clusters` with bound ``parameters``."""
    return unit.session.scalars(statement, parameters).all()


def find_clusters(unit: Unit, *conditions: ColumnElement[bool], **parameters: object) -> Sequence[ClusterRow]:
    """Return the clusters that meet the conditions, oldest first."""
    return read_clusters(unit, select_clusters(*conditions), parameters)


def has_placement_on(element: str | BindParameter[str]) -> ColumnElement[bool]:
    """Return the condition that a cluster has a placement on ``element``."""
    return has_placement(PlacementRow.element == element)


def is_unsettled_on(element: str | BindParameter[str]) -> ColumnElement[bool]:
    """Return the condition that a cluster is unsettled and has a placement on ``element``."""
    return ClusterRow.id.in_(select(PlacementRow.cluster_id).where(PlacementRow.element == element, IS_UNSETTLED))


def is_network_on(element: str) -> ColumnElement[bool]:
    """Return the condition that a cluster created a network with an unsettled member on ``element``.

    A member is another cluster that joined the network.
    """
    members = select(_MEMBER.network).join(PlacementRow, PlacementRow.cluster_id == _MEMBER.id)
    return ClusterRow.id.in_(members.where(PlacementRow.element == element, IS_UNSETTLED))


def is_unsettled_at(sites: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a cluster is unsettled and has a placement at one of ``sites``."""
    elements = select(ElementRow.name).where(ElementRow.site.in_(sorted(sites)))
    return ClusterRow.id.in_(select(PlacementRow.cluster_id).where(PlacementRow.element.in_(elements), IS_UNSETTLED))


def has_placement_at(sites: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a cluster has a placement at one of ``sites``."""
    return has_placement(PlacementRow.element.in_(select(ElementRow.name).where(ElementRow.site.in_(sorted(sites)))))


def has_placement(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that a cluster has a placement that meets the conditions.

    A subquery without correlation would read all placements, most of them of ended clusters.
    """
    return exists().where(PlacementRow.cluster_id == ClusterRow.id, *conditions)


_OF_NETWORKS = select_clusters(UNSETTLED, ClusterRow.network.in_(IDS))
_RUNNING_OF_NETWORKS = select_clusters(NOT_ENDED, ClusterRow.network.in_(IDS))
OF_IDS = select_clusters(ClusterRow.id.in_(IDS))
_NAMES = bindparam("names", type_=NAME_TYPE, expanding=True)
_FIND_ON_ELEMENTS = union(
    select(PlacementRow.cluster_id).where(PlacementRow.element.in_(_NAMES), IS_UNSETTLED),
    select(ClusterGatewayRow.cluster_id).where(ClusterGatewayRow.gateway.in_(_NAMES)),
)
_FIND_AT_SITES = select(ClaimRow.cluster_id).where(ClaimRow.site.in_(_NAMES))


def read_clusters_by_id(unit: Unit, ids: Iterable[str]) -> list[ClusterRow]:
    """Return the clusters with these IDs, oldest first."""
    rows = [row for group in split_ids(ids) for row in read_clusters(unit, OF_IDS, {"ids": group})]
    return sorted(rows, key=lambda row: (row.created_at, row.key))


def find_unsettled_clusters(unit: Unit, elements: Iterable[str]) -> list[ClusterRow]:
    """Return the unsettled clusters that use any of these elements, oldest first."""
    return read_clusters_by_id(unit, sorted(find_cluster_ids(unit, elements)))


def find_cluster_ids(unit: Unit, elements: Iterable[str], sites: Iterable[str] = ()) -> frozenset[str]:
    """Return the IDs of the unsettled clusters that use any of these elements or sites.

    A cluster uses its gateways, the elements of its placements, and the sites of its claims.
    """
    return frozenset(
        cluster_id
        for statement, names in ((_FIND_ON_ELEMENTS, elements), (_FIND_AT_SITES, sites))
        for group in split_ids(sorted(set(names)))
        for cluster_id in unit.connection.execute(statement, {"names": group}).scalars()
    )


def find_running_members(unit: Unit, networks: Sequence[str]) -> Sequence[ClusterRow]:
    """Return those members of the given networks that have not ended, oldest first.

    ``networks`` contains the IDs of at most ``MAX_PARAMETERS`` networks.
    """
    return read_clusters(unit, _RUNNING_OF_NETWORKS, {"ids": networks})


def find_members(unit: Unit, network: str) -> Sequence[ClusterRow]:
    """Return the unsettled members of a network, oldest first."""
    return read_clusters(unit, _OF_NETWORKS, {"ids": [network]})


def find_members_of(unit: Unit, ids: Sequence[str]) -> dict[str, list[ClusterRow]]:
    """Return the unsettled members of each network, by network ID."""
    found: dict[str, list[ClusterRow]] = defaultdict(list)
    for group in split_ids(ids):
        for row in read_clusters(unit, _OF_NETWORKS, {"ids": group}):
            found[str(row.network)].append(row)
    return found


class RowsOfClusters:
    """A query of the rows of a table: the rows of given clusters, or the rows of all clusters."""

    def __init__(self, cluster_id: QueryableAttribute[str], *columns: QueryableAttribute[Any]) -> None:
        """Build the statements. The rows contain ``cluster_id`` and ``columns``, and are sorted by these columns."""
        self._all: Select[*tuple[Any, ...]] = select(cluster_id, *columns).order_by(cluster_id, *columns)
        self._of_ids = self._all.where(cluster_id.in_(IDS))

    def read(self, unit: Unit, ids: Iterable[str] | None) -> Iterator[Any]:
        """Yield the rows of the clusters with these IDs, or all rows if ``ids`` is None."""
        if ids is None:
            yield from unit.connection.execute(self._all).all()
            return
        for group in split_ids(ids):
            yield from unit.connection.execute(self._of_ids, {"ids": group}).all()
