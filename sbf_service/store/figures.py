"""How much there is of everything: counts for metrics, in a handful of queries however large the installation is."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import case, func, select

from sbf_service.settle import Part
from sbf_service.store.foreign_vlans import foreign_at
from sbf_service.store.pools import Reserved, excluded_at
from sbf_service.store.reading import read_topology
from sbf_service.store.services import service_figures
from sbf_service.store.session import Unit
from sbf_service.store.standing import NOT_ENDED, clusters_where, parts_of
from sbf_service.store.tables import AuditRow, ClaimRow, ClusterRow, ElementRow, SiteRow
from virtcloud.model.cluster import State
from virtcloud.model.errors import NotFound
from virtcloud.model.topology import Site
from virtcloud.model.views import Progress
from virtcloud.model.vlans import VlanSet


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """How many numbers of a site, or of a transport, are in use, kept back and free."""

    claimed: int
    quarantined: int
    free: int


@dataclass(frozen=True, slots=True)
class ElementFigures:
    """How many elements of a kind there are at a site, and how many of them are not as they should be."""

    every: int
    behind: int
    unreachable: int
    troubled: int
    unsaved: int


@dataclass(frozen=True, slots=True)
class Figures:
    """All counts of one moment; ``oldest_change_s`` is the age of the oldest change that an element still owes."""

    clusters: Mapping[State, int]
    pools: Mapping[str, PoolFigures]
    services: Mapping[str, PoolFigures]
    elements: Mapping[tuple[str, str], ElementFigures]
    oldest_change_s: float


def figures(unit: Unit, reserved: Reserved) -> Figures:
    """Count everything in one snapshot."""
    return Figures(
        clusters=_clusters(unit),
        pools=_pools(unit, reserved),
        services=_services(unit),
        elements=_elements(unit),
        oldest_change_s=_oldest_change(unit),
    )


def _clusters(unit: Unit) -> dict[State, int]:
    counted = select(ClusterRow.state, func.count()).group_by(ClusterRow.state)
    return dict.fromkeys(State, 0) | {State(state): count for state, count in unit.session.execute(counted)}


def _pools(unit: Unit, reserved: Reserved) -> dict[str, PoolFigures]:
    held: dict[tuple[str, bool], set[int]] = defaultdict(set)
    claims = select(ClaimRow.site, ClaimRow.vlan, ClusterRow.quarantined)
    for name, vlan, quarantined in unit.session.execute(claims.join(ClusterRow, ClusterRow.id == ClaimRow.cluster_id)):
        held[name, quarantined].add(vlan)
    given = {row.name: row.pool for row in unit.session.scalars(select(SiteRow).where(SiteRow.present))}
    found = {}
    foreign = foreign_at(unit, list(given))
    for site in _sites(unit):
        claimed, kept = held[site.name, False], held[site.name, True]
        taken = excluded_at(site, reserved), claimed, kept, foreign.get(site.name, VlanSet())
        free = frozenset.difference(given[site.name], *taken)
        found[str(site.name)] = PoolFigures(len(claimed), len(kept), len(free))
    return found


def _services(unit: Unit) -> dict[str, PoolFigures]:
    transports = read_topology(unit).transports if _sites(unit) else ()
    return {str(one.name): PoolFigures(*service_figures(unit, one)) for one in transports if one.services}


def _sites(unit: Unit) -> tuple[Site, ...]:
    try:
        return read_topology(unit).sites
    except NotFound:
        return ()


def _elements(unit: Unit) -> dict[tuple[str, str], ElementFigures]:
    behind = ElementRow.confirmed_revision < ElementRow.wanted_revision
    troubled, unsaved = ElementRow.trouble.is_not(None), ElementRow.unsaved_since.is_not(None)
    conditions = (behind, ElementRow.reachable.is_(False), troubled, unsaved)
    sums = [func.sum(case((condition, 1), else_=0)) for condition in conditions]
    rows = select(ElementRow.site, ElementRow.kind, func.count(), *sums).where(ElementRow.present)
    found = unit.session.execute(rows.group_by(ElementRow.site, ElementRow.kind).order_by(ElementRow.site))
    return {(site, kind): ElementFigures(*map(int, counts)) for site, kind, *counts in found}


def _oldest_change(unit: Unit) -> float:
    """Look at clusters that have not ended: what is owed to an ended one is counted as quarantined."""
    rows = clusters_where(unit, NOT_ENDED, ClusterRow.state != State.ACTIVE)
    parts = parts_of(unit, [row.id for row in rows])
    degraded = _degraded_since(unit, [row.id for row in rows if row.state == State.DEGRADED])
    since = [_since(row, degraded) for row in rows if _is_owed(parts.get(row.id, ()))]
    return max(((unit.now - moment).total_seconds() for moment in since), default=0.0)


def _is_owed(parts: tuple[Part, ...]) -> bool:
    return any(part.progress in {Progress.ADDING, Progress.REMOVING} or not part.reachable for part in parts)


def _since(row: ClusterRow, degraded: Mapping[str, datetime]) -> datetime:
    return row.leaving_since or degraded.get(row.id) or row.created_at


def _degraded_since(unit: Unit, ids: list[str]) -> dict[str, datetime]:
    degraded = AuditRow.what == f"cluster_{State.DEGRADED}", AuditRow.cluster_id.in_(ids)
    rows = select(AuditRow.cluster_id, func.max(AuditRow.at)).where(*degraded).group_by(AuditRow.cluster_id)
    return {cluster_id: moment for cluster_id, moment in unit.session.execute(rows) if cluster_id is not None}
