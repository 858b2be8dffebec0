"""The statuses, networks and claims of clusters, and the live clusters.

A live cluster (``LiveCluster``) is a cluster that elements must carry, with the data from which SBF computes paths and
wanted states.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from sqlalchemy import (
    ColumnElement,
    select,
)

from sbf_service.domain.error_report import find_cluster_error
from sbf_service.domain.lifecycle import ClusterStatus, PlacementStatus
from sbf_service.domain.paths import ClusterNetwork, LiveCluster
from sbf_service.store.cluster_documents import parse_current_spec, parse_image_sources
from sbf_service.store.cluster_gateways import read_cluster_gateways
from sbf_service.store.cluster_queries import IDS, IS_WANTED, OF_IDS, find_clusters, find_members_of, read_clusters
from sbf_service.store.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.columns import equals_any, split_ids
from sbf_service.store.tables import ElementRow
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlan_tables import ClaimRow, ServiceClaimRow
from virtcloud.model.cluster import WANTED_STATES, ClusterState
from virtcloud.model.element import ElementKind
from virtcloud.model.values import ClusterKey, Name, VlanId

_READ_VLANS = (
    select(ClaimRow.cluster_id, ClaimRow.site, ClaimRow.vlan)
    .where(ClaimRow.cluster_id.in_(IDS))
    .order_by(ClaimRow.site)
)
_READ_SERVICES = select(ServiceClaimRow.cluster_id, ServiceClaimRow.number).where(ServiceClaimRow.cluster_id.in_(IDS))
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
    """Return a dict that maps each cluster ID to the placements of the cluster, sorted by element name."""
    found: dict[str, list[PlacementStatus]] = defaultdict(list)
    for group in split_ids(ids):
        for row in unit.session.execute(_READ_PLACEMENTS, {"ids": group}):
            found[row.cluster_id].append(_make_placement_status(row))
    return {cluster_id: tuple(parts) for cluster_id, parts in found.items()}


def read_cluster_statuses(unit: Unit, rows: Sequence[ClusterRow]) -> list[ClusterStatus]:
    """Return the status of each cluster, in the order of ``rows``.

    If a cluster with members is ending, its status includes the members whose state can still change (``UNSETTLED``).
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


def read_live_clusters(unit: Unit, *conditions: ColumnElement[bool]) -> list[LiveCluster]:
    """Return the clusters that meet the conditions and that elements must carry."""
    is_wanted = IS_WANTED if conditions else equals_any(ClusterRow.state, WANTED_STATES)
    return make_live_clusters(unit, find_clusters(unit, is_wanted, *conditions))


def make_live_clusters(unit: Unit, rows: Sequence[ClusterRow]) -> list[LiveCluster]:
    """Return each row's cluster with the VLAN IDs and the service ID of its network, in the order of ``rows``."""
    networks = read_networks(unit, rows)
    vlans, services = read_vlans(unit, networks), read_service_ids(unit, networks)
    gateways = read_cluster_gateways(unit, split_ids(row.id for row in rows))
    return [
        replace(
            _make_live_cluster(row, networks[row.network or row.id], vlans, services), gateways=gateways.get(row.id, ())
        )
        for row in rows
    ]


def _make_live_cluster(
    row: ClusterRow, network: ClusterRow, vlans: Mapping[str, Mapping[Name, VlanId]], services: Mapping[str, int]
) -> LiveCluster:
    return LiveCluster(
        id=row.id,
        key=ClusterKey(row.key),
        spec=parse_current_spec(row),
        vlans=vlans[network.id],
        transport=None if network.transport is None else Name(network.transport),
        service=services.get(network.id),
        joined=None
        if network is row
        else ClusterNetwork(network.id, ClusterKey(network.key), parse_current_spec(network)),
        created_by=row.created_by,
        images={} if row.images is None else parse_image_sources(row.images),
    )


def read_networks(unit: Unit, rows: Sequence[ClusterRow]) -> dict[str, ClusterRow]:
    """Return the clusters that created the networks of the given clusters. The keys are the returned rows' IDs."""
    found = {row.id: row for row in rows if row.network is None}
    joined = {row.network for row in rows if row.network is not None} - found.keys()
    for group in split_ids(sorted(joined)):
        found |= {row.id: row for row in read_clusters(unit, OF_IDS, {"ids": group})}
    return found


def read_vlans(unit: Unit, ids: Iterable[str]) -> dict[str, dict[Name, VlanId]]:
    """Return the claimed VLAN IDs of clusters, by cluster ID and then by site."""
    found: dict[str, dict[Name, VlanId]] = defaultdict(dict)
    for group in split_ids(ids):
        for cluster_id, site, vlan in unit.session.execute(_READ_VLANS, {"ids": group}):
            found[cluster_id][Name(site)] = VlanId(vlan)
    return found


def read_service_ids(unit: Unit, ids: Iterable[str]) -> dict[str, int]:
    """Return the claimed service IDs of clusters, by cluster ID."""
    found: dict[str, int] = {}
    for group in split_ids(ids):
        found |= {row.cluster_id: row.number for row in unit.session.execute(_READ_SERVICES, {"ids": group})}
    return found


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
