"""Names and addresses of the lab's nodes, devices and networks (RFC 2544 reserves 198.18.0.0/15 for test networks)."""

from ipaddress import IPv4Address
from typing import Final, TypeVar

from virtcloud.model.element import Device, Gateway
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Site

STATION: Final = "station"
LAPTOP: Final = "laptop"
RESERVED_NODES: Final = frozenset({STATION, LAPTOP, "fabric"})
RESERVED_PORTS: Final = frozenset({"up", "all", "lo", "br0", "mgmt0", "outside0", "default", "none"})

STATION_ADDRESS: Final = "198.18.0.1"
FABRIC_ADDRESS: Final = "198.18.0.2"
FABRIC_PORT: Final = 7000
SBF_PORT: Final = 8800
SBF_SOCKET: Final = "/run/virtcloud/sbf.sock"
CREDENTIAL: Final = "lab"
SWITCH_ACCOUNT: Final = "switch"
PREFIX: Final = 16
USERS: Final = {"alice": 2001, "bob": 2002}

_FIRST_NODE: Final = IPv4Address("198.18.1.0")
_FIRST_OUTSIDE: Final = IPv4Address("198.19.1.0")
_FABRIC: Final = IPv4Address("192.0.2.0")  # TEST-NET-1 (RFC 5737): links between edges and the core of an EVPN fabric


def management_address(number: int) -> str:
    """Return the management address of node ``number`` (from 1)."""
    return str(_FIRST_NODE + number)


def outside_address(number: int) -> str:
    """Return the address of node ``number`` on the lab's external network."""
    return str(_FIRST_OUTSIDE + number)


def fabric_addresses(number: int) -> tuple[IPv4Address, IPv4Address]:
    """Return the core's and the edge's address on link ``number`` (from 0) of an EVPN fabric: a /31 (RFC 3021)."""
    return _FABRIC + 2 * number, _FABRIC + 2 * number + 1


DeviceT = TypeVar("DeviceT", bound=Device)


def number_nodes(topology: Topology) -> dict[str, int]:
    """Return the number of each node, counted from 1: elements first, then transports, then the user's laptop."""
    names = [*topology.elements, *(transport.name for transport in topology.transports), LAPTOP]
    return {str(name): number for number, name in enumerate(names, start=1)}


def device_addresses(topology: Topology) -> dict[str, str]:
    """Return the management address of each switch and provider edge."""
    numbers = number_nodes(topology)
    return {
        name: management_address(numbers[name])
        for name, element in topology.elements.items()
        if isinstance(element, Device)
    }


def with_addresses(topology: Topology) -> Topology:
    """Return a copy of the topology in which each device has a management address and a credential."""
    addresses = device_addresses(topology)

    def address_device(device: DeviceT) -> DeviceT:
        return device.model_copy(update={"address": addresses[device.name], "credential": CREDENTIAL})

    def address_site(site: Site) -> Site:
        switches, edges = tuple(map(address_device, site.switches)), tuple(map(address_device, site.edges))
        return site.model_copy(update={"switches": switches, "edges": edges})

    return topology.model_copy(update={"sites": tuple(map(address_site, topology.sites))})


def hosts_file(topology: Topology) -> str:
    """Return the text of ``/etc/hosts`` on the nodes of elements and transports.

    The text contains the management addresses of all nodes except the laptop, which has no management address.
    """
    numbers = {name: number for name, number in number_nodes(topology).items() if name != LAPTOP}
    lines = ["127.0.0.1 localhost", f"{STATION_ADDRESS} {STATION} sbf"]
    lines += [f"{management_address(number)} {name}" for name, number in numbers.items()]
    return "\n".join(lines) + "\n"


def laptop_hosts_file(topology: Topology) -> str:
    """Return the text of the laptop's ``/etc/hosts``: the gateways' addresses on the external network."""
    gateways = [
        f"{outside_address(number)} {name}"
        for name, number in number_nodes(topology).items()
        if isinstance(topology.elements.get(name), Gateway)  # type: ignore[call-overload]
    ]
    return "\n".join(["127.0.0.1 localhost", *gateways]) + "\n"
