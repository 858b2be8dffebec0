"""Gateways' own addresses in networks. A gateway with addresses has an interface in the network.

A gateway gets addresses in a network for its first task in this network: router, SSH relay, publication, or service
such as NFS. It has the addresses until the network ends.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sqlalchemy import bindparam, insert, select

from sbf_service.domain.addressing import choose_device_addresses
from sbf_service.domain.gateway_access import add_gateway_addresses
from sbf_service.domain.publications import choose_addresses
from sbf_service.log import get_log
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.networks.networks import read_network_addresses
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import NAME_TYPE
from sbf_service.store.tables.gateway_tables import GatewayAddressRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.element import Gateway
from virtcloud.model.errors import NoAddressFree
from virtcloud.model.gateway_access import derive_gateway_mac
from virtcloud.model.guest_spec import Guest
from virtcloud.model.values import Address, Name
from virtcloud.model.wanted import HostWanted

_READ = select(GatewayAddressRow.network_id, GatewayAddressRow.address, GatewayAddressRow.prefix_length).where(
    GatewayAddressRow.gateway == bindparam("gateway"),
    GatewayAddressRow.network_id.in_(bindparam("networks", type_=NAME_TYPE, expanding=True)),
)

log = get_log(__name__)


def ensure_gateway_addresses(unit: Unit, network: ClusterRow, gateway: Name) -> tuple[Address, ...]:
    """Return a gateway's addresses in a network: one address of each subnet.

    If the gateway has no addresses yet, assign addresses and increment the gateway's wanted revision. ``network`` is
    the cluster that created the network. The gateway must belong to one of the network's clusters. Raise NoAddressFree
    if a subnet has no free address.
    """
    found = read_gateway_addresses(unit, gateway, [network.id])
    if network.id in found:
        return found[network.id]
    addresses = _choose_addresses(unit, network, gateway)
    rows = [_make_values(network.id, gateway, address) for address in addresses]
    if rows:
        unit.connection.execute(insert(GatewayAddressRow), rows)
        increment_revisions(unit, [gateway])
        why = f"{gateway} has {' and '.join(addresses)}"
        record_audit(unit, "gateway_addressed", element=gateway, why=why, cluster_id=network.id)
    return addresses


def choose_guest_address(unit: Unit, guest: Guest, network: ClusterRow, gateway: Gateway) -> str:
    """Return the guest's address that a gateway can publish. The gateway gets addresses in the network.

    Raise BadInput or NoAddressFree, and change nothing, if the gateway cannot publish the guest.
    """
    with unit.session.begin_nested():
        own = ensure_gateway_addresses(unit, network, gateway.name)
        return str(choose_addresses(guest, gateway, own)[1])


def assign_possible_addresses(unit: Unit, network: ClusterRow, gateway: Name) -> tuple[Address, ...]:
    """Return the addresses of :func:`ensure_gateway_addresses`, or () if that function fails. Log the reason."""
    try:
        return ensure_gateway_addresses(unit, network, gateway)
    except (NoAddressFree, ValueError) as error:  # ValueError: a row cannot be read
        log.warning("gateway_not_addressed", cluster=network.id, gateway=gateway, why=str(error))
        return ()


def read_gateway_addresses(unit: Unit, gateway: Name, networks: Iterable[str]) -> Mapping[str, tuple[Address, ...]]:
    """Return a gateway's addresses in each network, by network ID, IPv4 addresses first."""
    found: dict[str, list[Address]] = defaultdict(list)
    for network, address, length in unit.connection.execute(_READ, {"gateway": gateway, "networks": list(networks)}):
        found[network].append(Address(f"{address}/{length}"))
    return {network: tuple(sorted(addresses, key=lambda text: ":" in text)) for network, addresses in found.items()}


def add_gateway_interfaces(unit: Unit, name: str, wanted: HostWanted) -> HostWanted:
    """Return the wanted state of an element with its own addresses in networks, if the element is a gateway."""
    if name not in read_topology(unit).gateways or not wanted.segments:
        return wanted
    networks = [segment.id for segment in wanted.segments]
    return add_gateway_addresses(wanted, read_gateway_addresses(unit, Name(name), networks))


def _choose_addresses(unit: Unit, network: ClusterRow, gateway: Name) -> tuple[Address, ...]:
    """Return one free address of each subnet.

    Skip an address whose derived MAC address a guest's spec contains. Otherwise, an invited user could choose the
    router's future MAC address, and receive the packets to the router.
    """
    known = read_network_addresses(unit, network)
    macs = {guest.mac for guest in known.guests}
    while True:
        addresses = choose_device_addresses(known, f"gateway {gateway}")
        skipped = [address for address in addresses if derive_gateway_mac(network.id, address) in macs]
        if not skipped:
            return addresses
        known = replace(known, gateways=(*known.gateways, *(address.partition("/")[0] for address in skipped)))


def _make_values(network: str, gateway: Name, address: Address) -> dict[str, object]:
    text, _, length = address.partition("/")
    return {"network_id": network, "address": text, "prefix_length": int(length), "gateway": gateway}
