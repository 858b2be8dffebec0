"""Frames, built by Scapy, with which a guest attacks its network."""

from scapy.contrib.cdp import CDPv2_HDR
from scapy.contrib.dtp import DTP
from scapy.contrib.lacp import LACP
from scapy.contrib.lldp import (
    LLDPDUChassisID,
    LLDPDUEndOfLLDPDU,
    LLDPDUPortID,
    LLDPDUTimeToLive,
)
from scapy.contrib.mac_control import MACControlPause
from scapy.contrib.slowprot import SlowProtocol
from scapy.contrib.vtp import VTP
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.dhcp6 import DHCP6_Advertise
from scapy.layers.eap import EAPOL
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6ND_Redirect,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptPrefixInfo,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    PadN,
)
from scapy.layers.l2 import ARP, LLC, SNAP, STP, Dot1AD, Dot1Q, Dot3, Ether
from scapy.packet import Packet, Raw

SWITCH, STRANGER = "02:00:00:00:ba:d2", "02:00:00:00:ba:d1"
CISCO, GROUP, ALL_NODES, BROADCAST = "01:00:0c:cc:cc:cc", "01:80:c2:00:00:", "33:33:00:00:00:01", "ff:ff:ff:ff:ff:ff"
ROUTER, OWN4, OTHER4, OWN6, OTHER6 = "fe80::bad", "10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"
NO_ADDRESS = "0.0.0.0"  # noqa: S104 - a source address
TEST_FRAME = 0x88B5  # for local experiments (IEEE 802)
TCP_PROTOCOL, UDP_PROTOCOL, FRAGMENT, ICMPV6, DESTINATION_OPTIONS = 6, 17, 44, 58, 60


def build_switch_attacks(own: str) -> dict[str, Packet]:
    """Return frames of link-local protocols, frames with tags, and frames with foreign source addresses.

    ``own`` is the guest's MAC address.
    """
    ip4, ip6 = IP(src=OWN4, dst=OTHER4), IPv6(src=OWN6, dst=OTHER6)
    return {
        "a foreign source address": Ether(dst=SWITCH, src=STRANGER, type=TEST_FRAME),
        "an 802.1Q tag": Ether(dst=SWITCH, src=own) / Dot1Q(vlan=101, type=TEST_FRAME),
        "an 802.1ad tag": Ether(dst=SWITCH, src=own, type=0x88A8) / Dot1AD(vlan=101, type=TEST_FRAME),
        "TCP in an 802.1Q tag": Ether(dst=SWITCH, src=own) / Dot1Q(vlan=101) / ip4 / TCP(),
        "TCP in an 802.1ad tag": Ether(dst=SWITCH, src=own, type=0x88A8) / Dot1AD(vlan=101) / ip4 / TCP(),
        "UDP in an 802.1Q tag": Ether(dst=SWITCH, src=own) / Dot1Q(vlan=101) / ip4 / UDP(sport=9, dport=9),
        "TCP over IPv6 in an 802.1Q tag": Ether(dst=SWITCH, src=own) / Dot1Q(vlan=101) / ip6 / TCP(),
        "UDP over IPv6 in an 802.1Q tag": Ether(dst=SWITCH, src=own) / Dot1Q(vlan=101) / ip6 / UDP(sport=9, dport=9),
        "TCP behind a priority tag": Ether(dst=SWITCH, src=own) / Dot1Q(vlan=0) / ip4 / TCP(),
        "TCP in two tags": Ether(dst=SWITCH, src=own, type=0x88A8) / Dot1AD(vlan=101) / Dot1Q(vlan=102) / ip4 / TCP(),
        "two tags": Ether(dst=SWITCH, src=own) / Dot1Q(vlan=101) / Dot1Q(vlan=102, type=TEST_FRAME),
        "an old double tag": Ether(dst=SWITCH, src=own, type=0x9100)
        / Raw(bytes(Dot1Q(vlan=101, type=TEST_FRAME))),
        "a spanning tree BPDU": Dot3(dst=f"{GROUP}00", src=own) / LLC() / STP(),
        "a rapid spanning tree BPDU": Dot3(dst=f"{GROUP}00", src=own) / LLC() / STP(version=2, bpdutype=2),
        "LLC to one switch": Dot3(dst=SWITCH, src=own) / LLC() / STP(),
        "a BPDU of Cisco's PVST": Dot3(dst="01:00:0c:cc:cc:cd", src=own) / LLC(dsap=0xAA, ssap=0xAA, ctrl=3)
        / SNAP(OUI=0xC, code=0x10B) / STP(),
        "CDP": Dot3(dst=CISCO, src=own) / LLC(dsap=0xAA, ssap=0xAA, ctrl=3)
        / SNAP(OUI=0xC, code=0x2000) / CDPv2_HDR(),
        "VTP": Dot3(dst=CISCO, src=own) / LLC(dsap=0xAA, ssap=0xAA, ctrl=3) / SNAP(OUI=0xC, code=0x2003) / VTP(),
        "DTP": Dot3(dst=CISCO, src=own) / LLC(dsap=0xAA, ssap=0xAA, ctrl=3) / SNAP(OUI=0xC, code=0x2004) / DTP(),
        "an Ethernet II frame to Cisco's group": Ether(dst=CISCO, src=own, type=TEST_FRAME),
        "LLDP": Ether(dst=f"{GROUP}0e", src=own) / _lldp(),
        "LLDP to one switch": Ether(dst=SWITCH, src=own) / _lldp(),
        "LACP": Ether(dst=f"{GROUP}02", src=own) / SlowProtocol() / LACP(),
        "LACP to one switch": Ether(dst=SWITCH, src=own) / SlowProtocol() / LACP(),
        "EAPOL": Ether(dst=f"{GROUP}03", src=own) / EAPOL(type=1),
        "EAPOL to one switch": Ether(dst=SWITCH, src=own) / EAPOL(type=1),
        "a pause frame": Ether(dst=f"{GROUP}01", src=own, type=0x8808) / MACControlPause(pause_time=0xFFFF),
        "a pause frame to one switch": Ether(dst=SWITCH, src=own, type=0x8808) / MACControlPause(pause_time=0xFFFF),
        "GVRP": Dot3(dst=f"{GROUP}21", src=own) / LLC(dsap=0x42, ssap=0x42, ctrl=3) / Raw(b"\0\1\1\4\2\0\x65\0\0"),
        "GARP to the bridges' group": Ether(dst=f"{GROUP}21", src=own, type=TEST_FRAME),
        "MVRP": Ether(dst=f"{GROUP}21", src=own, type=0x88F5) / Raw(b"\0\1\4\0\1\0\x65\x24\0\0"),
        "MVRP to one switch": Ether(dst=SWITCH, src=own, type=0x88F5) / Raw(b"\0\1\4\0\1\0\x65\x24\0\0"),
    }  # fmt: skip


def build_service_attacks(own: str) -> dict[str, Packet]:
    """Return frames of a false DHCP server and a false router. Without filters, guests would accept these frames."""
    ethernet = Ether(dst=ALL_NODES, src=own)
    router = IPv6(src=ROUTER, dst="ff02::1", hlim=255)
    advertisement = ICMPv6ND_RA() / ICMPv6NDOptPrefixInfo(prefix="fd00:bad::")
    offer = BOOTP(op=2, yiaddr="10.0.0.66") / DHCP(options=[("message-type", "offer"), "end"])
    options = IPv6ExtHdrDestOpt(nh=ICMPV6, options=[PadN(optdata=b"\0\0\0\0")])
    # The fragment ends in the middle of the destination options. A filter that reads beyond the end of the fragment
    # finds ``padding``. The padding looks like the rest of the options and the type of an echo request (0x80).
    half = bytes(IPv6ExtHdrDestOpt(nh=ICMPV6, len=1, options=[PadN(optdata=b"\0\0\0\0")]))[:8]
    padding = bytes(8) + b"\x80\0\0\0"
    to_one, ip6 = Ether(dst=SWITCH, src=own), IPv6(src=OWN6, dst=OTHER6)
    short = IPv6(src=OWN6, dst=OTHER6, plen=16)
    return {
        "an offer of a DHCP server": Ether(dst=BROADCAST, src=own) / IP(src=OWN4, dst="255.255.255.255")
        / UDP(sport=67, dport=68) / offer,
        "an offer to one guest": Ether(dst=SWITCH, src=own) / IP(src=OWN4, dst=OTHER4)
        / UDP(sport=67, dport=68) / offer,
        "an offer from another port": Ether(dst=SWITCH, src=own) / IP(src=OWN4, dst=OTHER4)
        / UDP(sport=6767, dport=68) / offer,
        "an answer to a DHCP relay": Ether(dst=SWITCH, src=own) / IP(src=OWN4, dst=OTHER4)
        / UDP(sport=67, dport=67) / offer,
        "the first fragment of an offer": Ether(dst=SWITCH, src=own) / IP(src=OWN4, dst=OTHER4, flags="MF", proto=17)
        / Raw(bytes(UDP(sport=67, dport=68, len=300, chksum=0)) + bytes(64)),
        "an offer with another IP version": Ether(dst=SWITCH, src=own, type=0x0800)
        / Raw(b"\x55" + bytes(IP(src=OWN4, dst=OTHER4) / UDP(sport=67, dport=68) / offer)[1:]),
        "an advertisement of a DHCPv6 server": ethernet / IPv6(src=ROUTER, dst="ff02::1")
        / UDP(sport=547, dport=546) / DHCP6_Advertise(),
        "a DHCPv6 advertisement from another port": ethernet / IPv6(src=ROUTER, dst="ff02::1")
        / UDP(sport=6767, dport=546) / DHCP6_Advertise(),
        "a DHCPv6 advertisement to one guest": to_one / ip6 / UDP(sport=547, dport=546) / DHCP6_Advertise(),
        "a DHCPv6 advertisement to one guest from another port": to_one / ip6
        / UDP(sport=6767, dport=546) / DHCP6_Advertise(),
        "an answer to a DHCPv6 relay": to_one / ip6 / UDP(sport=547, dport=547) / DHCP6_Advertise(),
        "a router advertisement": ethernet / router / advertisement,
        "a router advertisement to one guest": Ether(dst=SWITCH, src=own) / router / advertisement,
        "a redirect": ethernet / router / ICMPv6ND_Redirect(tgt=ROUTER, dst=OTHER6),
        "an advertisement behind options": ethernet / router / options / advertisement,
        "an advertisement behind many options": ethernet / router / IPv6ExtHdrDestOpt() / IPv6ExtHdrDestOpt()
        / IPv6ExtHdrDestOpt(nh=ICMPV6) / advertisement,
        "the first fragment of an advertisement": ethernet / router
        / IPv6ExtHdrFragment(m=1, nh=ICMPV6) / Raw(bytes(router / advertisement)[40:56]),
        "an advertisement in a whole fragment": ethernet / router / IPv6ExtHdrFragment(nh=ICMPV6)
        / Raw(bytes(router / advertisement)[40:]),
        "a fragment with options and without their end": ethernet / IPv6(src=ROUTER, dst="ff02::1", hlim=255, plen=16)
        / IPv6ExtHdrFragment(m=1, nh=DESTINATION_OPTIONS) / Raw(half + padding),
        "a fragment with options, and with TCP in the padding": to_one / short
        / IPv6ExtHdrFragment(m=1, nh=DESTINATION_OPTIONS) / Raw(bytes([TCP_PROTOCOL]) + half[1:] + bytes(8))
        / TCP(),
        "a fragment with options, and with UDP in the padding": to_one / short
        / IPv6ExtHdrFragment(m=1, nh=DESTINATION_OPTIONS) / Raw(bytes([UDP_PROTOCOL]) + half[1:] + bytes(8))
        / UDP(sport=9, dport=9),
        "a later fragment in a first fragment": to_one / ip6 / IPv6ExtHdrFragment(m=1, nh=FRAGMENT)
        / IPv6ExtHdrFragment(offset=4, nh=TCP_PROTOCOL) / Raw(bytes(16)),
        "a neighbour advertisement in a fragment": ethernet / router / IPv6ExtHdrFragment(m=1, nh=ICMPV6)
        / Raw(bytes(router / ICMPv6ND_NA(tgt=OTHER6))[40:64]),
        "an advertisement with another IP version": Ether(dst=ALL_NODES, src=own, type=0x86DD)
        / Raw(b"\x45" + bytes(router / advertisement)[1:]),
    }  # fmt: skip


def build_address_attacks(own: str) -> dict[str, Packet]:
    """Return frames with wrong IP addresses. Only clusters with ``filters: addresses`` forbid these frames."""
    known, wrong = OWN4, OTHER4
    ethernet, to_all = Ether(dst=SWITCH, src=own), Ether(dst=BROADCAST, src=own)
    neighbour = ICMPv6ND_NA(tgt=OTHER6, R=0) / ICMPv6NDOptDstLLAddr(lladdr=own)
    return {
        "IPv4 with another guest's address": ethernet / IP(src=wrong, dst=known) / ICMP(),
        "TCP with another guest's address": ethernet / IP(src=wrong, dst=known) / TCP(),
        "UDP with another guest's address": ethernet / IP(src=wrong, dst=known) / UDP(sport=4000, dport=4001),
        "TCP over IPv6 with another guest's address": ethernet / IPv6(src=OTHER6, dst=OWN6) / TCP(),
        "UDP over IPv6 with another guest's address": ethernet / IPv6(src=OTHER6, dst=OWN6) / UDP(sport=9, dport=9),
        "an ARP reply for another guest": ethernet / ARP(op=2, hwsrc=own, psrc=wrong, hwdst=SWITCH, pdst=known),
        "an ARP announcement for another guest": to_all / ARP(op=1, hwsrc=own, psrc=wrong, pdst=wrong),
        "an ARP reply with a foreign MAC address": ethernet / ARP(op=2, hwsrc=STRANGER, psrc=known, pdst=wrong),
        "IPv6 with another guest's address": ethernet / IPv6(src=OTHER6, dst=OWN6) / ICMPv6EchoRequest(),
        "IPv6 with another link-local address": ethernet / IPv6(src="fe80::2", dst=OWN6) / ICMPv6EchoRequest(),
        "a neighbour advertisement for another guest": ethernet / IPv6(src=OWN6, dst="ff02::1", hlim=255) / neighbour,
        "an advertisement from outside": ethernet / IPv6(src="2001:db8::9", dst="ff02::1", hlim=255) / neighbour,
    }


def build_routed_frames(own: str) -> dict[str, Packet]:
    """Return frames from foreign IP addresses. With ``filters: addresses``, only a router may send such frames."""
    ethernet = Ether(dst=SWITCH, src=own)
    return {
        "IPv4 from outside": ethernet / IP(src="198.51.100.9", dst=OWN4) / TCP(),
        "IPv6 from outside": ethernet / IPv6(src="2001:db8::9", dst=OWN6) / TCP(),
    }


def build_ordinary_frames(own: str) -> dict[str, Packet]:
    ethernet, to_all = Ether(dst=SWITCH, src=own), Ether(dst=BROADCAST, src=own)
    discover = BOOTP(op=1) / DHCP(options=[("message-type", "discover"), "end"])
    ip4, ip6 = IP(src=OWN4, dst=OTHER4), IPv6(src=OWN6, dst=OTHER6)
    return {
        "a test frame": Ether(dst=SWITCH, src=own, type=TEST_FRAME),
        "TCP": ethernet / ip4 / TCP(),
        "UDP": ethernet / ip4 / UDP(sport=4000, dport=4001) / Raw(bytes(40)),
        "a ping": ethernet / ip4 / ICMP(),
        "a later fragment of UDP": ethernet / IP(src=OWN4, dst=OTHER4, frag=10, proto=17)
        / Raw(b"\0\x43\0\x44" + bytes(40)),
        "a DHCP request": to_all / IP(src=NO_ADDRESS, dst="255.255.255.255") / UDP(sport=68, dport=67) / discover,
        "an ARP request": to_all / ARP(hwsrc=own, psrc=OWN4, pdst=OTHER4),
        "an ARP probe": to_all / ARP(hwsrc=own, psrc=NO_ADDRESS, pdst=OWN4),
        "IPv4 multicast": Ether(dst="01:00:5e:00:00:01", src=own)
        / IP(src=OWN4, dst="224.0.0.1") / UDP(sport=9, dport=9),
        "TCP over IPv6": ethernet / ip6 / TCP(),
        "UDP over IPv6": ethernet / ip6 / UDP(sport=4000, dport=4001) / Raw(bytes(40)),
        "a ping over IPv6": ethernet / ip6 / ICMPv6EchoRequest(),
        "a fragment of a ping": ethernet / ip6 / IPv6ExtHdrFragment(m=1, nh=ICMPV6) / Raw(b"\x80\0" + bytes(30)),
        "a later fragment": ethernet / ip6 / IPv6ExtHdrFragment(offset=4, nh=ICMPV6) / Raw(b"\x86\0" + bytes(30)),
        "a ping behind options": ethernet / ip6 / IPv6ExtHdrDestOpt(nh=ICMPV6) / ICMPv6EchoRequest(),
        "duplicate address detection": Ether(dst="33:33:ff:00:00:01", src=own)
        / IPv6(src="::", dst="ff02::1:ff00:1", hlim=255) / ICMPv6ND_NS(tgt=OWN6),
        "a neighbour advertisement": ethernet / IPv6(src=OWN6, dst=OTHER6, hlim=255) / ICMPv6ND_NA(tgt=OWN6),
    }  # fmt: skip


def _lldp() -> Packet:
    chassis = LLDPDUChassisID(subtype=7, id=b"sw1")
    return chassis / LLDPDUPortID(subtype=7, id=b"p1") / LLDPDUTimeToLive(ttl=120) / LLDPDUEndOfLLDPDU()
