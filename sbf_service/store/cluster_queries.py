"""Queries that find clusters: by condition, element, site, network or ID."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

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

from sbf_service.store.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.columns import NAME_TYPE, equals_any, split_ids
from sbf_service.store.tables import ElementRow
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlan_tables import ClaimRow
from sbf_service.store.vpn_tables import ClusterGatewayRow
from virtcloud.model.cluster import ENDED_STATES, WANTED_STATES, ClusterState

NOT_ENDED = equals_any(ClusterRow.state, frozenset(ClusterState) - ENDED_STATES)
"""Clusters that have not ended. Most clusters have ended. The condition therefore lists the states of the other
clusters, so that the database uses an index.
"""
UNSETTLED = or_(NOT_ENDED, and_(equals_any(ClusterRow.state, ENDED_STATES), ClusterRow.quarantined == true()))
"""Clusters that may still change their state: they have not ended, or they have quarantined claims."""
IS_WANTED = (ClusterRow.state + "").in_([literal_column(f"'{state}'") for state in sorted(WANTED_STATES)])
"""Clusters that elements must carry, for queries whose other conditions have an index.

With this expression, no index of states fits. So the database uses the index of another condition, and does not read
all clusters in these states.
"""
IS_UNSETTLED = PlacementRow.settled == false()
"""Placements of clusters that meet ``UNSETTLED``. An index finds these placements of an element."""
IDS = bindparam("ids", type_=NAME_TYPE, expanding=True)
_READ_CLUSTERS = select(ClusterRow).order_by(ClusterRow.created_at, ClusterRow.key)


def select_clusters(*conditions: ColumnElement[bool]) -> Select[ClusterRow]:
    """Return the statement that reads the clusters that meet the conditions, oldest first.

    Build frequent statements once, as module constants: building a statement takes longer than its execution.
    """
    return _READ_CLUSTERS.where(*conditions)


def read_clusters(unit: Unit, statement: Select[ClusterRow], parameters: Mapping[str, object]) -> Sequence[ClusterRow]:
    """Return the clusters of a statement of :func:`select_clusters`. ``parameters`` are bound parameters, by name."""
    return unit.session.scalars(statement, parameters).all()


def find_clusters(unit: Unit, *conditions: ColumnElement[bool], **parameters: object) -> Sequence[ClusterRow]:
    """Return the clusters that meet the conditions, oldest first. ``parameters`` are bound parameters, by name."""
    return read_clusters(unit, select_clusters(*conditions), parameters)


def has_placement_on(element: str | BindParameter[str]) -> ColumnElement[bool]:
    """Return the condition that a cluster has a placement on ``element``."""
    return has_placement(PlacementRow.element == element)


def is_unsettled_on(element: str | BindParameter[str]) -> ColumnElement[bool]:
    """Return the condition that a cluster has a placement on ``element`` and may still change its state."""
    return ClusterRow.id.in_(select(PlacementRow.cluster_id).where(PlacementRow.element == element, IS_UNSETTLED))


def is_unsettled_at(sites: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a cluster has a placement at one of ``sites`` and may still change its state."""
    elements = select(ElementRow.name).where(ElementRow.site.in_(sorted(sites)))
    return ClusterRow.id.in_(select(PlacementRow.cluster_id).where(PlacementRow.element.in_(elements), IS_UNSETTLED))


def has_placement_at(sites: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a cluster has a placement on an element of ``sites``."""
    return has_placement(PlacementRow.element.in_(select(ElementRow.name).where(ElementRow.site.in_(sorted(sites)))))


def has_placement(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that a cluster has a placement that meets the conditions.

    The subquery is evaluated for each cluster separately. One subquery for all clusters would be slow, because most
    placements belong to old clusters.
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


def find_unsettled_clusters(unit: Unit, elements: Iterable[str], sites: Iterable[str] = ()) -> list[ClusterRow]:
    """Return the clusters that may still change and use any of these elements, or have a claim at any of these sites.

    A cluster also uses its gateways. The oldest cluster comes first.
    """
    found = {
        cluster_id
        for statement, names in ((_FIND_ON_ELEMENTS, elements), (_FIND_AT_SITES, sites))
        for group in split_ids(sorted(set(names)))
        for cluster_id in unit.connection.execute(statement, {"names": group}).scalars()
    }
    return read_clusters_by_id(unit, sorted(found))


def find_running_members(unit: Unit, networks: Sequence[str]) -> Sequence[ClusterRow]:
    """Return the members of these networks that have not ended, oldest first. At most ``MAX_PARAMETERS`` networks."""
    return read_clusters(unit, _RUNNING_OF_NETWORKS, {"ids": networks})


def find_members(unit: Unit, network: str) -> Sequence[ClusterRow]:
    """Return the members of a network that may still change their state (``UNSETTLED``), oldest first."""
    return read_clusters(unit, _OF_NETWORKS, {"ids": [network]})


def find_members_of(unit: Unit, ids: Sequence[str]) -> dict[str, list[ClusterRow]]:
    """Return the unsettled members of networks, by the ID of the network."""
    found: dict[str, list[ClusterRow]] = defaultdict(list)
    for group in split_ids(ids):
        for row in read_clusters(unit, _OF_NETWORKS, {"ids": group}):
            found[str(row.network)].append(row)
    return found
