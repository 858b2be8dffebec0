"""Networks with several clusters: the checks and IDs of a cluster that joins a network, and checks of access ports."""

from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import bindparam, select

from sbf_service.domain.addressing import NetworkAddresses, list_guest_identities, list_router
from sbf_service.domain.network_conflicts import (
    QUARANTINE_REMEDY,
    check_paths_unchanged,
    check_ports_exclusive,
    check_ports_stay_access,
    check_sites_attached,
    describe_growth_remedy,
)
from sbf_service.domain.paths import LiveCluster, choose_transport, find_sites
from sbf_service.domain.subnets import NetworkIdentity
from sbf_service.domain.topology_change import TopologyChange
from sbf_service.domain.wanted import derive_mac
from sbf_service.log import get_log
from sbf_service.store.clusters.cluster_documents import parse_current_spec
from sbf_service.store.clusters.cluster_keys import find_running_cluster
from sbf_service.store.clusters.cluster_queries import find_members, find_running_members, find_unsettled_clusters
from sbf_service.store.clusters.live_clusters import make_live_clusters, read_networks
from sbf_service.store.elements.unchecked_elements import check_sites_checked
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.gateway_tables import GatewayAddressRow
from sbf_service.store.tables.vpn_tables import VpnAddressRow, VpnProfileRow
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlans.allocation import (
    CanSeeOwner,
    NetworkIds,
    ReservedVlans,
    allocate_longest_unused,
    check_not_taken,
    describe_unavailable,
    read_site_pools,
)
from sbf_service.store.vlans.service_ids import choose_service_id
from virtcloud.model.cluster import WANTED_STATES, ClusterSpec
from virtcloud.model.errors import Conflict, Forbidden, GuestTaken, NoSuchNetwork, NoVlanFree
from virtcloud.model.gateway_access import derive_gateway_mac
from virtcloud.model.guest_spec import Guest
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Site
from virtcloud.model.transport import Transport
from virtcloud.model.values import Address, Mac, Name, VlanId

log = get_log(__name__)

_READ_DEVICES = (
    select(VpnAddressRow.address, VpnProfileRow.device, VpnProfileRow.user)
    .join(VpnProfileRow, VpnProfileRow.id == VpnAddressRow.profile_id)
    .where(VpnAddressRow.network_id == bindparam("network"))
    .order_by(VpnAddressRow.address)
)
_READ_GATEWAYS = (
    select(GatewayAddressRow.address, GatewayAddressRow.prefix_length, GatewayAddressRow.gateway)
    .where(GatewayAddressRow.network_id == bindparam("network"))
    .order_by(GatewayAddressRow.address)
)


def find_network(unit: Unit, name_or_key: str) -> Sequence[ClusterRow]:
    """Return the running clusters in the network of the running cluster with this name or key.

    The cluster that created the network comes first. Return [] if no running cluster has this name or key.
    """
    row = find_running_cluster(unit, name_or_key)
    if row is None:
        return []
    network = read_networks(unit, [row])[row.network or row.id]
    return [network, *find_running_members(unit, [network.id])]


def find_joinable_network(unit: Unit, spec: ClusterSpec) -> ClusterRow:
    """Return the cluster that created the network that ``spec`` joins.

    Raise NoSuchNetwork if no running cluster has the name or key ``spec.joins``. Raise Forbidden if the network neither
    belongs to nor is shared with ``spec.owner``. Raise Conflict if the network is ending.
    """
    clusters = find_network(unit, str(spec.joins))
    if not clusters:
        raise NoSuchNetwork(f"network {spec.joins} is not known: no running cluster has this name or key")
    row = clusters[0]
    if spec.owner not in {row.owner, *parse_current_spec(row).shares_with}:
        raise Forbidden(f"{spec.owner} may not join network {spec.joins}: the network is not shared with {spec.owner}")
    if row.state not in WANTED_STATES:
        raise Conflict(f"network {spec.joins} can no longer be joined: cluster {row.key} is {row.state}")
    return row


def check_guests_distinct(unit: Unit, network: ClusterRow, spec: ClusterSpec) -> None:
    """Raise GuestTaken for a name, MAC address or IP address in ``spec`` that is in use in the network.

    The addresses of gateways, routers and users' devices, and the MAC addresses of gateways, are in use, too. If a
    guest's spec contains no MAC address, the MAC address that SBF derives for the guest is in use. After the end of a
    cluster, its guests' names are free, but their addresses stay in use until every element has confirmed the removal.
    """
    others = {
        f"address {address}": f"gateway {name}" for address, name in _read_gateway_addresses(unit, network).items()
    }
    others |= {f"MAC address {mac}": f"gateway {name}" for mac, name in _read_gateway_macs(unit, network).items()}
    others |= {f"address {address}": "the router" for address in list_router(parse_current_spec(network))}
    devices = {f"address {address}": text for address, text in _read_device_addresses(unit, network).items()}
    taken = {
        identity: row
        for row, guest in _read_guests(unit, network)
        for identity in list_guest_identities(guest.model_copy(update={"mac": _find_mac(row, guest)}))
        if not row.quarantined or identity != f"name {guest.name}"
    }
    for guest in spec.guests:
        for identity in list_guest_identities(guest):
            if identity in taken:
                raise GuestTaken(_describe_duplicate(guest, identity, taken[identity]))
            if identity in devices:
                raise GuestTaken(
                    f"guest {guest.name} has the {identity}, which {devices[identity]} has in the same network: choose "
                    "another, or revoke the device's profile with 'virtcloud access revoke'"
                )
            if identity in others:
                raise GuestTaken(
                    f"guest {guest.name} has the {identity}, which {others[identity]} has in the same network: choose "
                    "another"
                )


def read_network_addresses(unit: Unit, network: ClusterRow) -> NetworkAddresses:
    """Return the addresses in use in a network.

    Omit the addresses of ended clusters whose removal every element has confirmed.
    """
    identity = NetworkIdentity(network.owner, network.key, network.attempt)
    guests = tuple(guest for _, guest in _read_guests(unit, network))
    return NetworkAddresses(
        identity,
        parse_current_spec(network),
        guests,
        tuple(_read_device_addresses(unit, network)),
        tuple(_read_gateway_addresses(unit, network)),
    )


def read_other_addresses(unit: Unit, network: ClusterRow, spec: ClusterSpec) -> tuple[str, ...]:
    """Return those addresses in use in a network that no guest of a running cluster has, without prefix length.

    These addresses belong to gateways, users' devices, the router, or guests in quarantine. A guest is in quarantine if
    its cluster has ended, but an element has not confirmed the removal. ``spec`` is the network's spec as shown to
    clients.
    """
    gateways, devices = _read_gateway_addresses(unit, network), _read_device_addresses(unit, network)
    quarantined = (
        address.partition("/")[0] for guest in _list_quarantined(unit, network) for address in guest.addresses
    )
    return tuple(dict.fromkeys((*gateways, *devices, *list_router(spec), *quarantined)))


def _list_quarantined(unit: Unit, network: ClusterRow) -> Iterator[Guest]:
    for row in find_members(unit, network.id):
        if row.quarantined:
            yield from _parse_readable_guests(row)


def _parse_readable_guests(row: ClusterRow) -> tuple[Guest, ...]:
    try:
        return parse_current_spec(row).guests
    except ValueError as error:
        log.fault("cluster_unreadable", error, cluster=row.id)
        return ()


def _read_gateway_addresses(unit: Unit, network: ClusterRow) -> dict[str, str]:
    rows = unit.connection.execute(_READ_GATEWAYS, {"network": network.id})
    return {row.address: row.gateway for row in rows}


def _read_gateway_macs(unit: Unit, network: ClusterRow) -> dict[Mac, str]:
    rows = unit.connection.execute(_READ_GATEWAYS, {"network": network.id})
    return {derive_gateway_mac(network.id, Address(f"{row.address}/{row.prefix_length}")): row.gateway for row in rows}


def _read_device_addresses(unit: Unit, network: ClusterRow) -> dict[str, str]:
    rows = unit.connection.execute(_READ_DEVICES, {"network": network.id})
    return {row.address: f"device {row.device} of {row.user_name}" for row in rows}


def read_guest_macs(unit: Unit, network: str) -> tuple[Mac, ...]:
    """Return the MAC addresses of all guests of a network, sorted, including guests in quarantine.

    Omit unreadable clusters in quarantine: an error would leave the gateways without a wanted state.
    """
    rows = (unit.session.get_one(ClusterRow, network), *find_members(unit, network))
    macs = {
        _find_mac(row, guest)
        for row in rows
        for guest in (_parse_readable_guests(row) if row.quarantined else parse_current_spec(row).guests)
    }
    return tuple(sorted(macs))


def _find_mac(row: ClusterRow, guest: Guest) -> Mac:
    return guest.mac or derive_mac(row.id, guest.name)


def _read_guests(unit: Unit, network: ClusterRow) -> Iterator[tuple[ClusterRow, Guest]]:
    """Yield each guest of a network with its cluster, first the guests of ``network`` itself.

    Guests of ended clusters count until every element has confirmed the removal: they may still run.
    """
    for row in (network, *find_members(unit, network.id)):
        yield from ((row, guest) for guest in parse_current_spec(row).guests)


def allocate_for_member(  # noqa: PLR0913, PLR0917 - the parameters of allocate_network_ids
    unit: Unit, topology: Topology, network: LiveCluster, spec: ClusterSpec, reserved: ReservedVlans, sees: CanSeeOwner
) -> NetworkIds:
    """Return the IDs that a network has after the cluster of ``spec`` joins it. Change nothing.

    The result contains the current IDs, and a VLAN ID at each new site. A new site has a host of the cluster, but no
    VLAN ID of the network yet. The result also contains a transport and its service ID, if the network needs its first
    transport.

    Raise NoSuchHost for an unknown host. Raise Conflict if the transport does not reach a new site, or if the network's
    current ports would change. Raise NoVlanFree if no suitable VLAN ID or no service ID is free.
    """
    sites = find_sites(topology, spec.all_hosts)
    new = [site for site in sites if site.name not in network.vlans]
    if network.transport is None:
        transport = choose_transport(topology, (*network.spec.all_hosts, *spec.all_hosts), network.spec.sites)
        check_paths_unchanged(topology, network, transport)
        service = choose_service_id(unit, transport)
    else:
        transport, service = topology.transport(network.transport), network.service
        check_sites_attached(network, new)
    if new:
        check_sites_checked(unit, topology, new, transport)
    vlans = dict(network.vlans) | _allocate_at_new_sites(unit, new, network, transport, reserved, sees)
    return NetworkIds(transport, dict(sorted(vlans.items())), service)


def _allocate_at_new_sites(  # noqa: PLR0913, PLR0917 - the parameters of allocate_for_member
    unit: Unit,
    sites: Sequence[Site],
    network: LiveCluster,
    transport: Transport | None,
    reserved: ReservedVlans,
    sees: CanSeeOwner,
) -> dict[Name, VlanId]:
    """Choose a VLAN ID at each new site: the network's VLAN ID or, if the transport translates, another one.

    Raise NoVlanFree if no suitable VLAN ID is free. A VLAN ID of another network on a transport that separates networks
    only by VLAN IDs is not free.
    """
    vlan, vlans, remedy = next(iter(network.vlans.values())), {}, describe_growth_remedy(network)
    subject = f"network {network.key} uses VLAN {vlan}, which"
    if sites:
        check_not_taken(unit, transport, vlan, sees, subject, network.network.id, remedy)
    for site, pool in zip(sites, read_site_pools(unit, sites, reserved), strict=True):
        if vlan in pool.free:
            vlans[site.name] = vlan
        elif transport is not None and transport.translates:
            vlans |= allocate_longest_unused(unit, [site], reserved, None)
        else:
            raise NoVlanFree(
                f"{subject} is not free at site {site.name}: {describe_unavailable(unit, pool, vlan, sees)}{remedy}"
            )
    return vlans


def _describe_duplicate(guest: Guest, identity: str, row: ClusterRow) -> str:
    other = "choose another"
    wait = f"cluster {row.key} is {row.state}: try again when the cluster has ended"
    if row.quarantined:
        wait = f"cluster {row.key} has ended, but the guest may still run: choose another, or {QUARANTINE_REMEDY}"
    advice = other if row.state in WANTED_STATES else wait
    return (
        f"guest {guest.name} has the {identity}, which a guest of cluster {row.key} has in the same network: {advice}"
    )


def check_access_ports_kept(unit: Unit, change: TopologyChange) -> None:
    """Raise Conflict if two networks would use one access port, or if a used access port would become a trunk."""
    if change.former.access_ports | change.topology.access_ports:
        users = read_clusters_on(unit, change.elements)
        check_ports_exclusive(change.topology, users)
        check_ports_stay_access(change.former, change.topology, users)


def read_clusters_on(unit: Unit, elements: Iterable[Name]) -> list[LiveCluster]:
    """Return the clusters that use any of these elements and whose state can still change, oldest first."""
    return make_live_clusters(unit, find_unsettled_clusters(unit, elements))
