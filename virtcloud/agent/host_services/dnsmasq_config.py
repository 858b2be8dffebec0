"""The files of a cluster's dnsmasq on one host: DHCP, DHCPv6 and router advertisements, and DNS. Pure.

A host's server has reservations for the guests of this host only, by their MAC addresses, and ignores all other
computers. It knows the names of all guests of the network, and has no upstream server. On every host, it has the same
address, which is no address of the cluster's subnets. Frames of the server never leave the host (``isolated`` ports of
the bridge, bridge(8)), so the servers of two hosts neither answer each other's guests nor conflict.

Guests learn by DHCP how to reach the server: a route to its address on their interface (option 121, RFC 3442). The
server's interface has one address of each IPv6 subnet, because dnsmasq only advertises subnets in which it has an
address. This address is the subnet-router anycast address (RFC 4291, section 2.6.1), which no guest has.

A running server reads only the names again (SIGHUP). Reservations are among the settings, which only a restart changes:
dnsmasq 2.86 to 2.90 crash if they reread tagged reservations (``dhcp-hostsfile``) of guests that have a lease.

Sources: dnsmasq(8); RFC 2132 and RFC 3442 (options), RFC 4861 (flags of router advertisements).
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network, ip_interface
from typing import Final

from virtcloud.agent.guests import peer_files
from virtcloud.agent.host_services.guest_identity import list_neighbours
from virtcloud.agent.network.guest_filters import SERVER4, SERVER6
from virtcloud.model.guest_spec import HOST_SERVICE_MAC
from virtcloud.model.wanted import GuestWanted, Segment

DEVICE: Final = "svc0"
"""The server's interface, in a network namespace of its own."""
ADDRESS: Final = SERVER4
"""The server's IPv4 address (RFC 3927). Several clouds use this address for DNS and metadata."""
ADDRESS6: Final = SERVER6
"""The link-local IPv6 address of the metadata service, as other clouds derive it from the IPv4 address."""
MAC: Final = HOST_SERVICE_MAC
"""The MAC address of the server's interface on every host, so that a guest that moved finds the server again."""
CONFIG, NAMES = "dnsmasq.conf", "names"
FILE_OPTIONS: Final = {CONFIG: "--conf-file", NAMES: "--addn-hosts"}
"""The option of dnsmasq that names each file."""
LEASE: Final = "1h"
ADVERTISEMENT_S: Final = 60
_IPV6: Final = 6
_IPV6_LENGTHS: Final = range(64, 127)
"""The prefix lengths of IPv6 subnets that dnsmasq serves and that have a subnet-router anycast address (RFC 6164)."""
_HOST_NAME, _DOMAIN, _DOMAIN_SEARCH6 = "12", "15", "option6:24"
_Subnet = IPv4Network | IPv6Network
_COMMON_LINES: Final = (
    f"interface={DEVICE}",
    "except-interface=lo",
    "bind-interfaces",
    "no-resolv",
    "no-hosts",
    "no-poll",
    "pid-file=",
    "log-facility=/dev/null",  # a guest could fill the host's log
    "quiet-dhcp",
    "quiet-dhcp6",
    "quiet-ra",
)
"""The settings that bind the server to its interface. The server reads no file of the host."""
BROADCAST_LINE: Final = "dhcp-broadcast"
"""With a metadata service, dnsmasq broadcasts its answers. Otherwise it would replace the permanent neighbours, which
identify guests, by others, which guests can change.
"""
_DNS_LINES: Final = (f"local=/{peer_files.PRIVATE_DOMAIN}/", "domain-needed", "cache-size=0")


@dataclass(frozen=True, slots=True)
class DnsmasqFiles:
    """The settings with which a server is started, and the names, which it can read again while it runs.

    ``addresses`` are the addresses of its interface, with prefix lengths. ``neighbours`` are the addresses and MAC
    addresses of the guests if the network has a metadata service, which identifies guests by them.
    """

    config: str
    addresses: tuple[str, ...]
    names: str
    neighbours: tuple[tuple[str, str], ...] = ()

    @property
    def config_digest(self) -> str:
        """A digest of what only a restart changes."""
        return _digest((self.config, *self.addresses, *(part for pair in self.neighbours for part in pair)))

    @property
    def names_digest(self) -> str:
        """A digest of the names."""
        return _digest((self.names,))


def render_dnsmasq(segment: Segment) -> DnsmasqFiles:
    """Return the files of the server of a segment's guests."""
    subnets, has_metadata = _list_subnets(segment), "metadata" in segment.host_services
    lines = (
        *_COMMON_LINES,
        *(_DNS_LINES if "dns" in segment.host_services else ("port=0",)),
        *(_dhcp_lines(segment, subnets) if subnets else ()),
        *((BROADCAST_LINE,) if has_metadata else ()),
    )
    anycast = (f"{subnet.network_address}/{subnet.prefixlen}" for subnet in subnets if subnet.version == _IPV6)
    return DnsmasqFiles(
        config="".join(f"{line}\n" for line in lines),
        addresses=(f"{ADDRESS}/32", *((f"{ADDRESS6}/64",) if has_metadata else ()), *anycast),
        names="".join(_name_lines(segment)),
        neighbours=list_neighbours(segment) if has_metadata else (),
    )


def list_assigned_addresses(segment: Segment, guest: GuestWanted) -> tuple[str, ...]:
    """Return the addresses that a guest gets by DHCP: at most one of each IP version, with prefix lengths."""
    if not segment.host_services:
        return ()
    return _list_assigned(guest, _list_subnets(segment))


def _list_assigned(guest: GuestWanted, subnets: Collection[_Subnet]) -> tuple[str, ...]:
    return tuple(text for text in _first_addresses(guest.addresses) if ip_interface(text).network in subnets)


def list_routers(segment: Segment, guest: GuestWanted) -> tuple[str, ...]:
    """Return the addresses of the default gateways of a guest: those in subnets of the guest's addresses."""
    subnets = {ip_interface(address).network for address in guest.addresses}
    routers = map(ip_interface, segment.router_addresses)
    return tuple(str(router.ip) for router in routers if router.network in subnets)


def _dhcp_lines(segment: Segment, subnets: Collection[_Subnet]) -> Iterator[str]:
    routers = [str(router.ip) for router in map(ip_interface, segment.router_addresses) if router.version != _IPV6]
    yield from (
        "dhcp-ignore=tag:!known",
        "dhcp-ignore-names",  # a guest could take the name of another guest
        "dhcp-authoritative",
        "leasefile-ro",
        "no-ping",
        f"dhcp-duid=65535,{MAC}",
        f"dhcp-option=option:router{''.join(f',{address}' for address in routers)}",
    )
    if "dns" in segment.host_services:
        yield f"dhcp-option=option:dns-server,{ADDRESS}"
        yield "dhcp-option=option6:dns-server,[fe80::]"  # dnsmasq inserts the server's link-local address
    default = "".join(f",0.0.0.0/0,{address}" for address in routers)  # clients ignore the option router (RFC 3442)
    yield f"dhcp-option-force=option:classless-static-route,{ADDRESS}/32,0.0.0.0{default}"  # some do not request it
    if segment.mtu is not None:
        yield f"dhcp-option=option:mtu,{segment.mtu}"
    for subnet in subnets:
        yield from _range_lines(subnet)
    mtu = "" if segment.mtu is None else f"mtu:{segment.mtu},"
    yield "enable-ra"
    yield f"ra-param={DEVICE},{mtu}{ADVERTISEMENT_S},0"  # lifetime 0: the server is no router
    for number, guest in enumerate(segment.guests):
        yield from _guest_lines(segment, guest, subnets, f"g{number}")


def _range_lines(subnet: _Subnet) -> Iterator[str]:
    """Yield the subnet, of which only reserved addresses are assigned (``static``)."""
    if isinstance(subnet, IPv6Network):
        yield f"dhcp-range={subnet.network_address},static,{subnet.prefixlen},{LEASE}"
        return
    yield f"dhcp-range={subnet.network_address},static,{subnet.netmask},{LEASE}"
    yield f"shared-network={DEVICE},{subnet.network_address}"


def _list_subnets(segment: Segment) -> tuple[_Subnet, ...]:
    """Return the subnets of the addresses that this host's guests get by DHCP, in a fixed order."""
    used = {ip_interface(address).ip for peer in segment.peers for address in peer.addresses}
    networks = {
        ip_interface(address).network for guest in segment.guests for address in _first_addresses(guest.addresses)
    }
    served = (
        network
        for network in networks
        if network.version != _IPV6 or (network.prefixlen in _IPV6_LENGTHS and network.network_address not in used)
    )
    return tuple(sorted(served, key=lambda network: (network.version, network.network_address, network.prefixlen)))


def _first_addresses(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the first address of each IP version. DHCP assigns one address of each version."""
    first = {ip_interface(address).version: address for address in reversed(tuple(addresses))}
    return tuple(first[version] for version in sorted(first))


def _guest_lines(segment: Segment, guest: GuestWanted, subnets: Collection[_Subnet], tag: str) -> Iterator[str]:
    """Yield a guest's reservation, name and domain. Guests of different members may have the same name."""
    assigned = [ip_interface(address).ip for address in _list_assigned(guest, subnets)]
    texts = [f"[{address}]" if address.version == _IPV6 else str(address) for address in assigned]
    if texts:
        label, _, domain = peer_files.full_name(guest.name, peer_files.cluster_key(segment, guest)).partition(".")
        yield f"dhcp-host={','.join((guest.mac, f'set:{tag}', *texts))}"
        yield f"dhcp-option=tag:{tag},{_HOST_NAME},{label}"
        yield f"dhcp-option=tag:{tag},{_DOMAIN},{domain}"
        yield f"dhcp-option=tag:{tag},{_DOMAIN_SEARCH6},{domain}"


def _name_lines(segment: Segment) -> Iterator[str]:
    """Yield the lines of a hosts file. Guests search their own domain, so full names are enough."""
    for service, service_address in peer_files.list_service_addresses(segment):
        yield f"{service_address} {peer_files.full_name(service, segment.key)}\n"
    for peer in segment.peers:
        for address in peer.addresses:
            yield f"{ip_interface(address).ip} {peer_files.full_name(peer.name, peer.cluster)}\n"


def _digest(parts: Iterable[str]) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:16]
