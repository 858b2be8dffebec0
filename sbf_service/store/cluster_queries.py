"""Queries of clusters by key, name or condition, and of their statuses, specs, IDs and views.

When the cluster of a key has ended, another owner may use the key. The *turn* of the key is then incremented, and the
attempt numbers of the new owner start again. If a former owner uses the key once more, the attempt numbers of this
owner continue to increase. A late call of an earlier attempt therefore changes nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import TypeAdapter
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

from sbf_service.domain.error_report import find_cluster_error
from sbf_service.domain.lifecycle import ClusterStatus, PlacementStatus
from sbf_service.domain.paths import ClusterNetwork, LiveCluster
from sbf_service.store.cluster_gateways import read_cluster_gateways
from sbf_service.store.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.columns import NAME_TYPE, equals_any
from sbf_service.store.tables import ElementRow
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlan_tables import ClaimRow, ServiceClaimRow
from sbf_service.store.vpn_tables import ClusterGatewayRow
from virtcloud.model.cluster import ENDED_STATES, WANTED_STATES, ClusterSpec, ClusterState
from virtcloud.model.element import ElementKind
from virtcloud.model.image import ImageSource
from virtcloud.model.transport import Transport
from virtcloud.model.values import ClusterKey, Name, UserName, VlanId
from virtcloud.model.views import ClusterTransport, ClusterView, PlacementProgress, PlacementView

NOT_ENDED = equals_any(ClusterRow.state, frozenset(ClusterState) - ENDED_STATES)
"""Clusters that have not ended. Most clusters have ended. The condition therefore lists the states of the other
clusters, so that the database uses an index.
"""
UNSETTLED = or_(NOT_ENDED, and_(equals_any(ClusterRow.state, ENDED_STATES), ClusterRow.quarantined == true()))
"""Clusters that may still change their state: they have not ended, or they have quarantined claims."""
IS_WANTED = (ClusterRow.state + "").in_([literal_column(f"'{state}'") for state in sorted(WANTED_STATES)])
"""Clusters that elements must carry, for queries whose other conditions have an index.

The expression prevents that the database reads all clusters in these states instead.
"""
IS_UNSETTLED = PlacementRow.settled == false()
"""Placements of clusters that meet ``UNSETTLED``. An index finds these placements of an element."""
MAX_PARAMETERS = 1000
Id = TypeVar("Id", str, int)
_IMAGE_SOURCES = TypeAdapter(dict[Name, ImageSource])

_IDS = bindparam("ids", type_=NAME_TYPE, expanding=True)
_READ_VLANS = (
    select(ClaimRow.cluster_id, ClaimRow.site, ClaimRow.vlan)
    .where(ClaimRow.cluster_id.in_(_IDS))
    .order_by(ClaimRow.site)
)
_READ_SERVICES = select(ServiceClaimRow.cluster_id, ServiceClaimRow.number).where(ServiceClaimRow.cluster_id.in_(_IDS))
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
    .where(PlacementRow.cluster_id.in_(_IDS))
    .order_by(PlacementRow.element)
)


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


def read_placements(unit: Unit, ids: Iterable[str]) -> dict[str, tuple[PlacementStatus, ...]]:
    """Return the placements of clusters by cluster ID; the placements of a cluster are sorted by element name."""
    found: dict[str, list[PlacementStatus]] = defaultdict(list)
    for group in split_ids(ids):
        for row in unit.session.execute(_READ_PLACEMENTS, {"ids": group}):
            found[row.cluster_id].append(_make_placement_status(row))
    return {cluster_id: tuple(parts) for cluster_id, parts in found.items()}


def read_cluster_statuses(unit: Unit, rows: Sequence[ClusterRow]) -> list[ClusterStatus]:
    """Return the statuses of clusters.

    The status of a network that is ending includes the members that may still change their state (``UNSETTLED``).
    """
    members = _find_members_of(unit, [row.id for row in rows if row.state not in WANTED_STATES and row.network is None])
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


_OF_NETWORKS = select_clusters(UNSETTLED, ClusterRow.network.in_(_IDS))
_RUNNING_OF_NETWORKS = select_clusters(NOT_ENDED, ClusterRow.network.in_(_IDS))
_OF_IDS = select_clusters(ClusterRow.id.in_(_IDS))
_NAMES = bindparam("names", type_=NAME_TYPE, expanding=True)
_FIND_ON_ELEMENTS = union(
    select(PlacementRow.cluster_id).where(PlacementRow.element.in_(_NAMES), IS_UNSETTLED),
    select(ClusterGatewayRow.cluster_id).where(ClusterGatewayRow.gateway.in_(_NAMES)),
)
_FIND_AT_SITES = select(ClaimRow.cluster_id).where(ClaimRow.site.in_(_NAMES))


def read_clusters_by_id(unit: Unit, ids: Iterable[str]) -> list[ClusterRow]:
    """Return the clusters with these IDs, oldest first."""
    rows = [row for group in split_ids(ids) for row in read_clusters(unit, _OF_IDS, {"ids": group})]
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


def _find_members_of(unit: Unit, ids: Sequence[str]) -> dict[str, list[ClusterRow]]:
    found: dict[str, list[ClusterRow]] = defaultdict(list)
    for group in split_ids(ids):
        for row in read_clusters(unit, _OF_NETWORKS, {"ids": group}):
            found[str(row.network)].append(row)
    return found


def read_live_clusters(unit: Unit, *conditions: ColumnElement[bool]) -> list[LiveCluster]:
    """Return the clusters that meet the conditions and that elements must carry."""
    is_wanted = IS_WANTED if conditions else equals_any(ClusterRow.state, WANTED_STATES)
    return make_live_clusters(unit, find_clusters(unit, is_wanted, *conditions))


def make_live_clusters(unit: Unit, rows: Sequence[ClusterRow]) -> list[LiveCluster]:
    """Return the clusters of these rows, each with the IDs of its network."""
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


@lru_cache(maxsize=1024)
def parse_image_sources(images: str) -> Mapping[Name, ImageSource]:
    """Parse the stored sources of a cluster's images; cached like :func:`parse_spec`."""
    return MappingProxyType(_IMAGE_SOURCES.validate_json(images))


def format_image_sources(images: Mapping[Name, ImageSource]) -> str | None:
    """Return the stored form of the sources of a cluster's images."""
    return _IMAGE_SOURCES.dump_json(dict(images), exclude_none=True).decode() if images else None


def read_networks(unit: Unit, rows: Sequence[ClusterRow]) -> dict[str, ClusterRow]:
    """Return the clusters that created the networks of the given clusters, by the ID of the creating cluster."""
    found = {row.id: row for row in rows if row.network is None}
    joined = {row.network for row in rows if row.network is not None} - found.keys()
    for group in split_ids(sorted(joined)):
        found |= {row.id: row for row in read_clusters(unit, _OF_IDS, {"ids": group})}
    return found


def make_joined_view(transport: Transport | None, service: int | None) -> ClusterTransport | None:
    """Return the view of a transport, with the network's own service ID or the service ID that all networks share."""
    if transport is None:
        return None
    service_id = transport.shared if service is None else service
    return ClusterTransport(
        transport=transport.name, kind=transport.kind, service=service_id, mtu=transport.cluster_mtu
    )


def read_vlans(unit: Unit, ids: Iterable[str]) -> dict[str, dict[Name, VlanId]]:
    """Return the claimed VLAN IDs of clusters, by cluster ID and site."""
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


def parse_current_spec(row: ClusterRow) -> ClusterSpec:
    """Return a cluster's spec with the choices of SBF and the owners with whom the network is shared now."""
    spec = row.resolved or row.spec
    return parse_spec(spec) if row.shares is None else _parse_shared_spec(spec, row.shares)


@lru_cache(maxsize=8192)
def parse_spec(spec: str) -> ClusterSpec:
    """Parse a stored spec; cached, because workers read the specs of all clusters on a switch repeatedly."""
    return ClusterSpec.model_validate_json(spec)


@lru_cache(maxsize=1024)
def _parse_shared_spec(spec: str, shares: str) -> ClusterSpec:
    owners = tuple(UserName(owner) for owner in shares.split(",") if owner)
    return parse_spec(spec).model_copy(update={"shares_with": owners})


def format_cluster(
    row: ClusterRow,
    network: ClusterKey | None,
    placements: tuple[PlacementStatus, ...],
    vlans: Mapping[Name, VlanId],
    joined: ClusterTransport | None,
) -> ClusterView:
    """Return the view of a cluster; ``network`` is the key of the network that a member joined."""
    return ClusterView(
        key=ClusterKey(row.key),
        id=row.id,
        attempt=row.attempt,
        version=row.version,
        state=ClusterState(row.state),
        reason=row.reason,
        vlans={} if row.state in ENDED_STATES and not row.quarantined else dict(vlans),
        joined=joined,
        quarantined=row.quarantined,
        lease_ends=row.lease_ends,
        spec=parse_current_spec(row),
        placements=tuple(_format_placement(status) for status in placements),
        network=network,
        created_by=row.created_by,
    )


def _format_placement(status: PlacementStatus) -> PlacementView:
    """Return the view of a placement. The view contains the error only while the cluster waits for the element."""
    waits = status.progress in {PlacementProgress.ADDING, PlacementProgress.REMOVING} or not status.reachable
    return PlacementView(
        element=status.element,
        kind=status.kind,
        site=status.site,
        progress=status.progress,
        trouble=status.trouble if waits else None,
        reachable=status.reachable,
        seen_at=status.last_seen,
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


def split_ids(ids: Iterable[Id]) -> Iterator[list[Id]]:
    """Yield groups of IDs, because a statement has at most 32,766 parameters in SQLite and 65,535 in PostgreSQL."""
    left = iter(ids)
    while group := list(islice(left, MAX_PARAMETERS)):
        yield group
