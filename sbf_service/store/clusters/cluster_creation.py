"""Creation of clusters: ``PUT /clusters`` in one transaction.

Other changes of the same sites wait for the transaction, which therefore consists of a few prepared statements. The
answer needs no further query.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from sqlalchemy import insert

from sbf_service.domain.admission import DEFAULT_LIMITS, RequestLimits, find_origin
from sbf_service.domain.cluster_status import describe_unconfirmed
from sbf_service.domain.idempotency import AttemptBlocked, CreateAttempt, NoChange, resolve_request
from sbf_service.domain.paths import LiveCluster, choose_transport, find_elements, find_sites
from sbf_service.domain.placement import DEFAULT_OVERCOMMIT, Overcommit
from sbf_service.store.clusters.capacity import place_spread
from sbf_service.store.clusters.cluster_documents import format_cluster, format_image_sources, make_joined_view
from sbf_service.store.clusters.cluster_keys import (
    find_highest_attempt,
    find_key_holders,
    make_latest_attempt,
    next_turn,
)
from sbf_service.store.clusters.cluster_planning import NewCluster, PlannedCluster, plan_cluster
from sbf_service.store.clusters.cluster_statuses import read_cluster_statuses
from sbf_service.store.clusters.clusters import make_cluster_view, make_unknown_error
from sbf_service.store.clusters.guest_seeds import find_network_hosts, make_guest_login
from sbf_service.store.clusters.job_proofs import check_job_proof
from sbf_service.store.clusters.live_clusters import read_vlans
from sbf_service.store.clusters.transitions import drain_cluster, state_topic
from sbf_service.store.elements.revisions import NewRevision, increment_revisions
from sbf_service.store.networks.certified_networks import suspend_uncertified
from sbf_service.store.networks.cluster_gateways import insert_gateways
from sbf_service.store.networks.network_routers import start_router
from sbf_service.store.networks.service_nodes import start_services
from sbf_service.store.store import Store
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.tables import Base
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.transactions.lock_scopes import LockScope
from sbf_service.store.unit_of_work import Unit, record_audit
from sbf_service.store.users.quotas import NO_LIMITS, check_new_cluster, find_limits
from sbf_service.store.vlans.allocation import CanSeeOwner, NetworkIds, ReservedVlans, can_see_none
from sbf_service.store.vlans.claims import claim_vlans
from sbf_service.store.vlans.service_ids import claim_service_id
from sbf_service.store.vlans.transport_vlans import set_transport
from virtcloud.current_call import current_call
from virtcloud.model.access import QuotaLimits
from virtcloud.model.cluster import ClusterRequest, ClusterState, check_transition
from virtcloud.model.errors import AttemptWaits, Forbidden, JobUnproven, VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, VlanId
from virtcloud.model.views import ClusterView

_CLUSTERS = Base.metadata.tables[ClusterRow.__tablename__]
_INSERT_CLUSTER = insert(_CLUSTERS)
_INSERT_PLACEMENTS = insert(Base.metadata.tables[PlacementRow.__tablename__])


@dataclass(frozen=True, slots=True)
class PutResult:
    """The answer to a request for a cluster."""

    view: ClusterView
    created: bool


@dataclass(frozen=True, slots=True)
class PutRequest:
    """A request for a cluster, with the limits that apply to the caller.

    An error message names another cluster only if ``sees(owner)`` is true for its owner. If a host requests a job's
    cluster, ``starter`` is this host, and the batch server must confirm the job (:mod:`.job_proofs`).
    """

    key: str
    request: ClusterRequest
    reserved: ReservedVlans
    quota: QuotaLimits = NO_LIMITS
    sees: CanSeeOwner = can_see_none
    starter: str | None = None
    overcommit: Overcommit = DEFAULT_OVERCOMMIT
    limits: RequestLimits = DEFAULT_LIMITS


def put_cluster(  # noqa: PLR0913 - the request, its caller and the caller's limits
    store: Store,
    key: str,
    request: ClusterRequest,
    reserved: ReservedVlans,
    who: str,
    *,
    quota: QuotaLimits = NO_LIMITS,
    sees: CanSeeOwner = can_see_none,
    starter: str | None = None,
    overcommit: Overcommit = DEFAULT_OVERCOMMIT,
    limits: RequestLimits = DEFAULT_LIMITS,
) -> PutResult:
    """Create a cluster, or return the existing cluster of this key and attempt. Idempotent.

    Raise NotFound for an unknown host, site, network or destination. Raise Gone for an attempt that has ended. Raise
    QuotaExceeded if the owner's quota forbids the cluster. Raise Forbidden if the owner may not use a host, an image or
    the network, or if ``starter`` requests a spread. Raise Conflict if another cluster uses the key, the name, the VLAN
    ID or an access port, or if the topology does not connect the sites. Raise NoVlanFree if no VLAN ID or no service ID
    is free. Raise NoGateway if the cluster needs a gateway, and none is suitable. Raise NoCapacity if the hosts have
    too little free capacity. Raise BeyondLimit if SBF chose more hosts than ``limits`` permit. Raise JobUnproven until
    the batch server has confirmed the job.

    A request with a higher attempt number first drains the earlier cluster. Raise AttemptWaits until the earlier
    cluster has ended.
    """
    put = PutRequest(key, request, reserved, quota, sees, starter, overcommit, limits)
    scope = None if _needs_everything(put) else partial(_find_scope, put=put)
    result = store.group_commit(lambda unit: _put(replace(unit, who=who), store.new_id(), put), scope)
    if isinstance(result, AttemptWaits | JobUnproven | Forbidden):
        raise result
    return result


def _needs_everything(put: PutRequest) -> bool:
    """Return whether a creation must lock all sites, because sites without the cluster's hosts can change."""
    spec = put.request.spec
    return bool(put.starter or spec.joins or spec.spread or spec.uses_gateways)


def _find_scope(unit: Unit, put: PutRequest) -> LockScope:
    """Return the sites and names that a creation must lock.

    The result has no sites if SBF will refuse the request because of its hosts or sites.
    """
    spec = put.request.spec
    names = {f"cluster {put.key}", f"cluster {spec.name or put.key}"}
    if find_limits(unit, spec.owner, put.quota) != NO_LIMITS:
        names.add(f"owner {spec.owner}")
    try:
        topology = read_topology(unit)
        transport = choose_transport(topology, spec.all_hosts, spec.sites)
        sites = find_sites(topology, spec.all_hosts, spec.sites)
    except VirtcloudError:
        return LockScope(frozenset(), frozenset(names))
    if transport is not None:
        names.add(f"transport {transport.name}")
    return LockScope(frozenset(site.name for site in sites), frozenset(names))


def _put(unit: Unit, new_id: str, put: PutRequest) -> PutResult | AttemptWaits | JobUnproven | Forbidden:
    """Execute a request.

    AttemptWaits and the errors of the job's confirmation are returned, because an exception would undo the transaction.
    """
    key, spec, holders = put.key, put.request.spec, find_key_holders(unit, put.key)
    row = holders.newest
    highest = find_highest_attempt(unit, row, spec.owner)
    decision = resolve_request(key, put.request, make_latest_attempt(row), highest)
    if row is not None and (row.quarantined or isinstance(decision, AttemptBlocked)):
        unit.require_everything()  # the earlier cluster may be at sites that are not locked
    if put.starter is not None and spec.spread is not None:
        raise Forbidden(
            f"job-starter {put.starter} may not request a spread of guests: a job's cluster uses the hosts of the job"
        )
    if put.starter is not None and not isinstance(decision, NoChange):
        unproven = check_job_proof(unit, key, spec, put.starter, use=isinstance(decision, CreateAttempt))
        if unproven is not None:
            return unproven
    if isinstance(decision, CreateAttempt):
        origin = find_origin(spec.owner, unit.who)
        placed = spec if spec.spread is None else place_spread(unit, spec, origin, put.overcommit, put.limits)
        check_new_cluster(unit, put.quota, placed)
        new = NewCluster(new_id, key, decision.attempt, placed, holders, put.sees, requested=spec)
        return PutResult(_create(unit, new, put.reserved), created=True)
    if row is None:
        raise make_unknown_error(key)
    if isinstance(decision, AttemptBlocked):
        drain_cluster(unit, row, f"attempt {put.request.attempt} was requested")
        unconfirmed = describe_unconfirmed(*read_cluster_statuses(unit, [row]))
        return AttemptWaits("; ".join(filter(None, [decision.message, unconfirmed])))
    return PutResult(make_cluster_view(unit, row), created=False)


def _create(unit: Unit, new: NewCluster, reserved: ReservedVlans) -> ClusterView:
    """Insert the cluster, its claims and its placements.

    A cluster that joins a network has no claims, but the network gets claims at new sites (`_extend_network`).
    """
    topology = read_topology(unit)
    planned = plan_cluster(unit, topology, new, reserved)
    row = _make_cluster_row(unit, new, planned.cluster)
    values = {column.name: getattr(row, column.name) for column in _CLUSTERS.columns}
    unit.connection.execute(_INSERT_CLUSTER, values)
    if planned.cluster.gateways:
        insert_gateways(unit, new.id, planned.cluster.gateways)
    if new.spec.services:
        start_services(unit, topology, row, planned.cluster)
    others = _find_changed_hosts(unit, planned)
    if planned.joined is None:
        _claim(unit, new.id, planned.ids, planned.ids.vlans)
    else:
        _extend_network(unit, planned.joined, planned.ids)
    why = f"requested by {new.spec.owner}: {planned.ids_text}{new.placement_text}"
    record_audit(unit, "cluster_created", why=why, cluster_id=new.id)
    if planned.cluster.spec.router == "gateway":
        start_router(unit, row, planned.cluster.gateways)
    revisions = _increment_revisions(unit, topology, planned, others)
    _insert_placements(unit, new.id, revisions)
    if planned.joined is not None:
        suspend_uncertified(unit, planned.joined.id)
    unit.changed |= {f"cluster:{new.key}", state_topic(new.key)}
    network = None if planned.cluster.joined is None else planned.cluster.joined.key
    statuses = tuple(revision.make_status(Name(name), row.network) for name, revision in revisions.items())
    joined = make_joined_view(planned.ids.transport, planned.ids.service)
    return format_cluster(row, network, statuses, planned.ids.vlans, joined)


def _find_changed_hosts(unit: Unit, planned: PlannedCluster) -> frozenset[str]:
    """Return the hosts whose wanted documents change because the new cluster joins their network.

    New guests become peers of the network's other guests. The network's first transport limits the MTU of all segments.
    """
    network = planned.joined
    if network is None or not (planned.cluster.spec.guests or network.transport != planned.ids.transport_name):
        return frozenset()
    return find_network_hosts(unit, network.id)


def _increment_revisions(
    unit: Unit, topology: Topology, planned: PlannedCluster, others: frozenset[str]
) -> dict[str, NewRevision]:
    """Increment the wanted revisions of a new cluster's elements, and of the hosts ``others``.

    Return the new revisions of the cluster's elements, by name. The clusters on ``others`` remain active, because their
    placements do not change.
    """
    own = find_elements(topology, planned.cluster)
    revisions = increment_revisions(unit, own | others)
    return {name: revision for name, revision in revisions.items() if name in own}


def _make_cluster_row(unit: Unit, new: NewCluster, cluster: LiveCluster) -> ClusterRow:
    spec, call = new.requested or new.spec, current_call()
    return ClusterRow(
        request_id=call.request_id if call else None,
        traceparent=call.traceparent if call else None,
        id=new.id,
        key=new.key,
        turn=next_turn(new.holders.newest, spec.owner),
        attempt=new.attempt,
        owner=spec.owner,
        spec=spec.model_dump_json(),
        resolved=None if cluster.spec == spec else cluster.spec.model_dump_json(),
        version=new.version,
        state=check_transition(ClusterState.REQUESTED, ClusterState.CONFIGURING),
        created_at=unit.now,
        deadline=unit.now + timedelta(seconds=spec.deadline_s),
        lease_ends=unit.now + timedelta(seconds=spec.lease_s),
        quarantined=False,
        transport=cluster.transport,
        name=spec.name,
        network=None if cluster.joined is None else cluster.joined.id,
        created_by=unit.who,
        login=make_guest_login(unit, spec),
        images=format_image_sources(cluster.images),
    )


def _claim(unit: Unit, cluster_id: str, ids: NetworkIds, vlans: Mapping[Name, VlanId]) -> None:
    claim_vlans(unit, cluster_id, vlans, ids.transport_name)
    if ids.service is not None and ids.transport is not None:
        claim_service_id(unit, ids.transport, ids.service, cluster_id)


def _extend_network(unit: Unit, network: ClusterRow, ids: NetworkIds) -> None:
    """Claim a network's VLAN IDs at new sites. The claims last until the network ends.

    A network that had a single site also gets a transport, and a service ID if the transport has service IDs.
    """
    claimed = read_vlans(unit, [network.id]).get(network.id, {})
    new = {site: vlan for site, vlan in ids.vlans.items() if site not in claimed}
    if not new:
        return
    if network.transport is None and ids.transport_name is not None:
        _claim(unit, network.id, ids, new)
        set_transport(unit, network.id, ids.transport_name)
        network.transport = ids.transport_name
    else:
        claim_vlans(unit, network.id, new, ids.transport_name)
    network.version += 1
    unit.changed.add(f"cluster:{network.key}")
    unit.session.flush()
    why = ", ".join(f"VLAN {vlan} at {site}" for site, vlan in new.items())
    record_audit(unit, "network_widened", why=f"{why}, over transport {ids.transport_name}", cluster_id=network.id)


def _insert_placements(unit: Unit, cluster_id: str, revisions: Mapping[str, NewRevision]) -> None:
    rows = [
        {"cluster_id": cluster_id, "element": name, "added_revision": new.revision} for name, new in revisions.items()
    ]
    if rows:
        unit.connection.execute(_INSERT_PLACEMENTS, rows)
