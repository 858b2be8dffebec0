"""The gateways of clusters, and the statements that end a cluster's VPN access.

This module must not import ``live_clusters``, which imports this module.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import bindparam, delete, insert, or_, select, update

from sbf_service.store.clusters.cluster_queries import RowsOfClusters
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import equals_any
from sbf_service.store.tables.gateway_tables import (
    GatewayAddressRow,
    NetworkRouterRow,
    OutsideUseRow,
    PublicationRow,
    ServiceNodeRow,
    TrafficRow,
)
from sbf_service.store.tables.tables import Base, ElementRow
from sbf_service.store.tables.vpn_tables import (
    ClusterGatewayRow,
    VpnAddressRow,
    VpnConnectionRow,
    VpnInvitationRow,
    VpnProfileRow,
)
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.element import ElementKind
from virtcloud.model.values import Name

_INSERT = insert(Base.metadata.tables[ClusterGatewayRow.__tablename__])
_GATEWAYS = RowsOfClusters(ClusterGatewayRow.cluster_id, ClusterGatewayRow.position, ClusterGatewayRow.gateway)
_READ_ALIVE = select(ElementRow.name).where(
    ElementRow.present,
    ElementRow.kind == ElementKind.GATEWAY,
    ElementRow.reachable,
    ElementRow.last_seen.is_not(None),
)
_READ_OF_NETWORK = (
    select(ClusterGatewayRow.gateway)
    .join(ClusterRow, ClusterRow.id == ClusterGatewayRow.cluster_id)
    .where(or_(ClusterRow.id == bindparam("network"), ClusterRow.network == bindparam("network")))
    .where(equals_any(ClusterRow.state, WANTED_STATES))
    .distinct()
)
_REVOKE = (
    update(VpnProfileRow)
    .where(VpnProfileRow.cluster_id == bindparam("ended"), VpnProfileRow.revoked_at.is_(None))
    .values(revoked_at=bindparam("now"))
)
_PROFILES = select(VpnProfileRow.id).where(VpnProfileRow.cluster_id == bindparam("ended")).scalar_subquery()
_DELETE_ADDRESSES = delete(VpnAddressRow).where(VpnAddressRow.profile_id.in_(_PROFILES))
_DELETE_CONNECTIONS = delete(VpnConnectionRow).where(VpnConnectionRow.profile_id.in_(_PROFILES))
_DELETE_INVITATIONS = delete(VpnInvitationRow).where(VpnInvitationRow.cluster_id == bindparam("ended"))
_DELETE_GATEWAYS = delete(ClusterGatewayRow).where(ClusterGatewayRow.cluster_id == bindparam("ended"))
_DELETE_INTERFACES = delete(GatewayAddressRow).where(GatewayAddressRow.network_id == bindparam("ended"))
_DELETE_ROUTER = delete(NetworkRouterRow).where(NetworkRouterRow.network_id == bindparam("ended"))
_DELETE_SERVICE_NODE = delete(ServiceNodeRow).where(ServiceNodeRow.network_id == bindparam("ended"))
_DELETE_USES = delete(OutsideUseRow).where(OutsideUseRow.network_id == bindparam("ended"))
_DELETE_TRAFFIC = delete(TrafficRow).where(TrafficRow.network_id == bindparam("ended"))
_DELETE_PUBLICATIONS = (
    delete(PublicationRow).where(PublicationRow.cluster_id == bindparam("ended")).returning(PublicationRow.gateway)
)


def read_cluster_gateways(unit: Unit, ids: Iterable[str] | None) -> dict[str, tuple[Name, ...]]:
    """Return the gateways of clusters (None: all clusters), by cluster ID and in order of preference.

    Omit clusters without gateways.
    """
    found: dict[str, list[Name]] = defaultdict(list)
    for cluster_id, _, gateway in _GATEWAYS.read(unit, ids):
        found[cluster_id].append(Name(gateway))
    return {cluster_id: tuple(gateways) for cluster_id, gateways in found.items()}


def find_network_gateways(unit: Unit, network: str) -> frozenset[str]:
    """Return the gateways of a network's clusters, except clusters that are ending or have ended."""
    return frozenset(unit.connection.execute(_READ_OF_NETWORK, {"network": network}).scalars())


def find_alive_gateways(unit: Unit) -> frozenset[Name]:
    """Return the gateways whose agents have sent a heartbeat and are not stale."""
    return frozenset(map(Name, unit.connection.execute(_READ_ALIVE).scalars()))


def insert_gateways(unit: Unit, cluster_id: str, gateways: Sequence[Name], first: int = 0) -> None:
    """Record gateways of a cluster, in order of preference. ``first`` is the position of the first new gateway."""
    rows = [
        {"cluster_id": cluster_id, "gateway": gateway, "position": position}
        for position, gateway in enumerate(gateways, start=first)
    ]
    unit.connection.execute(_INSERT, rows)


def revoke_profiles_of(unit: Unit, cluster_id: str) -> None:
    """Revoke an ending cluster's VPN profiles, and free their addresses."""
    if not _has_gateways(unit, cluster_id):
        return
    unit.connection.execute(_REVOKE, {"ended": cluster_id, "now": unit.now})
    unit.connection.execute(_DELETE_ADDRESSES, {"ended": cluster_id})


def end_publications_of(unit: Unit, cluster_id: str) -> frozenset[str]:
    """Delete an ending cluster's publications. Return their gateways."""
    found = unit.connection.execute(_DELETE_PUBLICATIONS, {"ended": cluster_id})
    return frozenset(found.scalars())


def delete_vpn_access(unit: Unit, cluster_id: str) -> None:
    """Delete an ended cluster's VPN invitations and VPN connections. Idempotent.

    If the cluster created a network, also delete the network's gateway addresses, router, service node, traffic
    counters, and uses of outside destinations.
    """
    for statement in (_DELETE_INVITATIONS, _DELETE_INTERFACES, _DELETE_ROUTER, _DELETE_USES, _DELETE_TRAFFIC):
        unit.connection.execute(statement, {"ended": cluster_id})
    if _has_gateways(unit, cluster_id):
        unit.connection.execute(_DELETE_CONNECTIONS, {"ended": cluster_id})
        unit.connection.execute(_DELETE_SERVICE_NODE, {"ended": cluster_id})


def delete_gateways(unit: Unit, cluster_id: str) -> None:
    """Delete the records of a cluster's gateways.

    Call this after :func:`delete_vpn_access`, when every element has confirmed the cluster's removal: until then, the
    cluster uses the access port of each gateway.
    """
    unit.connection.execute(_DELETE_GATEWAYS, {"ended": cluster_id})


def _has_gateways(unit: Unit, cluster_id: str) -> bool:
    return bool(read_cluster_gateways(unit, [cluster_id]))
