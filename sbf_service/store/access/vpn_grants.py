"""Access to networks through gateways: chooses gateways, adds VPN grants to wanted documents, and checks routers.

A grant permits a profile's device to connect to a network.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pydantic import SecretBytes
from sqlalchemy import bindparam, select
from sqlalchemy.orm import aliased

from sbf_service.domain.gateway_access import VPN_SERVER, GatewayRole
from sbf_service.domain.gateway_choice import choose_gateways
from sbf_service.domain.network_conflicts import check_ports_free
from sbf_service.domain.paths import LiveCluster, find_cluster_ports, list_elements
from sbf_service.domain.vpn_access import GrantedProfile, add_grants
from sbf_service.domain.vpn_authority import make_vpn_server
from sbf_service.store.access.replaced_connections import read_replaced_connections
from sbf_service.store.clusters.cluster_documents import parse_current_spec
from sbf_service.store.clusters.guest_seeds import read_service_secret
from sbf_service.store.clusters.live_clusters import make_live_clusters
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.networks.cluster_gateways import find_alive_gateways, insert_gateways
from sbf_service.store.networks.network_routers import take_over_routers
from sbf_service.store.networks.networks import read_clusters_on, read_guest_macs
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.columns import NAME_TYPE, equals_any, split_ids
from sbf_service.store.tables.vpn_tables import VpnAddressRow, VpnProfileRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.topology.topology_placements import change_placements
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.errors import BadInput, Conflict
from virtcloud.model.topology import Topology
from virtcloud.model.values import Address, Name
from virtcloud.model.wanted import HostWanted

VPN_SECRET = "vpn"  # noqa: S105 - the name of a row, not a secret
"""The name of the certificate authority's secret, which a migration creates."""
_NETWORK = aliased(ClusterRow)
_READ_PROFILES = (
    select(
        VpnProfileRow.id,
        VpnProfileRow.cluster_id,
        VpnProfileRow.network_id,
        VpnProfileRow.user,
        VpnProfileRow.device,
        VpnProfileRow.fingerprint,
        VpnProfileRow.router,
        ClusterRow.lease_ends,
        _NETWORK.lease_ends.label("network_ends"),
    )
    .join(ClusterRow, ClusterRow.id == VpnProfileRow.cluster_id)
    .join(_NETWORK, _NETWORK.id == VpnProfileRow.network_id)
    .join(PlacementRow, PlacementRow.cluster_id == VpnProfileRow.cluster_id)
    .where(PlacementRow.element == bindparam("gateway"), PlacementRow.removed_revision.is_(None))
    .where(VpnProfileRow.revoked_at.is_(None), equals_any(ClusterRow.state, WANTED_STATES))
    .order_by(VpnProfileRow.id)
)
_READ_ADDRESSES = select(VpnAddressRow.profile_id, VpnAddressRow.address, VpnAddressRow.prefix_length).where(
    VpnAddressRow.profile_id.in_(bindparam("ids", type_=NAME_TYPE, expanding=True))
)


def read_vpn_secret(unit: Unit) -> SecretBytes:
    """Return the secret from which SBF derives the certificate authority, the keys for tls-crypt-v2, and SSH keys."""
    return read_service_secret(unit, VPN_SECRET)


def add_vpn(unit: Unit, name: str, wanted: HostWanted) -> HostWanted:
    """Return ``wanted`` with OpenVPN servers and grants, if the element ``name`` is a gateway with VPN access.

    For any other element, return ``wanted`` unchanged.
    """
    gateway = read_topology(unit).gateways.get(Name(name))
    if gateway is None or gateway.vpn is None:
        return wanted
    server = make_vpn_server(read_vpn_secret(unit), gateway.name, gateway.vpn)
    profiles = _read_granted_profiles(unit, gateway.name)
    macs = {network: read_guest_macs(unit, network) for network in {profile.network for profile in profiles}}
    return add_grants(wanted, server, profiles, macs)


def _read_granted_profiles(unit: Unit, gateway: Name) -> list[GrantedProfile]:
    rows = unit.connection.execute(_READ_PROFILES, {"gateway": gateway}).all()
    addresses = read_device_addresses(unit, [row.id for row in rows])
    replaced = read_replaced_connections(unit, gateway)
    return [
        GrantedProfile(
            id=row.id,
            cluster=row.cluster_id,
            network=row.network_id,
            user=row.user_name,
            device=row.device,
            fingerprint=row.fingerprint,
            addresses=addresses.get(row.id, ()),
            ends=min(row.lease_ends, row.network_ends),
            replaced=replaced.get(row.id),
            router=row.router,
        )
        for row in rows
    ]


def read_device_addresses(unit: Unit, profiles: Iterable[str]) -> Mapping[str, tuple[Address, ...]]:
    """Return the addresses of the devices with these profiles, by profile ID, IPv4 first.

    Profiles without addresses, such as revoked profiles, are missing.
    """
    found: dict[str, list[Address]] = defaultdict(list)
    for group in split_ids(profiles):
        for profile, address, length in unit.connection.execute(_READ_ADDRESSES, {"ids": group}):
            found[profile].append(Address(f"{address}/{length}"))
    return {profile: tuple(sorted(addresses, key=lambda text: ":" in text)) for profile, addresses in found.items()}


def choose_cluster_gateways(
    unit: Unit, topology: Topology, cluster: LiveCluster, role: GatewayRole = VPN_SERVER
) -> tuple[Name, ...]:
    """Return the gateways that a cluster should use in a role. Raise NoGateway if no suitable gateway has the role."""
    return choose_gateways(topology, cluster, find_alive_gateways(unit), role)


def connect_gateways(unit: Unit, row: ClusterRow, role: GatewayRole = VPN_SERVER) -> tuple[Name, ...]:
    """Connect a running cluster to gateways with a role, and return its gateways with this role.

    Elements with new ports in the cluster's path must confirm the cluster again. A new gateway can replace a router
    that does not answer. Raise NoGateway if there is no gateway with the role. Raise Conflict if another cluster uses
    an access port of the path. The error names the other cluster only to its owner, because invited users also call
    this function.
    """
    topology = read_topology(unit)
    (cluster,) = make_live_clusters(unit, [row])
    chosen = choose_cluster_gateways(unit, topology, cluster, role)
    new = [name for name in chosen if name not in cluster.gateways]
    if not new:
        return chosen
    widened = replace(cluster, gateways=(*cluster.gateways, *new))
    insert_gateways(unit, cluster.id, new, len(cluster.gateways))
    before, after = find_cluster_ports(topology, cluster), find_cluster_ports(topology, widened)
    if ports := topology.access_ports & (after - before):  # the cluster already uses its former ports
        others = [other for other in read_clusters_on(unit, list_elements(ports)) if other.id != cluster.id]
        check_ports_free(topology, widened, others, lambda owner: owner == unit.who)
    changed = list_elements(after - before)
    increment_revisions(unit, changed)
    left = list_elements(before) - list_elements(after)
    change_placements(unit, added=((cluster.id, name) for name in changed), left=((cluster.id, name) for name in left))
    unit.changed.add(f"cluster:{cluster.key}")
    row.version += 1
    unit.session.flush()
    record_audit(unit, "gateways_connected", why=", ".join(new), cluster_id=cluster.id)
    for name in new:
        take_over_routers(unit, name)
    return chosen


def check_router(unit: Unit, row: ClusterRow, network: ClusterRow, former: VpnProfileRow | None) -> None:
    """Check that a user's device can become the only router of a network.

    ``row`` is the cluster, and ``former`` the device's current profile, if any. Raise BadInput if this cluster did not
    create the network, or created it without ``router: device``. Raise Conflict if another device is the router.
    """
    if row.id != network.id:
        raise BadInput(
            f"cluster {row.key}: expected the cluster that created the network, got a cluster that joined network "
            f"{network.key}: only the owner of {network.key} can make a device its router"
        )
    spec = parse_current_spec(network)
    if spec.router != "device":
        raise BadInput(
            f"cluster {row.key}: expected a cluster with router device, got router {spec.router or 'none'}: create "
            "the cluster with --router device"
        )
    is_router = VpnProfileRow.network_id == network.id, VpnProfileRow.router, VpnProfileRow.revoked_at.is_(None)
    present = unit.session.scalars(select(VpnProfileRow).where(*is_router)).one_or_none()
    if present is not None and present is not former:
        raise Conflict(
            f"cluster {row.key}: expected no router, got device {present.device} of {present.user}: revoke its profile "
            f"with 'virtcloud access revoke {row.key} {present.device} --user {present.user}'"
        )
