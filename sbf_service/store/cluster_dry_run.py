"""Dry runs of ``PUT /clusters``, and differences of elements computed from their last reading; nothing is written."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import select

from sbf_service.domain.dry_run import compute_edge_change, compute_switch_change, plan_segments
from sbf_service.domain.idempotency import AttemptBlocked, CreateAttempt, resolve_request
from sbf_service.domain.paths import LiveCluster, find_cluster_ports, list_elements
from sbf_service.domain.wanted import CachedPaths, FindPorts, compute_wanted
from sbf_service.store.allocation import CanSeeOwner, ReservedVlans, can_see_none
from sbf_service.store.cluster_creation import NewCluster, plan_cluster
from sbf_service.store.cluster_queries import (
    UNSETTLED,
    find_highest_attempt,
    find_newest_cluster,
    make_joined_view,
    make_latest_attempt,
    make_live_clusters,
    read_live_clusters,
)
from sbf_service.store.observed_state import parse_observed_circuits, parse_observed_ports
from sbf_service.store.pools import read_managed_vlans
from sbf_service.store.quotas import NO_LIMITS, check_new_cluster
from sbf_service.store.revisions import require_element
from sbf_service.store.tables import ClusterRow, ElementRow, PlacementRow
from sbf_service.store.unit_of_work import Unit, read_topology
from virtcloud.model.access import QuotaLimits
from virtcloud.model.changes import ClusterDryRun, ElementDifference, HostDifference
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.edge import EdgeWanted
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import AttemptWaits
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ClusterTransport
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchWanted

NO_ID = ""
"""The ID of a cluster that exists only in a dry run."""


_READ_CONFIRMED = select(ElementRow.name, ElementRow.confirmed_revision)
_READ_STAYING = select(PlacementRow.element, PlacementRow.cluster_id, PlacementRow.added_revision)
_READ_LEAVING = (
    select(PlacementRow.element, ClusterRow.key)
    .join(ClusterRow, ClusterRow.id == PlacementRow.cluster_id)
    .join(ElementRow, ElementRow.name == PlacementRow.element)
    .where(UNSETTLED, PlacementRow.removed_revision > ElementRow.confirmed_revision)
)


@dataclass(frozen=True, slots=True)
class _ElementClusters:
    """The clusters on an element: ``staying`` in the wanted state, and ``leaving``, the keys of those being removed.

    ``coming`` are the staying clusters that the element has not confirmed yet.
    """

    staying: list[LiveCluster] = field(default_factory=list)
    coming: list[LiveCluster] = field(default_factory=list)
    leaving: list[ClusterKey] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _DifferenceScope:
    """The clusters that differences include.

    These are all existing clusters and ``extra``. With ``only``, they are the clusters of its network and ``extra``,
    and a host's difference omits the other clusters of that network.
    """

    extra: tuple[LiveCluster, ...] = ()
    only: LiveCluster | None = None

    def of(self, seen: _ElementClusters) -> _ElementClusters:
        """Return the clusters of an element that are in the scope."""
        one = self.only
        if one is None:
            return _ElementClusters([*seen.staying, *self.extra], [*seen.coming, *self.extra], seen.leaving)
        network = [other for other in seen.staying if other.network.id == one.network.id]
        coming = [other for other in seen.coming if other.id == one.id]
        return _ElementClusters([*network, *self.extra], [*coming, *self.extra], [])

    def vlans(self, unit: Unit, site: str) -> VlanSet:
        """Return the VLAN IDs at a site that are in the scope."""
        managed = read_managed_vlans(unit, site)
        return managed if self.only is None else managed & self.only.vlans.values()


@dataclass(frozen=True, slots=True)
class _RequestedCluster:
    """A requested cluster, and whether it would be created."""

    cluster: LiveCluster
    created: bool


def dry_run_cluster(  # noqa: PLR0913 - the parameters of put_cluster
    unit: Unit,
    key: ClusterKey,
    request: ClusterRequest,
    reserved: ReservedVlans,
    quota: QuotaLimits = NO_LIMITS,
    *,
    sees: CanSeeOwner = can_see_none,
    whole: bool = True,
) -> ClusterDryRun:
    """Return what :func:`put_cluster` would do now; raise the errors that it would raise.

    With ``whole``, the differences include everything that is missing on an element. Without it they include only this
    cluster and its network, for a caller who may not see other owners' clusters.
    """
    row = find_newest_cluster(unit, key)
    decision = resolve_request(
        key, request, make_latest_attempt(row), find_highest_attempt(unit, row, request.spec.owner)
    )
    if isinstance(decision, AttemptBlocked):
        raise AttemptWaits(decision.message)
    if isinstance(decision, CreateAttempt) or row is None:
        check_new_cluster(unit, quota, request.spec)
        new = NewCluster(NO_ID, key, 0, request.spec, sees)
        requested = _RequestedCluster(plan_cluster(unit, read_topology(unit), new, reserved).cluster, created=True)
    else:
        requested = _RequestedCluster(make_live_clusters(unit, [row])[0], created=False)
    found = tuple(_compute_cluster_differences(unit, requested, whole=whole)) if requested.cluster.vlans else ()
    return ClusterDryRun(
        key=key,
        created=requested.created,
        vlans=dict(requested.cluster.vlans),
        joined=_make_joined(unit, requested),
        elements=found,
    )


def compute_element_difference(unit: Unit, name: str) -> ElementDifference:
    """Return what would be changed on an element now, computed from its last reading. Raise NotFound."""
    (found,) = _compute_differences(unit, [require_element(unit, name)], _DifferenceScope())
    return found


def _compute_cluster_differences(unit: Unit, requested: _RequestedCluster, *, whole: bool) -> list[ElementDifference]:
    scope = _DifferenceScope((requested.cluster,) if requested.created else (), None if whole else requested.cluster)
    names = sorted(list_elements(find_cluster_ports(read_topology(unit), requested.cluster)))
    return _compute_differences(unit, [require_element(unit, name) for name in names], scope)


def _make_joined(unit: Unit, requested: _RequestedCluster) -> ClusterTransport | None:
    if requested.cluster.transport is None:
        return None
    return make_joined_view(read_topology(unit).transport(requested.cluster.transport), requested.cluster.service)


def _compute_differences(unit: Unit, rows: Sequence[ElementRow], scope: _DifferenceScope) -> list[ElementDifference]:
    """Return the difference of each element. Every cluster is read once, with its placements on these elements."""
    seen, ways = _read_elements(unit, [row.name for row in rows]), CachedPaths()
    return [_compute_difference(unit, row, scope.of(seen[row.name]), scope, ways.ports_on) for row in rows]


def _compute_difference(
    unit: Unit, row: ElementRow, seen: _ElementClusters, scope: _DifferenceScope, ports: FindPorts
) -> ElementDifference:
    name, topology = Name(row.name), read_topology(unit)
    made = ElementDifference(
        element=name, kind=ElementKind(row.kind), site=Name(row.site), read_at=row.carried_at or row.last_seen
    )
    wanted = compute_wanted(name, topology, seen.staying, ports)
    if isinstance(wanted, SwitchWanted):
        change = compute_switch_change(wanted, parse_observed_ports(row) or {}, scope.vlans(unit, row.site))
        return made.model_copy(update={"switch": change})
    if isinstance(wanted, EdgeWanted):
        circuits = compute_edge_change(wanted, parse_observed_circuits(row) or (), scope.vlans(unit, row.site))
        return made.model_copy(update={"edge": circuits})
    add, remove = plan_segments(name, topology, seen.coming, ports), tuple(sorted(seen.leaving))
    return made.model_copy(update={"host": HostDifference(add=add, remove=remove)})


def _read_elements(unit: Unit, names: Sequence[str]) -> Mapping[str, _ElementClusters]:
    """Return the clusters on each of these elements."""
    found: dict[str, _ElementClusters] = defaultdict(_ElementClusters)
    here = PlacementRow.element.in_(names)
    staying = here, PlacementRow.removed_revision.is_(None)
    ids = select(PlacementRow.cluster_id).where(*staying)
    clusters = {one.id: one for one in read_live_clusters(unit, ClusterRow.id.in_(ids))}
    confirmed = {
        row.name: row.confirmed_revision
        for row in unit.session.execute(_READ_CONFIRMED.where(ElementRow.name.in_(names)))
    }
    for part in unit.session.execute(_READ_STAYING.where(*staying)):
        one = clusters.get(part.cluster_id)
        if one is not None:
            found[part.element].staying.append(one)
            found[part.element].coming.extend([one] if part.added_revision > confirmed[part.element] else [])
    for row in unit.session.execute(_READ_LEAVING.where(here)):
        found[row.element].leaving.append(ClusterKey(row.key))
    return found
