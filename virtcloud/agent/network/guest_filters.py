"""The filters of guests' and devices' bridge ports, as a table of nftables in the family ``bridge``. Pure.

The table drops frames that a guest must not send. It contains the same few rules for any number of guests. Its sets
list the guests' bridge ports, with the MAC and IP addresses that each guest may use. A guest that another version of
the agent started is in no set: only its source address is not checked. The first rule accepts most frames of guests,
and the second one passes over those of uplinks, because each expression costs time.

=============================  ==============================================================================
frames that are dropped        reason
=============================  ==============================================================================
other source MAC addresses     switches and bridges would send the frames of another guest to this guest
802.1Q and 802.1ad tags        a switch could accept a second tag as another cluster's VLAN
802.3 frames without a type    spanning tree, CDP, VTP, DTP and LACP configure switches. A switch with BPDU guard
(LLC), link-local protocols    disables the host's port, and therefore all clusters of the host.
broadcasts and multicasts      a storm fills the links that the cluster shares with other clusters
above a rate
answers of DHCP servers,       a guest by which others configure themselves can read and change their frames
router advertisements
claims to have the address of  a guest could send other guests a seed, and answer their queries. Only in clusters with
the host's server (ARP, ND)    ``host_services``
other IP addresses             only in clusters whose spec has ``filters: addresses``
=============================  ==============================================================================

Devices that join through a gateway's VPN share one port for each network and protocol. Their frames are filtered in the
same way, even in clusters with ``filters: open``, with these differences: a device may use every MAC address except
those of the network's guests, and duplicate address detection is dropped, because the port would reflect it to the
device (``vpn_difference``). OpenVPN limits the number of MAC addresses. If one of the devices is the network's router,
all devices may use IP addresses outside of the network's subnets.

The chains ``ipv4`` and ``ipv6`` accept packets of which nftables found the upper-layer header, and drop all other
packets. So a router advertisement cannot hide behind extension headers or in fragments:

* The first fragment decides, because receivers take the upper-layer protocol from this fragment. Later fragments pass.
* A first fragment has no extension header behind the fragment header, because it could be longer than the fragment.
* Neighbor discovery in fragments is dropped. Receivers must ignore these packets (RFC 6980).

Sources: IEEE 802.1Q-2018, table 8-1 (link-local addresses); RFC 7113 (router advertisements), RFC 7610 (DHCPv6);
nft(8).
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_interface, ip_network
from typing import NamedTuple

from virtcloud.model.cluster import GuestService

FAMILY, TABLE = "bridge", "virtcloud"
GUEST_PORTS = "vc*"
"""The names of guests' bridge ports, and of no other interface on a bridge (see ``names``)."""
DEVICE_PORTS = "vpn-*"
"""The names of the VPN's bridge ports, and of the taps, which are on no bridge (see ``names``)."""
FILTERED_PORTS = "v*"
"""A pattern of both kinds of names, so that one comparison accepts the frames of most uplinks."""
BROADCASTS_PER_S = 1000
"""Broadcast frames per second that a guest may send. The frames of one second may be sent at once."""
MULTICASTS_PER_S = 10_000
"""Frames per second that a guest may send to groups, including broadcasts."""
INGRESS, PORT_KINDS, GUEST, ADDRESSES, IPV4, IPV6 = "ingress", "port_kinds", "guest", "addresses", "ipv4", "ipv6"
DEVICE, DEVICE_ADDRESSES = "vpn", "vpn_addresses"
SERVER4, SERVER6 = "169.254.169.254", "fe80::a9fe:a9fe"
"""The addresses of the host's server for guests (``host_services``)."""
_INGRESS_HOOK = "type filter hook prerouting priority -300; policy accept;"
_TO_GROUP = "ether daddr & 01:00:00:00:00:00"
_UNICAST = "meta pkttype other"
"""A frame whose destination is neither a group address nor the port's own address, as most frames (eth_type_trans)."""
_FREE = "iifname . ether saddr . ether type @free"
"""An IP packet without a VLAN tag, of a guest that may use any IP address.

The type must be compared: the kernel finds TCP behind a tag, too, and ``ether type`` is then the type of the tag.
"""
_NO_DHCP_ANSWER = "udp sport != { 67, 547 } udp dport != { 68, 546 }"
"""Packets that are not from a DHCP server. nft would combine ``sport != 67 dport != 68`` into one comparison."""


def _limit(per_s: int) -> str:
    return f"limit rate over {per_s}/second burst {per_s} packets"


_LINK_RULES = (
    "ether type { 8021q, 8021ad, 0x9100, 0x9200 } drop",
    "ether type < 0x0600 drop",
    "ether type { 0x8808, 0x8809, 0x888e, 0x88cc, 0x88e5, 0x88f5, 0x88f6, 0x8902 } drop",
    "ether daddr 01:80:c2:00:00:00-01:80:c2:00:00:3f drop",
    "ether daddr 01:00:0c:cc:cc:cc-01:00:0c:cd:cd:cd drop",
    f"ether daddr ff:ff:ff:ff:ff:ff update @broadcasts {{ iifname {_limit(BROADCASTS_PER_S)} }} drop",
    f"{_TO_GROUP} != 0 update @multicasts {{ iifname {_limit(MULTICASTS_PER_S)} }} drop",
)
_SERVER_RULE = f"arp saddr ip {SERVER4} iifname @served drop"
RULES: Mapping[str, tuple[str, ...]] = {
    INGRESS: (
        f'iifname "{GUEST_PORTS}" meta l4proto tcp {_UNICAST} {_FREE} accept',
        f'iifname "{FILTERED_PORTS}" goto {PORT_KINDS}',
    ),
    PORT_KINDS: (
        f"{_UNICAST} {_NO_DHCP_ANSWER} {_FREE} accept",
        f'iifname "{GUEST_PORTS}" goto {GUEST}',
        f'iifname "{DEVICE_PORTS}" goto {DEVICE}',
    ),
    GUEST: (
        "iifname @ports iifname . ether saddr != @guests drop",
        *_LINK_RULES,
        _SERVER_RULE,
        f"iifname @addressed jump {ADDRESSES}",
        f"ether type ip goto {IPV4}",
        f"ether type ip6 goto {IPV6}",
    ),
    DEVICE: (
        "iifname . ether saddr @guest_macs drop",
        *_LINK_RULES,
        _SERVER_RULE,
        "ip6 saddr :: drop",
        f"iifname @addressed jump {DEVICE_ADDRESSES}",
        f"ether type ip goto {IPV4}",
        f"ether type ip6 goto {IPV6}",
    ),
    DEVICE_ADDRESSES: (
        "iifname . ip saddr @addresses4 return",
        "arp htype 1 arp hlen 6 arp plen 4 iifname . arp saddr ip @addresses4 return",
        "icmpv6 type 136 @th,64,10 != 0x3fa iifname . @th,64,128 != @targets drop",
        "ip6 saddr fe80::/10 return",
        "iifname . ip6 saddr @addresses6 return",
        "iifname @routed4 iifname . ip saddr != @subnets4 return",
        "iifname @routed6 iifname . ip6 saddr != @subnets6 return",
        "ether type { ip, arp, ip6 } drop",
    ),
    ADDRESSES: (
        "iifname . ip saddr @addresses4 return",
        "arp htype 1 arp hlen 6 arp plen 4 iifname . arp saddr ether @guests iifname . arp saddr ip @addresses4 return",
        "icmpv6 type 136 iifname . @th,64,128 != @targets drop",
        "iifname . ip6 saddr @addresses6 return",
        "ether type { ip, arp, ip6 } drop",
    ),
    IPV4: (
        "meta l4proto != udp accept",
        "ip frag-off & 0x1fff != 0 accept",
        f"{_NO_DHCP_ANSWER} accept",
        "iifname @dhcp_servers meta l4proto udp accept",
        "ether type ip drop",
    ),
    IPV6: (
        "frag nexthdr { 0, 43, 44, 51, 60, 135, 139, 140 } drop",
        "meta l4proto != { udp, icmpv6 } accept",
        f"ip6 saddr {SERVER6} iifname @served drop",
        f"icmpv6 type 136 @th,64,128 {int(IPv6Address(SERVER6)):#x} iifname @served drop",
        "frag frag-off != 0 accept",
        "frag nexthdr icmpv6 icmpv6 type 133-137 drop",
        "icmpv6 type != { 134, 137 } accept",
        f"{_NO_DHCP_ANSWER} accept",
        "iifname @routers meta l4proto icmpv6 accept",
        "iifname @dhcp_servers meta l4proto udp accept",
        "ether type ip6 drop",
    ),
}
"""The rules of each chain, in the syntax of nft(8)."""
SETS: Mapping[str, str] = {
    "ports": "type ifname",
    "guests": "typeof iifname . ether saddr",
    "free": "typeof iifname . ether saddr . ether type",
    "guest_macs": "typeof iifname . ether saddr",
    "vpn_ports": "type ifname",
    "addressed": "type ifname",
    "addresses4": "typeof iifname . ip saddr",
    "addresses6": "typeof iifname . ip6 saddr",
    "targets": "typeof iifname . @th,64,128",
    "routed4": "type ifname",
    "routed6": "type ifname",
    "subnets4": "typeof iifname . ip saddr; flags interval",
    "subnets6": "typeof iifname . ip6 saddr; flags interval",
    "dhcp_servers": "type ifname",
    "routers": "type ifname",
    "served": "type ifname",
}
"""The sets of guests, with the types of their elements.

================  ==============================================================================
set               elements
================  ==============================================================================
``ports``         ports whose source MAC addresses are checked
``guests``        those ports, each with the guest's MAC address
``free``          the elements of ``guests`` whose guests may use any IP address, each with the types of IP packets
``guest_macs``    ports of devices, each with the MAC addresses of the network's guests
``vpn_ports``     ports of devices
``addressed``     ports whose IP addresses are checked
``addresses4``    those ports with their IPv4 addresses, and with 0.0.0.0 (RFC 5227, DHCP)
``addresses6``    those ports with their IPv6 addresses, and with ``::`` (RFC 4862)
``targets``       those ports with the IPv6 addresses of which the guest may advertise itself
``routed4``       ports of devices, one of which is the IPv4 router of its network
``routed6``       the same for IPv6
``subnets4``      those ports with the IPv4 subnet of the network: a router may not use other addresses of this subnet
``subnets6``      the same for IPv6
``dhcp_servers``  ports of guests that may answer as DHCP servers
``routers``       ports of guests that may send router advertisements and redirects
``served``        ports in networks in which the host's server has the addresses `SERVER4` and `SERVER6`
================  ==============================================================================
"""
RATE_SETS = ("broadcasts", "multicasts")
SetElement = tuple[str, ...]
"""The name of a set, and the parts of an element of the set."""


class GuestPort(NamedTuple):
    """A guest's bridge port, and the frames that the guest may send there.

    ``mac`` is the only allowed source MAC address. ``addresses`` are the only allowed IP addresses (with prefix
    lengths), besides the link-local IPv6 address of ``mac``, or None if all are allowed. If ``mac`` is None, the guest
    may use all addresses and offer all services. If ``served``, the guest must not claim the host's server's addresses.
    """

    port: str
    mac: str | None
    addresses: tuple[str, ...] | None = None
    serves: tuple[GuestService, ...] = ()
    served: bool = False


class DevicePort(NamedTuple):
    """The bridge port of a network's devices, and the frames that they may send there.

    ``guest_macs`` are the MAC addresses that devices must not use. ``addresses`` are the only allowed IP addresses,
    besides link-local IPv6 addresses, or None if all are allowed. If one of the devices is the network's router,
    ``routed`` are the subnets of the network, and all addresses outside of them are allowed too. ``served`` has the
    meaning as in `GuestPort`.
    """

    port: str
    guest_macs: tuple[str, ...] = ()
    addresses: tuple[str, ...] | None = None
    routed: tuple[str, ...] = ()
    served: bool = False


FilteredPort = GuestPort | DevicePort


def list_elements(ports: Iterable[FilteredPort]) -> frozenset[SetElement]:
    """Return the elements of all sets for these ports."""
    return frozenset(
        element
        for port in ports
        for element in (_list_port_elements(port) if isinstance(port, GuestPort) else _list_device_elements(port))
    )


def render_table(ports: Iterable[FilteredPort], rules: Mapping[str, tuple[str, ...]] = RULES) -> str:
    """Return commands that replace the table in one transaction. Without ports, the commands delete the table."""
    delete = f"table {FAMILY} {TABLE} {{ }}\ndelete table {FAMILY} {TABLE}\n"
    elements = sorted(list_elements(ports))
    if not elements:
        return delete
    sets = "".join(_render_set(name, [parts for owner, *parts in elements if owner == name]) for name in SETS)
    rates = "".join(f" set {name} {{ type ifname; size 65535; flags dynamic; }}\n" for name in RATE_SETS)
    chains = "".join(_render_chain(name, chain_rules) for name, chain_rules in rules.items())
    return f"{delete}table {FAMILY} {TABLE} {{\n{sets}{rates}{chains}}}\n"


def _list_port_elements(port: GuestPort) -> Iterator[SetElement]:
    if port.mac is not None:
        yield "ports", port.port
        yield "guests", port.port, port.mac
        if port.addresses is None:
            yield from (("free", port.port, port.mac, kind) for kind in ("ip", "ip6"))
        else:
            yield "addressed", port.port
            yield from _list_addresses(port.port, port.mac, port.addresses)
    if "dhcp" in port.serves or port.mac is None:
        yield "dhcp_servers", port.port
    if "ra" in port.serves or port.mac is None:
        yield "routers", port.port
    if port.served:
        yield "served", port.port


def _list_device_elements(port: DevicePort) -> Iterator[SetElement]:
    yield "vpn_ports", port.port
    yield from (("guest_macs", port.port, mac) for mac in port.guest_macs)
    if port.served:
        yield "served", port.port
    if port.addresses is not None:
        yield "addressed", port.port
        yield from _list_own_addresses(port.port, [ip_interface(address).ip for address in port.addresses])
        for network in map(ip_network, port.routed):
            yield f"routed{network.version}", port.port
            single = network.num_addresses == 1
            yield f"subnets{network.version}", port.port, str(network.network_address if single else network)


def _list_addresses(port: str, mac: str, addresses: Iterable[str]) -> Iterator[SetElement]:
    yield from _list_own_addresses(
        port, [link_local_address(mac), *(ip_interface(address).ip for address in addresses)]
    )


def _list_own_addresses(port: str, allowed: Iterable[IPv4Address | IPv6Address]) -> Iterator[SetElement]:
    own6 = [address for address in allowed if isinstance(address, IPv6Address)]
    own4 = [address for address in allowed if not isinstance(address, IPv6Address)]
    yield from (("addresses4", port, str(address)) for address in ("0.0.0.0", *own4))  # noqa: S104 - a source address
    yield from (("addresses6", port, str(address)) for address in ("::", *own6))
    yield from (("targets", port, f"{int(address):#x}") for address in own6)


def link_local_address(mac: str) -> IPv6Address:
    """Return the link-local address that is derived from a MAC address (RFC 4291, appendix A)."""
    octets = bytes.fromhex(mac.replace(":", ""))
    identifier = bytes([octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:]
    return IPv6Address(b"\xfe\x80" + bytes(6) + identifier)


def _render_set(name: str, elements: list[list[str]]) -> str:
    """Render a set. The kernel finds elements faster in a set with a size. The next table has sets of another size."""
    listed = ", ".join(" . ".join((f'"{port}"', *values)) for port, *values in elements)
    size = f"size {len(elements)};" if elements and "interval" not in SETS[name] else ""
    return f" set {name} {{ {SETS[name]}; {size} {f'elements = {{ {listed} }};' if listed else ''} }}\n"


def _render_chain(name: str, rules: Iterable[str]) -> str:
    hook = f" {_INGRESS_HOOK}" if name == INGRESS else ""
    lines = "".join(f'  {rule} comment "{digest_rule(rule)}"\n' for rule in rules)
    return f" chain {name} {{{hook}\n{lines} }}\n"


def digest_rule(rule: str) -> str:
    """Return the comment of a rule, by which the agent recognizes the rules of its version."""
    return sha256(rule.encode()).hexdigest()[:12]
