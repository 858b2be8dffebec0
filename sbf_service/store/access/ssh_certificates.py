"""SSH certificates of users for gateways. SBF stores their serial numbers, so that users can revoke them."""

from dataclasses import dataclass
from datetime import timedelta

from sbf_service.domain.admission import RequestLimits
from sbf_service.domain.gateway_access import SSH_SERVER
from sbf_service.domain.ssh_authority import SshCertificate, SshPublicKey, make_gateway_view, sign_certificate
from sbf_service.store.access.ssh_revocations import record_certificate
from sbf_service.store.access.vpn_grants import connect_gateways, read_vpn_secret
from sbf_service.store.access.vpn_profile_views import list_pending_elements, require_live_cluster
from sbf_service.store.access.vpn_profiles import SHORTEST_VALIDITY
from sbf_service.store.access.vpn_users import is_invited
from sbf_service.store.clusters.clusters import read_peers, require_cluster
from sbf_service.store.clusters.live_clusters import read_networks
from sbf_service.store.networks.cluster_gateways import find_alive_gateways, read_cluster_gateways
from sbf_service.store.networks.gateway_addresses import assign_possible_addresses, ensure_gateway_addresses
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.ssh_tables import SshCertificateRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.errors import Conflict, Forbidden, NoAddressFree
from virtcloud.model.ssh_access import SshAccessView, SshCertificateView, SshGatewayView
from virtcloud.model.ssh_keys import KeyFingerprint
from virtcloud.model.values import ClusterKey, Name, UserName, format_utc


@dataclass(frozen=True, slots=True)
class CertifiedUser:
    """A user who requests a certificate, with the public key to certify."""

    name: UserName
    key: SshPublicKey
    fingerprint: KeyFingerprint
    serial: int


def create_certificate(
    unit: Unit, key: str, user: CertifiedUser, limits: RequestLimits, cluster_id: str | None = None
) -> SshCertificateView:
    """Create a certificate for access to a cluster's guests, after connecting the cluster to gateways if necessary.

    Raise NotFound for an unknown cluster. Raise Forbidden unless the user owns the cluster or is invited. Raise
    Conflict if the cluster is ending or has ended. Raise NoGateway if no gateway of the cluster offers SSH. Raise
    NoAddressFree if no gateway gets an address in the network.
    """
    row = require_live_cluster(unit, key, cluster_id)
    if user.name != row.owner and not is_invited(unit, row, user.name):
        raise Forbidden(
            f"{user.name} gets no certificate for cluster {key} of {row.owner}: the owner can invite {user.name} with "
            "'virtcloud access invite'"
        )
    network = read_networks(unit, [row])[row.network or row.id]
    ends = min(row.lease_ends, network.lease_ends, unit.now + timedelta(minutes=limits.certificate_minutes))
    if ends <= unit.now + SHORTEST_VALIDITY:
        raise Conflict(f"cluster {key}: its lease ended at {format_utc(ends)}: create a new cluster")
    unaddressed = _assign_addresses(unit, network, connect_gateways(unit, row, SSH_SERVER))
    recorded = SshCertificateRow(
        serial=user.serial,
        cluster_id=row.id,
        user=user.name,
        fingerprint=user.fingerprint,
        created_at=unit.now,
        expires_at=ends.replace(microsecond=0),
    )
    record_certificate(unit, recorded)
    record_audit(
        unit,
        "ssh_certificate_created",
        why=f"serial {user.serial} for {user.name}, key {user.fingerprint}, until {format_utc(ends)}",
        cluster_id=row.id,
    )
    stated = SshCertificate(row.id, user.name, user.serial, unit.now, ends)
    return _make_certificate_view(unit, _make_view(unit, row, unaddressed), user, stated)


def _assign_addresses(unit: Unit, network: ClusterRow, gateways: tuple[Name, ...]) -> frozenset[Name]:
    """Assign addresses in a network to gateways. Return the gateways that get no addresses.

    Raise NoAddressFree if none of the gateways gets addresses, for example in a network without subnets.
    """
    unaddressed = frozenset(name for name in gateways if not assign_possible_addresses(unit, network, name))
    if unaddressed.issuperset(gateways) and not ensure_gateway_addresses(unit, network, gateways[0]):
        raise NoAddressFree(
            f"network {network.key} has no subnets, so its gateways have no addresses in it: connect through SBF "
            "('virtcloud cluster ssh --through sbf'), or create a cluster with subnets"
        )
    return unaddressed


def _make_certificate_view(
    unit: Unit, access: SshAccessView, user: CertifiedUser, stated: SshCertificate
) -> SshCertificateView:
    found = read_peers(unit, access.cluster, access.cluster_id)
    return SshCertificateView(
        **dict(access),
        user=user.name,
        serial=user.serial,
        certificate=sign_certificate(read_vpn_secret(unit), user.key, stated),
        expires_at=stated.ends.replace(microsecond=0),
        guest_user=found.user,
        peers=found.peers,
    )


def read_ssh_access(unit: Unit, key: str, user: str, cluster_id: str | None = None) -> SshAccessView:
    """Return the view of a user's SSH access to a cluster's guests. Raise NotFound for an unknown cluster.

    The view lists the gateways that offer this access, or none unless the user owns the cluster or is invited.
    """
    row = require_cluster(unit, key, cluster_id)
    view = _make_view(unit, row)
    may_connect = user == row.owner or is_invited(unit, row, user)
    return view if may_connect else view.model_copy(update={"gateways": ()})


def _make_view(unit: Unit, row: ClusterRow, unaddressed: frozenset[Name] = frozenset()) -> SshAccessView:
    network = read_networks(unit, [row])[row.network or row.id]
    return SshAccessView(
        cluster=ClusterKey(row.key),
        cluster_id=row.id,
        gateways=_list_gateways(unit, row, unaddressed),
        pending=list_pending_elements(unit, row),
        lease_ends=min(row.lease_ends, network.lease_ends),
    )


def _list_gateways(unit: Unit, row: ClusterRow, omitted: frozenset[Name]) -> tuple[SshGatewayView, ...]:
    """Return the cluster's gateways that offer SSH, except ``omitted`` and removed gateways.

    Gateways with stale agents come last.
    """
    topology, secret, alive = read_topology(unit), read_vpn_secret(unit), find_alive_gateways(unit)
    names = [name for name in read_cluster_gateways(unit, [row.id]).get(row.id, ()) if name not in omitted]
    present = (topology.gateways.get(name) for name in sorted(names, key=lambda name: name not in alive))
    found = [gateway for gateway in present if gateway is not None]
    return tuple(make_gateway_view(secret, gateway.name, gateway.ssh) for gateway in found if gateway.ssh is not None)
