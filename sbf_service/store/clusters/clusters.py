"""Existing clusters: views, deletion, leases, and sharing of networks."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import bindparam, select, true

from sbf_service.domain.admission import RequestLimits, check_request_limits
from sbf_service.domain.guest_seeds import make_peers
from sbf_service.domain.idempotency import ANY_ATTEMPT, AttemptFence
from sbf_service.store.clusters.cluster_documents import format_cluster, make_joined_view, parse_current_spec
from sbf_service.store.clusters.cluster_keys import find_newest_cluster
from sbf_service.store.clusters.cluster_queries import find_running_members
from sbf_service.store.clusters.cluster_statuses import read_placements
from sbf_service.store.clusters.guest_seeds import read_network_clusters, read_service_secret
from sbf_service.store.clusters.live_clusters import read_networks, read_service_ids, read_vlans
from sbf_service.store.clusters.transitions import drain_cluster
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.networks.cluster_gateways import find_network_gateways
from sbf_service.store.networks.network_routers import describe_lost_routers
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import split_ids
from sbf_service.store.tables.guest_tables import GuestPowerRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit, record_audit
from sbf_service.store.users.quotas import NO_LIMITS, check_lease
from virtcloud.model.access import QuotaLimits
from virtcloud.model.cluster import ENDED_STATES, WANTED_STATES, ClusterSpec, ClusterState
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.guest_seed import ClusterPeers
from virtcloud.model.values import ClusterKey, Name, UserName, format_utc
from virtcloud.model.views import ClusterTransport, ClusterView

_READ_STOPPED_GUESTS = (
    select(GuestPowerRow.cluster_id, GuestPowerRow.guest)
    .where(GuestPowerRow.cluster_id.in_(bindparam("ids", expanding=True)), GuestPowerRow.stopped == true())
    .order_by(GuestPowerRow.guest)
)


def get_cluster(unit: Unit, key: str, cluster_id: str | None = None) -> ClusterView:
    """Return the newest cluster with a key, or the cluster with the key and the ID ``cluster_id``.

    Raise NotFound if no such cluster exists.
    """
    return make_cluster_view(unit, require_cluster(unit, key, cluster_id))


def read_peers(unit: Unit, key: str, cluster_id: str | None = None) -> ClusterPeers:
    """Return the guests of a cluster's network with their public host keys, and the guests' login name.

    Raise NotFound for an unknown cluster. Raise Conflict if the cluster is ending or has ended.
    """
    row = require_cluster(unit, key, cluster_id)
    if row.state not in WANTED_STATES:
        raise Conflict(f"cluster {key} is {row.state}, and its guests are removed: create a new cluster")
    clusters = read_network_clusters(unit, [row.network or row.id])
    login = next(cluster.login for cluster in clusters if cluster.id == row.id)
    peers = make_peers(clusters, read_service_secret(unit))
    return ClusterPeers(key=ClusterKey(row.key), user=login and login.user, peers=peers, network=row.network or row.id)


def delete_cluster(unit: Unit, key: str, reason: str, fence: AttemptFence = ANY_ATTEMPT) -> ClusterView:
    """Start to drain a cluster, and record ``reason`` in the audit log. Idempotent.

    Raise NotFound for an unknown key. Raise Gone if ``fence`` does not match the newest cluster with this key.
    """
    row = require_cluster(unit, key)
    fence.check(key, row)
    drain_cluster(unit, row, reason)
    return make_cluster_view(unit, row)


def extend_lease(
    unit: Unit, key: str, seconds: float, quota: QuotaLimits = NO_LIMITS, fence: AttemptFence = ANY_ATTEMPT
) -> ClusterView:
    """Extend a cluster's lease to at least ``seconds`` from now; never shorten it. Idempotent.

    Raise NotFound for an unknown key. Raise QuotaExceeded if the owner's quota forbids the longer lease. Raise Gone if
    ``fence`` does not match the newest cluster with this key. Raise Conflict if the cluster is ending or has ended.
    """
    row = require_cluster(unit, key)
    fence.check(key, row)
    if ClusterState(row.state) not in WANTED_STATES:
        raise Conflict(f"cluster {key} is {row.state}, and its lease cannot be extended: create a new cluster")
    ends = unit.now + timedelta(seconds=seconds)
    if ends > row.lease_ends:
        check_lease(unit, quota, row.owner, (ends - row.created_at).total_seconds())
        set_lease_end(unit, row, ends)
        unit.session.flush()
        increment_revisions(unit, find_network_gateways(unit, row.network or row.id))  # VPN grants end with the lease
    return make_cluster_view(unit, row)


def set_lease_end(unit: Unit, row: ClusterRow, ends: datetime, cause: str = "") -> None:
    """Set the end of a cluster's lease, and record the extension with its cause in the audit log.

    The caller must also increment the revisions of the network's gateways, because VPN grants end with the lease.
    """
    why = f"from {format_utc(row.lease_ends)} to {format_utc(ends)}{cause}"
    record_audit(unit, "lease_extended", why=why, cluster_id=row.id)
    row.lease_ends, row.version = ends, row.version + 1
    unit.changed.add(f"cluster:{row.key}")


def share_network(
    unit: Unit, key: str, owner: str, limits: RequestLimits, fence: AttemptFence = ANY_ATTEMPT
) -> ClusterView:
    """Share a cluster's network with ``owner``: clusters of this owner may join the network. Idempotent.

    Raise NotFound for an unknown key. Raise Gone if ``fence`` does not match the newest cluster with this key. Raise
    Conflict if the cluster has joined another cluster's network, is ending or has ended. Raise BeyondLimit if the
    network is already shared with the maximum number of owners.
    """
    row = _require_sharable(unit, key, fence)
    owners = parse_current_spec(row).shares_with
    if owner not in owners:
        shares = ClusterSpec.model_construct(owner=UserName(row.owner), shares_with=(*owners, UserName(owner)))
        # Check only the owners. The rest of the spec may exceed limits that were lowered after the cluster's creation.
        check_request_limits(limits, shares)
        _replace_shares(unit, row, (*owners, owner), f"shared with {owner}")
    return make_cluster_view(unit, row)


def unshare_network(unit: Unit, key: str, owner: str, fence: AttemptFence = ANY_ATTEMPT) -> ClusterView:
    """Stop sharing a cluster's network with ``owner``. Idempotent.

    Clusters of ``owner`` that have already joined the network stay. Raise NotFound for an unknown key. Raise Gone if
    ``fence`` does not match the newest cluster with this key. Raise Conflict if the cluster has joined another
    cluster's network, is ending or has ended.
    """
    row = _require_sharable(unit, key, fence)
    owners = parse_current_spec(row).shares_with
    if owner in owners:
        _replace_shares(unit, row, tuple(other for other in owners if other != owner), f"no longer shared with {owner}")
    return make_cluster_view(unit, row)


def _require_sharable(unit: Unit, key: str, fence: AttemptFence) -> ClusterRow:
    row = find_newest_cluster(unit, key)
    if row is None:
        raise make_unknown_error(key)
    fence.check(key, row)
    if row.network is not None:
        raise Conflict(
            f"cluster {key} is a member of another cluster's network: only the owner of the network can share it"
        )
    if ClusterState(row.state) not in WANTED_STATES:
        raise Conflict(f"cluster {key} is {row.state}, so its network can no longer be shared")
    return row


def _replace_shares(unit: Unit, row: ClusterRow, owners: tuple[str, ...], why: str) -> None:
    row.shares, row.version = ",".join(owners), row.version + 1
    record_audit(unit, "network_shared", why=why, cluster_id=row.id)
    unit.changed.add(f"cluster:{row.key}")
    unit.session.flush()


def require_cluster(unit: Unit, key: str, cluster_id: str | None = None) -> ClusterRow:
    """Return the newest cluster with a key, or the cluster with the key and the ID ``cluster_id``.

    Raise NotFound if no such cluster exists.
    """
    row = find_newest_cluster(unit, key) if cluster_id is None else unit.session.get(ClusterRow, cluster_id)
    if row is None or row.key != key:
        raise make_unknown_error(key, cluster_id)
    return row


def make_unknown_error(key: str, cluster_id: str | None = None) -> NotFound:
    """Return the error for a cluster that does not exist, or that the caller may not see."""
    if cluster_id is None:
        return NotFound(f"cluster {key} is not known; list the clusters: virtcloud cluster list")
    return NotFound(f"cluster {key} with the ID {cluster_id} is not known: omit the ID to get the newest cluster {key}")


def make_cluster_views(unit: Unit, rows: Sequence[ClusterRow]) -> list[ClusterView]:
    """Return the views of these clusters."""
    networks = read_networks(unit, rows)
    placements, vlans = read_placements(unit, [row.id for row in rows]), read_vlans(unit, networks)
    joined, members = _make_joined_views(unit, list(networks.values())), _read_member_owners(unit, rows)
    stopped, views = _read_stopped_guests(unit, rows), []
    for row in rows:
        network = networks[row.network or row.id]
        key = None if network is row else ClusterKey(network.key)
        view = format_cluster(row, key, placements.get(row.id, ()), vlans.get(network.id, {}), joined.get(network.id))
        computed = {"members": members.get(row.id, {}), "stopped_guests": tuple(stopped.get(row.id, ()))}
        views.append(view.model_copy(update=computed))
    return _add_lost_routers(unit, rows, views)


def make_cluster_view(unit: Unit, row: ClusterRow) -> ClusterView:
    """Return the view of a cluster."""
    return make_cluster_views(unit, [row])[0]


def _read_member_owners(unit: Unit, rows: Sequence[ClusterRow]) -> dict[str, dict[ClusterKey, UserName]]:
    found: dict[str, dict[ClusterKey, UserName]] = defaultdict(dict)
    for group in split_ids(row.id for row in rows if row.network is None and row.state not in ENDED_STATES):
        for member in find_running_members(unit, group):
            found[str(member.network)][ClusterKey(member.key)] = UserName(member.owner)
    return found


def _add_lost_routers(unit: Unit, rows: Sequence[ClusterRow], views: Sequence[ClusterView]) -> list[ClusterView]:
    routed = {
        row.id: row.network or row.id
        for row, view in zip(rows, views, strict=True)
        if row.state in WANTED_STATES and (row.network is not None or view.spec.router == "gateway")
    }
    faults = describe_lost_routers(unit, set(routed.values()))
    lost = {cluster: faults[network] for cluster, network in routed.items() if network in faults}
    return [
        view.model_copy(update={"reason": "; ".join(filter(None, (view.reason, lost[view.id])))})
        if view.id in lost
        else view
        for view in views
    ]


def _read_stopped_guests(unit: Unit, rows: Sequence[ClusterRow]) -> dict[str, list[Name]]:
    found: dict[str, list[Name]] = defaultdict(list)
    for group in split_ids(row.id for row in rows if row.state in WANTED_STATES):
        for cluster_id, guest in unit.connection.execute(_READ_STOPPED_GUESTS, {"ids": group}):
            found[cluster_id].append(Name(guest))
    return found


def _make_joined_views(unit: Unit, rows: Sequence[ClusterRow]) -> dict[str, ClusterTransport | None]:
    """Return the view of each cluster's transport, by cluster ID.

    The view is None if the cluster has ended and the topology no longer contains the transport.
    """
    names = {row.id: Name(row.transport) for row in rows if row.transport is not None}
    if not names:
        return {}
    transports = {transport.name: transport for transport in read_topology(unit).transports}
    services = read_service_ids(unit, names)
    return {id_: make_joined_view(transports.get(name), services.get(id_)) for id_, name in names.items()}
