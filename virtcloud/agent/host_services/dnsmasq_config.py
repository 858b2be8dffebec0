"""The files of a cluster's dnsmasq on one host: DHCP, DHCPv6 and router advertisements, and DNS. Pure.

The DHCP server answers only the guests of its host. The server recognizes these guests by their MAC addresses. The DNS
server answers for the names of all guests of the network, and forwards no queries. The servers of all hosts have the
same address, outside of the cluster's subnets. The bridge forwards no frames between the server's port and the uplink,
because both ports are ``isolated`` (bridge(8)). So the servers of two hosts do not conflict.

The server's IPv4 address is outside of the guests' subnets, so guests get a route to this address by DHCP (option 121,
RFC 3442). The server's interface has one address of each IPv6 subnet, because dnsmasq advertises only subnets in which
it has an address. This address is the subnet-router anycast address (RFC 4291, 2.6.1), which no guest has.

If only names change, the running server reads the names again (SIGHUP). After other changes, the agent starts a new
server. Reason: the versions 2.86 to 2.90 of dnsmasq crash if they read tagged reservations (``dhcp-hostsfile``) again
while a guest has a lease.

Sources: dnsmasq(8); RFC 2132 and RFC 3442 (options), RFC 4861 (flags of router advertisements).
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network, ip_interface
from typing import Final

from virtcloud.agent.guests import peer_files
from virtcloud.agent.host_services.guest_identity import list_neighbours
from virtcloud.agent.network.guest_filter_rules import SERVER4, SERVER6
from virtcloud.model.guest_spec import HOST_SERVICE_MAC
from virtcloud.model.wanted import GuestWanted, Segment

DEVICE: Final = "svc0"
"""The server's interface in its network namespace."""
ADDRESS: Final = SERVER4
"""The server's link-local IPv4 address (RFC 3927), which several clouds use for DNS and metadata."""
ADDRESS6: Final = SERVER6
"""The metadata service's link-local IPv6 address. Its last 32 bits are `ADDRESS`, as in other clouds."""
MAC: Final = HOST_SERVICE_MAC
"""The MAC address of the server's interface: the same on every host, so that a guest can move to another host."""
CONFIG, NAMES = "dnsmasq.conf", "names"
FILE_OPTIONS: Final = {CONFIG: "--conf-file", NAMES: "--addn-hosts"}
"""The option of dnsmasq for each file's path, by file name."""
LEASE: Final = "1h"
LEASES_OF_GUEST: Final = 2
"""The largest number of a guest's leases: one of each IP version. dnsmasq counts both versions together."""
MIN_LEASES: Final = 1000
"""dnsmasq's default limit of leases. The configuration has a limit only if a higher limit is needed."""
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
"""The common settings: each server listens only on its own interface, and reads no configuration files of the host."""
BROADCAST_LINE: Final = "dhcp-broadcast"
"""The setting with which dnsmasq broadcasts its answers, used if the network has a metadata service. For a unicast
answer, dnsmasq would replace the permanent entry for the guest in the server's neighbour table by an entry that guests
can change by ARP.
"""
_DNS_LINES: Final = (f"local=/{peer_files.PRIVATE_DOMAIN}/", "domain-needed", "cache-size=0")


@dataclass(frozen=True, slots=True)
class DnsmasqFiles:
    """The files of a server. ``config`` are the settings. ``names`` are the names, in the format of a hosts file.

    ``addresses`` are the addresses of the server's interface, with prefix lengths. ``neighbours`` are pairs of a
    guest's IP and MAC address, by which a metadata service identifies guests; () without a metadata service.
    """

    config: str
    addresses: tuple[str, ...]
    names: str
    neighbours: tuple[tuple[str, str], ...] = ()

    @property
    def config_digest(self) -> str:
        """A digest of the data whose change requires a new server."""
        return _digest((self.config, *self.addresses, *(part for pair in self.neighbours for part in pair)))

    @property
    def names_digest(self) -> str:
        """A digest of the names."""
        return _digest((self.names,))


def render_dnsmasq(segment: Segment) -> DnsmasqFiles:
    """Return the files of the server for a segment's guests on this host."""
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
    """Return the addresses that DHCP assigns to a guest: at most one of each IP version, with prefix lengths."""
    if not segment.host_services:
        return ()
    return _list_assigned(guest, _list_subnets(segment))


def _list_assigned(guest: GuestWanted, subnets: Collection[_Subnet]) -> tuple[str, ...]:
    return tuple(text for text in _first_addresses(guest.addresses) if ip_interface(text).network in subnets)


def list_routers(segment: Segment, guest: GuestWanted) -> tuple[str, ...]:
    """Return a guest's default gateways: the network's router addresses in a subnet of the guest."""
    subnets = {ip_interface(address).network for address in guest.addresses}
    routers = map(ip_interface, segment.router_addresses)
    return tuple(str(router.ip) for router in routers if router.network in subnets)


def _dhcp_lines(segment: Segment, subnets: Collection[_Subnet]) -> Iterator[str]:
    routers = [str(router.ip) for router in map(ip_interface, segment.router_addresses) if router.version != _IPV6]
    yield from (
        "dhcp-ignore=tag:!known",
        "dhcp-ignore-names",  # otherwise, a guest could register the name of another guest
        "dhcp-authoritative",
        "leasefile-ro",
        "no-ping",
        *((f"dhcp-lease-max={leases}",) if (leases := LEASES_OF_GUEST * len(segment.guests)) > MIN_LEASES else ()),
        f"dhcp-duid=65535,{MAC}",
        f"dhcp-option=option:router{''.join(f',{address}' for address in routers)}",
    )
    if "dns" in segment.host_services:
        yield f"dhcp-option=option:dns-server,{ADDRESS}"
        yield "dhcp-option=option6:dns-server,[fe80::]"  # dnsmasq inserts the server's link-local address
    # Clients that get the option classless-static-route ignore the option ``router`` (RFC 3442).
    default = "".join(f",0.0.0.0/0,{address}" for address in routers)
    # So classless-static-route repeats the default routes. dnsmasq also sends this option to clients that do not ask.
    yield f"dhcp-option-force=option:classless-static-route,{ADDRESS}/32,0.0.0.0{default}"
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
    """Yield the settings for a subnet. With ``static``, dnsmasq assigns only reserved addresses."""
    if isinstance(subnet, IPv6Network):
        yield f"dhcp-range={subnet.network_address},static,{subnet.prefixlen},{LEASE}"
        return
    yield f"dhcp-range={subnet.network_address},static,{subnet.netmask},{LEASE}"
    yield f"shared-network={DEVICE},{subnet.network_address}"


def _list_subnets(segment: Segment) -> tuple[_Subnet, ...]:
    """Return the subnets of the addresses that DHCP assigns to this host's guests, sorted.

    Omit an IPv6 subnet whose prefix length is not in `_IPV6_LENGTHS`, or whose anycast address belongs to a guest.
    """
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
    """Return the first address of each IP version. DHCP assigns only one address of each version."""
    first = {ip_interface(address).version: address for address in reversed(tuple(addresses))}
    return tuple(first[version] for version in sorted(first))


def _guest_lines(segment: Segment, guest: GuestWanted, subnets: Collection[_Subnet], tag: str) -> Iterator[str]:
    """Yield the settings for a guest.

    The domain contains the key of the guest's cluster. So a plain name never denotes a guest of another cluster.
    """
    assigned = [ip_interface(address).ip for address in _list_assigned(guest, subnets)]
    texts = [f"[{address}]" if address.version == _IPV6 else str(address) for address in assigned]
    if texts:
        label, _, domain = peer_files.full_name(guest.name, peer_files.cluster_key(segment, guest)).partition(".")
        yield f"dhcp-host={','.join((guest.mac, f'set:{tag}', *texts))}"
        yield f"dhcp-option=tag:{tag},{_HOST_NAME},{label}"
        yield f"dhcp-option=tag:{tag},{_DOMAIN},{domain}"
        yield f"dhcp-option=tag:{tag},{_DOMAIN_SEARCH6},{domain}"


def _name_lines(segment: Segment) -> Iterator[str]:
    """Yield the lines of the hosts file, which contains only full names.

    For plain names, a guest's resolver appends the cluster's domain.
    """
    for service, service_address in peer_files.list_service_addresses(segment):
        yield f"{service_address} {peer_files.full_name(service, segment.key)}\n"
    for peer in segment.peers:
        for address in peer.addresses:
            yield f"{ip_interface(address).ip} {peer_files.full_name(peer.name, peer.cluster)}\n"


def _digest(parts: Iterable[str]) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:16]
