"""SSH access in the wanted documents of gateways: grants for a cluster's owner and invited users."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import aliased

from sbf_service.domain.ssh_access import ReachableCluster, add_ssh
from sbf_service.domain.ssh_authority import make_ssh_server
from sbf_service.store.access.ssh_revocations import read_revoked_serials
from sbf_service.store.access.vpn_grants import read_vpn_secret
from sbf_service.store.clusters.guest_seeds import read_network_clusters
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.columns import NAME_TYPE, equals_any, split_ids
from sbf_service.store.tables.vpn_tables import VpnInvitationRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.values import Name
from virtcloud.model.wanted import HostWanted

_NETWORK = aliased(ClusterRow)
_READ_CLUSTERS = (
    select(
        ClusterRow.id,
        ClusterRow.owner,
        ClusterRow.lease_ends,
        _NETWORK.id.label("network_id"),
        _NETWORK.lease_ends.label("network_ends"),
    )
    .join(_NETWORK, _NETWORK.id == func.coalesce(ClusterRow.network, ClusterRow.id))
    .join(PlacementRow, PlacementRow.cluster_id == ClusterRow.id)
    .where(PlacementRow.element == bindparam("gateway"), PlacementRow.removed_revision.is_(None))
    .where(equals_any(ClusterRow.state, WANTED_STATES))
    .order_by(ClusterRow.id)
)
_READ_INVITED = (
    select(VpnInvitationRow.cluster_id, VpnInvitationRow.user)
    .where(VpnInvitationRow.cluster_id.in_(bindparam("ids", type_=NAME_TYPE, expanding=True)))
    .order_by(VpnInvitationRow.cluster_id, VpnInvitationRow.user)
)


def add_ssh_access(unit: Unit, name: str, wanted: HostWanted) -> HostWanted:
    """Return ``wanted`` with sshd and grants, if the element ``name`` is a gateway with SSH access.

    For any other element, return ``wanted`` unchanged.
    """
    gateway = read_topology(unit).gateways.get(Name(name))
    if gateway is None or gateway.ssh is None:
        return wanted
    server = make_ssh_server(read_vpn_secret(unit), gateway.name, gateway.ssh)
    networks = [segment.id for segment in wanted.segments if segment.gateway_addresses]
    return add_ssh(wanted, server, _read_reachable(unit, gateway.name), read_network_clusters(unit, networks))


def _read_reachable(unit: Unit, gateway: Name) -> list[ReachableCluster]:
    rows = unit.connection.execute(_READ_CLUSTERS, {"gateway": gateway}).all()
    invited, revoked = _read_invited(unit, [row.id for row in rows]), _read_revoked(unit, [row.id for row in rows])
    return [
        ReachableCluster(
            id=row.id,
            network=row.network_id,
            users=tuple(dict.fromkeys((row.owner, *invited.get(row.id, ())))),
            ends=min(row.lease_ends, row.network_ends),
            revoked=revoked.get(row.id, {}),
        )
        for row in rows
    ]


def _read_revoked(unit: Unit, clusters: Iterable[str]) -> Mapping[str, Mapping[str, Sequence[int]]]:
    found: dict[str, dict[str, Sequence[int]]] = defaultdict(dict)
    for (cluster, user), serials in read_revoked_serials(unit, clusters).items():
        found[cluster][user] = serials
    return found


def _read_invited(unit: Unit, clusters: Iterable[str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for group in split_ids(clusters):
        for cluster, user in unit.connection.execute(_READ_INVITED, {"ids": group}):
            found[cluster].append(user)
    return found
