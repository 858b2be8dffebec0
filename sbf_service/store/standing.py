"""Reading clusters out of the tables: as they stand, as elements are to carry them, and as their owners see them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, exists, or_, select, true

from sbf_service.settle import Part, Standing
from sbf_service.store.columns import NAME
from sbf_service.store.reading import read_topology
from sbf_service.store.session import Unit
from sbf_service.store.tables import ClaimRow, ClusterRow, ElementRow, PlacementRow, ServiceClaimRow
from sbf_service.store.troubles import told
from sbf_service.wanted import LiveCluster, Network
from virtcloud.model.cluster import ENDED, WANTED, ClusterSpec, State
from virtcloud.model.element import ElementKind
from virtcloud.model.transport import Transport
from virtcloud.model.values import ClusterKey, Name, UserName, VlanId
from virtcloud.model.views import ClusterView, Joined, PlacementView, Progress

NOT_ENDED = ClusterRow.state.in_(frozenset(State) - ENDED)
"""Said so that an index finds them: most clusters have ended long ago."""
UNSETTLED = or_(NOT_ENDED, and_(ClusterRow.state.in_(ENDED), ClusterRow.quarantined == true()))
"""Clusters that may still move: not ended, or ended with numbers kept back."""
MOST_AT_ONCE = 1000

_IDS = bindparam("ids", type_=NAME, expanding=True)
_NUMBERS = (
    select(ClaimRow.cluster_id, ClaimRow.site, ClaimRow.vlan)
    .where(ClaimRow.cluster_id.in_(_IDS))
    .order_by(ClaimRow.site)
)
_SERVICES = select(ServiceClaimRow.cluster_id, ServiceClaimRow.number).where(ServiceClaimRow.cluster_id.in_(_IDS))
_PARTS = (
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


def clusters_where(unit: Unit, *conditions: ColumnElement[bool]) -> Sequence[ClusterRow]:
    """Find clusters, oldest first."""
    found = select(ClusterRow).where(*conditions).order_by(ClusterRow.created_at, ClusterRow.key)
    return unit.session.scalars(found).all()


def on_element(element: str) -> ColumnElement[bool]:
    """Select the clusters that have a part on an element."""
    return has_part(PlacementRow.element == element)


def at_sites(sites: Iterable[str]) -> ColumnElement[bool]:
    """Select the clusters that have a part on an element of these sites."""
    return has_part(PlacementRow.element.in_(select(ElementRow.name).where(ElementRow.site.in_(sorted(sites)))))


def has_part(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """Select the clusters with such a part. Asked of each cluster: an element's parts are mostly of ended ones."""
    return exists().where(PlacementRow.cluster_id == ClusterRow.id, *conditions)


def parts_of(unit: Unit, ids: Iterable[str]) -> dict[str, tuple[Part, ...]]:
    """Give the parts of each of these clusters, in the order of the elements' names."""
    found: dict[str, list[Part]] = defaultdict(list)
    for some in _chunks(ids):
        for row in unit.session.execute(_PARTS, {"ids": some}):
            found[row.cluster_id].append(_part(row))
    return {cluster_id: tuple(parts) for cluster_id, parts in found.items()}


def standings(unit: Unit, rows: Sequence[ClusterRow]) -> list[Standing]:
    """Give these clusters as they stand."""
    members = _unsettled_members(unit, [row.id for row in rows if row.state not in WANTED and row.network is None])
    parts = parts_of(unit, [row.id for row in (*rows, *chain(*members.values()))])
    return [standing(row, parts, members.get(row.id, ())) for row in rows]


def standing(row: ClusterRow, parts: Mapping[str, tuple[Part, ...]], members: Sequence[ClusterRow] = ()) -> Standing:
    """Give one cluster as it stands."""
    return Standing(
        id=row.id,
        state=State(row.state),
        parts=parts.get(row.id, ()),
        deadline=row.deadline,
        lease_ends=row.lease_ends,
        leaving_since=row.leaving_since,
        quarantined=row.quarantined,
        members=tuple(standing(one, parts) for one in members),
    )


def members_of(unit: Unit, network: str) -> Sequence[ClusterRow]:
    """Give a network's members that have not settled, oldest first."""
    return clusters_where(unit, UNSETTLED, ClusterRow.network == network)


def _unsettled_members(unit: Unit, ids: Sequence[str]) -> dict[str, list[ClusterRow]]:
    found: dict[str, list[ClusterRow]] = defaultdict(list)
    for some in _chunks(ids):
        for row in clusters_where(unit, UNSETTLED, ClusterRow.network.in_(some)):
            found[str(row.network)].append(row)
    return found


def live_clusters(unit: Unit, *conditions: ColumnElement[bool]) -> list[LiveCluster]:
    """Give the clusters that elements are to carry now."""
    rows = clusters_where(unit, ClusterRow.state.in_(WANTED), *conditions)
    return live(unit, rows)


def live(unit: Unit, rows: Sequence[ClusterRow]) -> list[LiveCluster]:
    """Give these clusters with the numbers that they hold."""
    networks = networks_of(unit, rows)
    numbers, services = numbers_of(unit, networks), services_of(unit, networks)
    return [_live(row, networks[row.network or row.id], numbers, services) for row in rows]


def _live(
    row: ClusterRow, network: ClusterRow, numbers: Mapping[str, Mapping[Name, VlanId]], services: Mapping[str, int]
) -> LiveCluster:
    return LiveCluster(
        id=row.id,
        key=ClusterKey(row.key),
        spec=spec_of(row),
        vlans=numbers[network.id],
        transport=None if network.transport is None else Name(network.transport),
        service=services.get(network.id),
        joined=None if network is row else Network(network.id, ClusterKey(network.key), spec_of(network)),
        created_by=row.created_by,
    )


def networks_of(unit: Unit, rows: Sequence[ClusterRow]) -> dict[str, ClusterRow]:
    """Give the clusters, by id, whose networks these clusters are in: their own, or those that members joined."""
    found = {row.id: row for row in rows if row.network is None}
    asked = {row.network for row in rows if row.network is not None} - found.keys()
    for some in _chunks(sorted(asked)):
        found |= {row.id: row for row in clusters_where(unit, ClusterRow.id.in_(some))}
    return found


def joined_by(transport: Transport | None, service: int | None) -> Joined | None:
    """Show what joins a cluster's sites: its own service on that transport, or the one that all share."""
    if transport is None:
        return None
    number = transport.shared if service is None else service
    return Joined(transport=transport.name, kind=transport.kind, service=number)


def numbers_of(unit: Unit, ids: Iterable[str]) -> dict[str, dict[Name, VlanId]]:
    """Give the numbers that each of these clusters holds, by site."""
    found: dict[str, dict[Name, VlanId]] = defaultdict(dict)
    for some in _chunks(ids):
        for cluster_id, site, vlan in unit.session.execute(_NUMBERS, {"ids": some}):
            found[cluster_id][Name(site)] = VlanId(vlan)
    return found


def services_of(unit: Unit, ids: Iterable[str]) -> dict[str, int]:
    """Give the service number that each of these clusters holds, where it has one of its own."""
    found: dict[str, int] = {}
    for some in _chunks(ids):
        found |= {row.cluster_id: row.number for row in unit.session.execute(_SERVICES, {"ids": some})}
    return found


def spec_of(row: ClusterRow) -> ClusterSpec:
    """Return the spec of a cluster, with those whom its network is shared with now."""
    return spec_in(row.spec) if row.shares is None else _shared(row.spec, row.shares)


@lru_cache(maxsize=8192)
def spec_in(spec: str) -> ClusterSpec:
    """Parse what was checked when it was put: a worker reads it of every cluster on a switch, again and again."""
    return ClusterSpec.model_validate_json(spec)


@lru_cache(maxsize=1024)
def _shared(spec: str, shares: str) -> ClusterSpec:
    owners = tuple(UserName(one) for one in shares.split(",") if one)
    return spec_in(spec).model_copy(update={"shares_with": owners})


def views(unit: Unit, rows: Sequence[ClusterRow]) -> list[ClusterView]:
    """Give these clusters as their owners see them."""
    networks = networks_of(unit, rows)
    parts, numbers = parts_of(unit, [row.id for row in rows]), numbers_of(unit, networks)
    joined, members = _joined(unit, list(networks.values())), _members_with_owners(unit, rows)
    return [
        _view(row, networks[row.network or row.id], parts.get(row.id, ()), numbers, joined).model_copy(
            update={"members": members.get(row.id, {})}
        )
        for row in rows
    ]


def view(unit: Unit, row: ClusterRow) -> ClusterView:
    """Give one cluster as its owner sees it."""
    return views(unit, [row])[0]


def _members_with_owners(unit: Unit, rows: Sequence[ClusterRow]) -> dict[str, dict[ClusterKey, UserName]]:
    """Return the members of each of these networks that have not ended."""
    found: dict[str, dict[ClusterKey, UserName]] = defaultdict(dict)
    for some in _chunks(row.id for row in rows if row.network is None and row.state not in ENDED):
        for member in clusters_where(unit, NOT_ENDED, ClusterRow.network.in_(some)):
            found[str(member.network)][ClusterKey(member.key)] = UserName(member.owner)
    return found


def _joined(unit: Unit, rows: Sequence[ClusterRow]) -> dict[str, Joined | None]:
    """Say what joins the sites of each cluster; of one that has ended the transport may be gone."""
    on = {row.id: row.transport for row in rows if row.transport is not None}
    if not on:
        return {}
    known = {one.name: one for one in read_topology(unit).transports}
    services = services_of(unit, on)
    return {id_: joined_by(known.get(Name(name)), services.get(id_)) for id_, name in on.items()}


def _view(
    row: ClusterRow,
    network: ClusterRow,
    parts: tuple[Part, ...],
    numbers: dict[str, dict[Name, VlanId]],
    joined: dict[str, Joined | None],
) -> ClusterView:
    """Show a member its network's numbers, until it has let go of them."""
    settled = row.state in ENDED and not row.quarantined
    return ClusterView(
        key=ClusterKey(row.key),
        id=row.id,
        attempt=row.attempt,
        version=row.version,
        state=State(row.state),
        reason=row.reason,
        vlans={} if settled else numbers[network.id],
        joined=joined.get(network.id),
        quarantined=row.quarantined,
        lease_ends=row.lease_ends,
        spec=spec_of(row),
        placements=tuple(_placement(part) for part in parts),
        network=None if network is row else ClusterKey(network.key),
        created_by=row.created_by,
    )


def _placement(part: Part) -> PlacementView:
    """Show an element's trouble only where it keeps this cluster waiting."""
    waits = part.progress in {Progress.ADDING, Progress.REMOVING} or not part.reachable
    return PlacementView(
        element=part.element,
        kind=part.kind,
        site=part.site,
        progress=part.progress,
        trouble=part.trouble if waits else None,
        reachable=part.reachable,
        seen_at=part.last_seen,
    )


def _part(row: Any) -> Part:  # noqa: ANN401 - a row of _PARTS
    return Part(
        element=Name(row.name),
        kind=ElementKind(row.kind),
        site=Name(row.site),
        added=row.added_revision,
        removed=row.removed_revision,
        confirmed=row.confirmed_revision,
        blocked=row.blocked,
        reachable=row.reachable,
        trouble=told(row.trouble, row.troubles, row.cluster_id, row.network),
        last_seen=row.last_seen,
    )


def _chunks(ids: Iterable[str]) -> Iterator[list[str]]:
    """Ask about so many at once: a statement takes 32,766 values in SQLite, 65,535 in PostgreSQL."""
    left = iter(ids)
    while some := list(islice(left, MOST_AT_ONCE)):
        yield some
