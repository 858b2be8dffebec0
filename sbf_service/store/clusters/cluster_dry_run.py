"""Dry runs of ``PUT /clusters``, and the differences between the observed and the wanted states of elements.

The differences are computed from stored data: the last reading of a switch or provider edge, or the confirmed revision
of a host or gateway.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import or_, select

from sbf_service.domain.admission import DEFAULT_LIMITS, RequestLimits, find_origin
from sbf_service.domain.dry_run import compute_edge_change, compute_switch_change, plan_segments
from sbf_service.domain.idempotency import AttemptBlocked, CreateAttempt, resolve_request
from sbf_service.domain.paths import LiveCluster, find_elements
from sbf_service.domain.placement import DEFAULT_OVERCOMMIT, Overcommit
from sbf_service.domain.wanted import compute_wanted
from sbf_service.store.clusters.capacity import place_spread
from sbf_service.store.clusters.cluster_documents import make_joined_view
from sbf_service.store.clusters.cluster_keys import find_highest_attempt, find_key_holders, make_latest_attempt
from sbf_service.store.clusters.cluster_planning import NewCluster, plan_cluster
from sbf_service.store.clusters.cluster_queries import IS_UNSETTLED
from sbf_service.store.clusters.live_clusters import make_live_clusters, read_live_clusters
from sbf_service.store.elements.observed_state import parse_observed_circuits, parse_observed_ports
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.users.quotas import NO_LIMITS, check_new_cluster
from sbf_service.store.vlans.allocation import CanSeeOwner, ReservedVlans, can_see_none
from sbf_service.store.vlans.pools import read_managed_vlans
from virtcloud.model.access import QuotaLimits
from virtcloud.model.changes import ClusterDryRun, ElementDifference, HostDifference
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.edge import EdgeWanted
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import AttemptWaits
from virtcloud.model.switch_state import SwitchWanted
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ClusterTransport
from virtcloud.model.vlans import VlanSet

NO_ID = ""
"""The ID of a cluster that exists only in a dry run."""


_READ_CONFIRMED = select(ElementRow.name, ElementRow.confirmed_revision)
_READ_STAYING = select(PlacementRow.element, PlacementRow.cluster_id, PlacementRow.added_revision)
_READ_LEAVING = (
    select(PlacementRow.element, ClusterRow.key)
    .join(ClusterRow, ClusterRow.id == PlacementRow.cluster_id)
    .join(ElementRow, ElementRow.name == PlacementRow.element)
    .where(
        IS_UNSETTLED,
        PlacementRow.removed_revision + 0 > 0,  # an expression, so that the database does not use the index of removals
        or_(PlacementRow.removed_revision > ElementRow.confirmed_revision, PlacementRow.blocked),
    )
)


@dataclass(frozen=True, slots=True)
class _ElementClusters:
    """The clusters on an element.

    - ``staying``: the clusters in the element's wanted state.
    - ``coming``: the clusters in ``staying`` that the element has not confirmed yet.
    - ``leaving``: the keys of the clusters that the element must remove.
    """

    staying: list[LiveCluster] = field(default_factory=list)
    coming: list[LiveCluster] = field(default_factory=list)
    leaving: list[ClusterKey] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _DifferenceScope:
    """Selects the clusters to include in computed differences.

    All differences include ``extra``: the requested cluster, if it does not exist yet. If ``only`` is None, the
    differences also include all existing clusters. Otherwise, the differences also include these clusters:

    - for a switch or provider edge: the existing clusters of the network of ``only``;
    - for a host or gateway: ``only``, if it exists and the element has not confirmed it.
    """

    extra: tuple[LiveCluster, ...] = ()
    only: LiveCluster | None = None

    def filter(self, found: _ElementClusters) -> _ElementClusters:
        if (only := self.only) is None:
            return _ElementClusters([*found.staying, *self.extra], [*found.coming, *self.extra], found.leaving)
        network = [cluster for cluster in found.staying if cluster.network.id == only.network.id]
        coming = [cluster for cluster in found.coming if cluster.id == only.id]
        return _ElementClusters([*network, *self.extra], [*coming, *self.extra], [])

    def vlans(self, unit: Unit, site: str) -> VlanSet:
        """Return the VLAN IDs that differences of a site's elements may contain."""
        managed = read_managed_vlans(unit, site)
        return managed if self.only is None else managed & self.only.vlans.values()


@dataclass(frozen=True, slots=True)
class _RequestedCluster:
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
    overcommit: Overcommit = DEFAULT_OVERCOMMIT,
    limits: RequestLimits = DEFAULT_LIMITS,
) -> ClusterDryRun:
    """Return the effect that :func:`put_cluster` would have now. Raise the errors of :func:`put_cluster`.

    Unless ``whole``, the differences include only the requested cluster and its network, because the caller must not
    see other owners' clusters.
    """
    holders = find_key_holders(unit, key)
    row = holders.newest
    decision = resolve_request(
        key, request, make_latest_attempt(row), find_highest_attempt(unit, row, request.spec.owner)
    )
    if isinstance(decision, AttemptBlocked):
        raise AttemptWaits(decision.message)
    if isinstance(decision, CreateAttempt) or row is None:
        spec, origin = request.spec, find_origin(request.spec.owner, unit.who)
        placed = place_spread(unit, spec, origin, overcommit, limits)
        check_new_cluster(unit, quota, placed)
        attempt = decision.attempt if isinstance(decision, CreateAttempt) else 0
        new = NewCluster(NO_ID, key, attempt, placed, holders, sees)
        requested = _RequestedCluster(plan_cluster(unit, read_topology(unit), new, reserved).cluster, created=True)
    else:
        requested = _RequestedCluster(make_live_clusters(unit, [row])[0], created=False)
    has_vlans = bool(requested.cluster.vlans)
    differences = _compute_cluster_differences(unit, requested, whole=whole) if has_vlans else []
    return ClusterDryRun(
        key=key,
        created=requested.created,
        vlans=dict(requested.cluster.vlans),
        joined=_make_joined(unit, requested),
        elements=tuple(differences),
    )


def compute_element_difference(unit: Unit, name: str) -> ElementDifference:
    """Return the difference between an element's observed and wanted states, from stored data only.

    Raise NotFound for an unknown element.
    """
    (difference,) = _compute_differences(unit, [require_element(unit, name)], _DifferenceScope())
    return difference


def _compute_cluster_differences(unit: Unit, requested: _RequestedCluster, *, whole: bool) -> list[ElementDifference]:
    scope = _DifferenceScope((requested.cluster,) if requested.created else (), None if whole else requested.cluster)
    names = sorted(find_elements(read_topology(unit), requested.cluster))
    return _compute_differences(unit, [require_element(unit, name) for name in names], scope)


def _make_joined(unit: Unit, requested: _RequestedCluster) -> ClusterTransport | None:
    """Return the view of a cluster's transport.

    Return None if the cluster has no transport, or if the cluster has ended and the topology no longer contains the
    transport.
    """
    transports = {transport.name: transport for transport in read_topology(unit).transports}
    name = requested.cluster.transport
    return None if name is None else make_joined_view(transports.get(name), requested.cluster.service)


def _compute_differences(unit: Unit, rows: Sequence[ElementRow], scope: _DifferenceScope) -> list[ElementDifference]:
    clusters = _read_elements(unit, [row.name for row in rows])
    return [_compute_difference(unit, row, scope.filter(clusters[row.name]), scope) for row in rows]


def _compute_difference(
    unit: Unit, row: ElementRow, clusters: _ElementClusters, scope: _DifferenceScope
) -> ElementDifference:
    name, topology = Name(row.name), read_topology(unit)
    difference = ElementDifference(
        element=name, kind=ElementKind(row.kind), site=Name(row.site), read_at=row.carried_at or row.last_seen
    )
    wanted = compute_wanted(name, topology, clusters.staying)
    if isinstance(wanted, SwitchWanted):
        change = compute_switch_change(wanted, parse_observed_ports(row) or {}, scope.vlans(unit, row.site))
        return difference.model_copy(update={"switch": change})
    if isinstance(wanted, EdgeWanted):
        circuits = compute_edge_change(wanted, parse_observed_circuits(row) or (), scope.vlans(unit, row.site))
        return difference.model_copy(update={"edge": circuits})
    add, remove = plan_segments(name, topology, clusters.coming), tuple(sorted(clusters.leaving))
    return difference.model_copy(update={"host": HostDifference(add=add, remove=remove)})


def _read_elements(unit: Unit, names: Sequence[str]) -> Mapping[str, _ElementClusters]:
    found: dict[str, _ElementClusters] = defaultdict(_ElementClusters)
    here = PlacementRow.element.in_(names)
    staying = here, PlacementRow.removed_revision.is_(None)
    ids = select(PlacementRow.cluster_id).where(*staying)
    clusters = {cluster.id: cluster for cluster in read_live_clusters(unit, ClusterRow.id.in_(ids))}
    confirmed = {
        row.name: row.confirmed_revision
        for row in unit.session.execute(_READ_CONFIRMED.where(ElementRow.name.in_(names)))
    }
    for placement in unit.session.execute(_READ_STAYING.where(*staying)):
        cluster = clusters.get(placement.cluster_id)
        if cluster is not None:
            found[placement.element].staying.append(cluster)
            if placement.added_revision > confirmed[placement.element]:
                found[placement.element].coming.append(cluster)
    for row in unit.session.execute(_READ_LEAVING.where(here)):
        found[row.element].leaving.append(ClusterKey(row.key))
    return found
