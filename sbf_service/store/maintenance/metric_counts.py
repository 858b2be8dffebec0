"""Counts and times for the metrics, with a constant number of queries."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import case, func, select

from sbf_service.domain.cluster_status import PlacementStatus
from sbf_service.store.clusters.cluster_queries import NOT_ENDED, find_clusters
from sbf_service.store.clusters.cluster_statuses import read_placements
from sbf_service.store.networks.outside_uses import count_failing_names
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import split_ids
from sbf_service.store.tables.service_tables import AuditRow, ServiceTimeRow
from sbf_service.store.tables.tables import ElementRow, SiteRow
from sbf_service.store.tables.vlan_tables import ClaimRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlans.allocation import ReservedVlans, find_excluded_vlans
from sbf_service.store.vlans.claims import read_foreign_vlans
from sbf_service.store.vlans.service_ids import count_service_ids
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import NotFound
from virtcloud.model.topology_document import Site
from virtcloud.model.views import PlacementProgress
from virtcloud.model.vlans import VlanSet

_IS_DEGRADED = ClusterRow.state == ClusterState.DEGRADED
BACKUP_TIME = "backup"


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """The numbers of claimed, quarantined and free IDs of a site or a transport."""

    claimed: int
    quarantined: int
    free: int


@dataclass(frozen=True, slots=True)
class ElementCounts:
    """The number of a site's elements of one kind, in total and with each problem.

    ``unconfirmed`` counts elements that have not confirmed their wanted revision, ``unsaved`` elements with a pending
    save.
    """

    total: int
    unconfirmed: int
    unreachable: int
    troubled: int
    unsaved: int


@dataclass(frozen=True, slots=True)
class InstallationCounts:
    """All counts and times, from one snapshot of the database.

    - ``oldest_change_s``: the age in seconds of the oldest unconfirmed change, or 0.
    - ``oldest_degraded_s``: the time in seconds for which the longest-degraded cluster has been degraded; 0 if no
      cluster is degraded.
    - ``last_backup``: the time of the last backup, or None.
    - ``failing_names``: the number of FQDNs with an error in the gateway's latest report, by gateway.
    """

    clusters: Mapping[ClusterState, int]
    pools: Mapping[str, PoolCounts]
    services: Mapping[str, PoolCounts]
    elements: Mapping[tuple[str, str], ElementCounts]
    oldest_change_s: float
    failing_names: Mapping[str, int]
    oldest_degraded_s: float
    last_backup: datetime | None


def count_installation(unit: Unit, reserved: ReservedVlans) -> InstallationCounts:
    """Return all counts. The unit must read a single snapshot."""
    return InstallationCounts(
        clusters=_count_clusters(unit),
        pools=_count_pools(unit, reserved),
        services=_count_services(unit),
        elements=_count_elements(unit),
        oldest_change_s=_find_oldest_change(unit),
        failing_names=count_failing_names(unit),
        oldest_degraded_s=_find_oldest_degraded(unit),
        last_backup=read_service_time(unit, BACKUP_TIME),
    )


def _count_clusters(unit: Unit) -> dict[ClusterState, int]:
    counted = select(ClusterRow.state, func.count()).group_by(ClusterRow.state)
    return dict.fromkeys(ClusterState, 0) | {
        ClusterState(state): count for state, count in unit.session.execute(counted)
    }


def _count_pools(unit: Unit, reserved: ReservedVlans) -> dict[str, PoolCounts]:
    held: dict[tuple[str, bool], set[int]] = defaultdict(set)
    claims = select(ClaimRow.site, ClaimRow.vlan, ClusterRow.quarantined)
    for name, vlan, is_quarantined in unit.session.execute(
        claims.join(ClusterRow, ClusterRow.id == ClaimRow.cluster_id)
    ):
        held[name, is_quarantined].add(vlan)
    pools = {row.name: row.pool for row in unit.session.scalars(select(SiteRow).where(SiteRow.present))}
    counts = {}
    foreign = read_foreign_vlans(unit, list(pools))
    for site in _read_sites(unit):
        claimed, quarantined = held[site.name, False], held[site.name, True]
        if not (pools[site.name] or claimed or quarantined):
            continue  # a site without a pool allocates no VLAN IDs; 0 free IDs would look like an exhausted pool
        excluded = find_excluded_vlans(unit, site, reserved)
        free = frozenset.difference(pools[site.name], excluded, claimed, quarantined, foreign.get(site.name, VlanSet()))
        counts[str(site.name)] = PoolCounts(len(claimed), len(quarantined), len(free))
    return counts


def _count_services(unit: Unit) -> dict[str, PoolCounts]:
    transports = read_topology(unit).transports if _read_sites(unit) else ()
    with_services = [transport for transport in transports if transport.services]
    return {str(transport.name): PoolCounts(*count_service_ids(unit, transport)) for transport in with_services}


def _read_sites(unit: Unit) -> tuple[Site, ...]:
    try:
        return read_topology(unit).sites
    except NotFound:
        return ()


def _count_elements(unit: Unit) -> dict[tuple[str, str], ElementCounts]:
    unconfirmed = ElementRow.confirmed_revision < ElementRow.wanted_revision
    troubled, unsaved = ElementRow.trouble.is_not(None), ElementRow.unsaved_since.is_not(None)
    conditions = (unconfirmed, ElementRow.reachable.is_(False), troubled, unsaved)
    sums = [func.sum(case((condition, 1), else_=0)) for condition in conditions]
    rows = select(ElementRow.site, ElementRow.kind, func.count(), *sums).where(ElementRow.present)
    found = unit.session.execute(rows.group_by(ElementRow.site, ElementRow.kind).order_by(ElementRow.site))
    return {(site, kind): ElementCounts(*map(int, counts)) for site, kind, *counts in found}


def _find_oldest_change(unit: Unit) -> float:
    """Return the age in seconds of the oldest unconfirmed change of a cluster that has not ended, or 0."""
    rows = find_clusters(unit, NOT_ENDED, ClusterRow.state != ClusterState.ACTIVE)
    parts = read_placements(unit, [row.id for row in rows])
    degraded = _read_degraded_at(unit, [row.id for row in rows if row.state == ClusterState.DEGRADED])
    since = [_changed_at(row, degraded) for row in rows if _is_unconfirmed(parts.get(row.id, ()))]
    return max(((unit.now - moment).total_seconds() for moment in since), default=0.0)


def _find_oldest_degraded(unit: Unit) -> float:
    rows = unit.session.execute(select(ClusterRow.id, ClusterRow.created_at).where(_IS_DEGRADED)).all()
    since = _read_degraded_at(unit, [row.id for row in rows])
    return max(((unit.now - since.get(row.id, row.created_at)).total_seconds() for row in rows), default=0.0)


def _is_unconfirmed(parts: tuple[PlacementStatus, ...]) -> bool:
    return any(
        part.progress in {PlacementProgress.ADDING, PlacementProgress.REMOVING} or not part.reachable for part in parts
    )


def _changed_at(row: ClusterRow, degraded: Mapping[str, datetime]) -> datetime:
    return row.leaving_since or degraded.get(row.id) or row.created_at


def _read_degraded_at(unit: Unit, ids: list[str]) -> dict[str, datetime]:
    newest = select(AuditRow.cluster_id, func.max(AuditRow.at)).where(
        AuditRow.what == f"cluster_{ClusterState.DEGRADED}"
    )
    found: dict[str, datetime] = {}
    for group in split_ids(ids):
        rows = unit.session.execute(newest.where(AuditRow.cluster_id.in_(group)).group_by(AuditRow.cluster_id))
        found |= {cluster_id: moment for cluster_id, moment in rows if cluster_id is not None}
    return found


def read_service_time(unit: Unit, name: str) -> datetime | None:
    """Return the time of the last event with this name, such as ``backup``, or None."""
    row = unit.session.get(ServiceTimeRow, name)
    return None if row is None else row.at


def record_service_time(unit: Unit, name: str, at: datetime) -> None:
    """Record the time of an event, unless a later time is recorded."""
    row = unit.session.get(ServiceTimeRow, name)
    if row is None:
        unit.session.add(ServiceTimeRow(name=name, at=at))
    else:
        row.at = max(row.at, at)
