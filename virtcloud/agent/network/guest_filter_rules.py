"""The table of nftables (family ``bridge``) that filters frames from the bridge ports of guests and VPN devices.

The table drops frames that a guest must not send, with the same few rules for any number of guests. Its sets list the
guests' bridge ports, with the MAC and IP addresses that each guest may use. If a guest's port is in no set, for example
because another version of the agent started the guest, the source addresses of this guest's frames are not checked.
Each expression costs time for each frame. Therefore one comparison is enough to accept a frame from an uplink, and the
next two rules accept most frames of guests: one look-up finds the port, the source MAC address and the type of the
frame. In clusters with ``filters: addresses``, a second look-up finds the source IP address. These rules accept no
packet with IPv6 extension headers.

=============================  ==============================================================================
frames that are dropped        reason
=============================  ==============================================================================
source MAC addresses that      switches and bridges would send the frames of another guest to this guest
the guest does not have
802.1Q and 802.1ad tags        a switch could accept a second tag as another cluster's VLAN
802.3 frames without a type    spanning tree, CDP, VTP, DTP and LACP configure switches. A switch with BPDU guard
(LLC), link-local protocols    disables the host's port, and therefore all clusters of the host.
broadcasts and multicasts      a storm fills the links that the cluster shares with other clusters
above a rate
answers of DHCP servers,       a guest could become the router of other guests, and read and change their packets
router advertisements
ARP and ND messages that       a guest could answer the metadata and DNS requests of other guests. Only in
claim the addresses of the     clusters with ``host_services``
host's DHCP, DNS and metadata
server (`SERVER4`, `SERVER6`)
IP addresses that the guest    a guest could pretend to be another guest. Only in clusters whose spec has
may not use                    ``filters: addresses``
=============================  ==============================================================================

Devices of a gateway's VPN share one port for each network and VPN protocol (UDP or TCP). The same rules filter the
devices' frames, even in clusters with ``filters: open``, with these differences. A device may use every MAC address
except those of the network's guests; OpenVPN limits the number of MAC addresses. Frames of duplicate address detection
are dropped. The port is in hairpin mode, so the device would receive its own frame, and assume that another device uses
the address. If a device is the network's router, all devices may use IP addresses outside of the network's subnets.

The chains ``ipv4`` and ``ipv6`` drop packets in which nftables found no upper-layer header, except later fragments. So
a guest cannot hide a router advertisement behind extension headers or in fragments:

* The rules check the first fragment, which contains the upper-layer header, and accept later fragments.
* A first fragment with an extension header behind the fragment header is dropped: the extension header could move the
  upper-layer header to a later fragment.
* Neighbour discovery in fragments is dropped. Receivers must ignore these packets (RFC 6980).
* The kernel also looks for the upper-layer header in the padding behind a packet's end. Therefore the rules that accept
  most frames compare the protocol in the IPv6 header too, and not only `meta l4proto`.

Sources: IEEE 802.1Q-2018, table 8-1 (link-local addresses); RFC 7113 (router advertisements), RFC 7610 (DHCPv6);
nft(8).
"""

from collections.abc import Mapping
from ipaddress import IPv6Address

FAMILY, TABLE = "bridge", "virtcloud"
GUEST_PORTS = "vc*"
"""The pattern of nft(8) for guests' bridge ports. The pattern matches no other interface on a bridge (`names`)."""
DEVICE_PORTS = "vpn-*"
"""The pattern for the VPN's bridge ports. The pattern also matches OpenVPN's taps, which are on no bridge (`names`)."""
FILTERED_PORTS = "v*"
"""A pattern for both kinds of ports: one comparison excludes frames from uplinks."""
BROADCASTS_PER_S = 1000
"""Limit of a guest's broadcast frames: per second, and in a burst."""
MULTICASTS_PER_S = 10_000
"""Limit of a guest's multicast and broadcast frames per second."""
INGRESS, PORT_KINDS = "ingress", "port_kinds"
WITHOUT_EXTENSIONS, OWN_ADDRESSES = "without_extensions", "own_addresses"
GUEST, ADDRESSES, IPV4, IPV6 = "guest", "addresses", "ipv4", "ipv6"
DEVICE, DEVICE_ADDRESSES = "vpn", "vpn_addresses"
SERVER4, SERVER6 = "169.254.169.254", "fe80::a9fe:a9fe"
"""The addresses of a host's server for guests: DHCP, DNS and metadata (``host_services``)."""
INGRESS_HOOK = "type filter hook prerouting priority -300; policy accept;"
_TO_GROUP = "ether daddr & 01:00:00:00:00:00"
_UNICAST = "meta pkttype other"
"""Matches frames whose destination is neither a group address nor the port's own address (eth_type_trans)."""
_SENDER = "iifname . ether saddr . ether type vmap @senders"
"""Accepts untagged IPv4 packets of guests that may use any IP address. For IPv6 packets and other guests, the verdict
leads to a chain that compares the protocol in the IPv6 header or the source IP address.

The kernel also finds a TCP header behind a VLAN tag. Therefore the rule compares ``ether type``: in a tagged frame,
``ether type`` is the type of the tag.
"""
_NO_EXTENSIONS = "ip6 nexthdr { tcp, udp }"
_NO_DHCP_ANSWER = "udp sport != { 67, 547 } udp dport != { 68, 546 }"
"""Matches UDP packets that no DHCP server sends.

With single values instead of the sets in braces, nft would combine both comparisons into one. The combined comparison
would be true even if only one of the two ports differs.
"""


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
    INGRESS: (f'iifname "{FILTERED_PORTS}" goto {PORT_KINDS}',),
    PORT_KINDS: (
        f"meta l4proto tcp {_UNICAST} {_SENDER}",
        f"{_UNICAST} {_NO_DHCP_ANSWER} {_SENDER}",
        f'iifname "{GUEST_PORTS}" goto {GUEST}',
        f'iifname "{DEVICE_PORTS}" goto {DEVICE}',
    ),
    WITHOUT_EXTENSIONS: (
        f"{_NO_EXTENSIONS} accept",
        f"goto {GUEST}",
    ),
    OWN_ADDRESSES: (
        "iifname . ip saddr @addresses4 accept",
        f"{_NO_EXTENSIONS} iifname . ip6 saddr @addresses6 accept",
        f"goto {GUEST}",
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
    "senders": "type ifname . ether_addr . ether_type : verdict",
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
"""The sets with the ports of guests and VPN devices: the type of the elements, by the name of the set.

``senders`` is a verdict map. The last part of its elements is a verdict.

================  ==============================================================================
set               elements
================  ==============================================================================
``ports``         ports whose source MAC addresses are checked
``guests``        the elements of ``ports``, each with the guest's MAC address
``senders``       the elements of ``guests``, each with a type of IP packets. If the guest may use any IP address, the
                  verdict is ``accept`` for IPv4 and ``goto without_extensions`` for IPv6, otherwise
                  ``goto own_addresses``
``guest_macs``    ports of devices, each with the MAC addresses of the network's guests
``vpn_ports``     ports of devices
``addressed``     ports whose IP addresses are checked
``addresses4``    ports of ``addressed`` with each allowed IPv4 address, and 0.0.0.0 (RFC 5227, DHCP)
``addresses6``    ports of ``addressed`` with each allowed IPv6 address, and ``::`` (RFC 4862)
``targets``       ports of ``addressed`` with each IPv6 address that the guest may claim in neighbour advertisements
``routed4``       ports of devices in networks whose IPv4 router is a device
``routed6``       ports of devices in networks whose IPv6 router is a device
``subnets4``      ports of ``routed4`` with the network's IPv4 subnets, in which only ``addresses4`` are allowed
``subnets6``      ports of ``routed6`` with the network's IPv6 subnets, in which only ``addresses6`` are allowed
``dhcp_servers``  ports of guests that may answer as DHCP servers
``routers``       ports of guests that may send router advertisements and redirects
``served``        ports in networks in which each host has the addresses `SERVER4` and `SERVER6`
================  ==============================================================================
"""
RATE_SETS = ("broadcasts", "multicasts")
SetElement = tuple[str, ...]
"""The name of a set, then the parts of one element: ("guests", "vc100-9f3a2b1c", "02:00:00:00:00:01")."""


def is_verdict_map(name: str) -> bool:
    """Return whether the name is that of a verdict map in `SETS`."""
    return SETS.get(name, "").endswith(": verdict")
