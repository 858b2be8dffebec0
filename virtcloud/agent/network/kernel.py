"""The kernel's interfaces, accessed through a netlink socket."""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

from virtcloud.agent.network.interfaces import HostIpSettings, KernelInterface
from virtcloud.agent.network.link_messages import (
    FILTERS,
    NO_STATISTICS,
    SCOPE_LINK,
    BridgeData,
    LinkAttribute,
    PortData,
    VethData,
    VlanData,
    encode_address,
    encode_address_query,
    encode_kind,
    encode_link,
    parse_address,
    parse_index,
    parse_interface,
)
from virtcloud.agent.network.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    MessageKind,
    NetlinkError,
    RouteSocket,
    Values,
    encode_attributes,
    nested,
    text,
    u8,
    u16,
    u32,
)
from virtcloud.model.errors import Refused

SYSCTL = Path("/proc/sys/net")
TUN_DEVICE = "/dev/net/tun"
_TUNSETIFF, _TUNSETPERSIST, _TUNSETOWNER, _IFF_TAP = 0x400454CA, 0x400454CB, 0x400454CC, 2
"""Requests and the flag of taps (linux/if_tun.h). PowerPC, MIPS and SPARC have other numbers."""
_ENCODINGS: Mapping[str, tuple[int, Callable[[Any], bytes]]] = {
    "name": (LinkAttribute.IFNAME, text),
    "alias": (LinkAttribute.IFALIAS, text),
    "mtu": (LinkAttribute.MTU, u32),
    "master": (LinkAttribute.MASTER, u32),
}
"""The attributes that `NetlinkKernel.change` sets, by name."""


class NetlinkKernel:
    """The kernel's interfaces. The object uses the network namespace in which it was created."""

    def __init__(self) -> None:
        """Open the socket."""
        self._socket = RouteSocket()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def list_interfaces(self) -> list[KernelInterface]:
        """Return all interfaces."""
        with _translate_errors("list interfaces"):
            addresses = self._socket.dump(MessageKind.GETADDR, encode_address_query(), parse_address)
            addressed = {address.index for address in addresses if address.scope < SCOPE_LINK}
            query = encode_link(attributes={LinkAttribute.EXT_MASK: NO_STATISTICS})
            return self._socket.dump(MessageKind.GETLINK, query, lambda message: parse_interface(message, addressed))

    def add_vlan(self, name: str, parent: KernelInterface, vlan: int) -> int:
        """Create an 802.1Q interface in the state down, with the MTU of its parent.

        Both interfaces have the same MTU, because an MTU does not include the four octets of the tag.
        """
        with _translate_errors(f"create VLAN {vlan} on {parent.name}"):
            attributes: Values = {LinkAttribute.LINK: u32(parent.index), LinkAttribute.MTU: u32(parent.mtu)}
            return self._create(name, attributes, "vlan", {VlanData.ID: u16(vlan)})

    def add_bridge(self, name: str) -> int:
        """Create a bridge in the state down.

        Spanning tree is off, because a segment has one uplink and a switch should receive no BPDU from a host.
        Multicast snooping is off, because snooping loses frames if there is no querier or if a guest pretends to be the
        querier. Flooding of multicast costs little, because a bridge has few ports.
        """
        with _translate_errors(f"create bridge {name}"):
            return self._create(name, {}, "bridge", {BridgeData.STP_STATE: u32(0), BridgeData.MCAST_SNOOPING: u8(0)})

    def add_veth_pair(self, name: str, peer: str, process: int, mtu: int, mac: str | None = None) -> int:
        """Create a veth pair in the state down, with ``peer`` in a process's network namespace.

        ``mac`` is the MAC address of ``peer``; None: the kernel chooses. Return the index of the interface ``name``.
        """
        with _translate_errors(f"create the interfaces {name} and {peer}"):
            address: Values = {} if mac is None else {LinkAttribute.ADDRESS: bytes.fromhex(mac.replace(":", ""))}
            peer_attributes: Values = {
                LinkAttribute.IFNAME: text(peer),
                LinkAttribute.MTU: u32(mtu),
                LinkAttribute.NET_NS_PID: u32(process),
                **address,
            }
            data = {nested(VethData.PEER): encode_link(attributes=peer_attributes)}
            return self._create(name, {LinkAttribute.MTU: u32(mtu)}, "veth", data)

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``mtu``, ``master`` or ``up`` of an interface, in one netlink message."""
        encodings = ((_ENCODINGS[key], value) for key, value in values.items() if key != "up")
        attributes = {kind: encode(value) for (kind, encode), value in encodings}
        with _translate_errors(
            f"set {', '.join(f'{key}={value}' for key, value in values.items())} of interface {index}"
        ):
            self._socket.change(MessageKind.NEWLINK, encode_link(index, attributes, up=values.get("up")))

    def isolate(self, index: int) -> None:
        """Isolate a bridge's port. A bridge forwards no frames between isolated ports (bridge(8))."""
        with _translate_errors(f"isolate the bridge port {index}"):
            self._set_port_flag(index, PortData.ISOLATED)

    def set_hairpin(self, index: int) -> None:
        """Allow a bridge's port to send a frame back through the same port (bridge(8))."""
        with _translate_errors(f"set the hairpin mode of the bridge port {index}"):
            self._set_port_flag(index, PortData.MODE)

    def add_tap(self, name: str) -> int:
        """Create a tap in the state down, which stays when no program uses it. Return its index.

        Only root may use the tap, even without the capability CAP_NET_ADMIN.
        """
        with _translate_errors(f"create the tap {name}"):
            descriptor = os.open(TUN_DEVICE, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP))
                fcntl.ioctl(descriptor, _TUNSETOWNER, 0)
                fcntl.ioctl(descriptor, _TUNSETPERSIST, 1)
            finally:
                os.close(descriptor)
            return self._index(name)

    def packet_filter_sysctls(self) -> tuple[str, ...]:
        """Return the nonzero sysctls of br_netfilter, as ``net.bridge.NAME``. Without br_netfilter, return no sysctl.

        The sysctls apply to all bridges of the network namespace. The kernel (br_nf_pre_routing) passes a frame to the
        packet filter if the sysctl is nonzero or if the bridge's own option is set.
        """
        paths = [SYSCTL / "bridge" / name for name in ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables")]
        with _translate_errors("read the sysctls of bridges"):
            return tuple(
                f"net.bridge.{path.name}" for path in paths if path.exists() and path.read_text().strip() != "0"
            )

    def disable_packet_filter(self, index: int) -> None:
        """Set a bridge's options of br_netfilter to 0."""
        with _translate_errors(f"disable the packet filter of bridge {index}"):
            options = encode_kind("bridge", dict.fromkeys(FILTERS, u8(0)))
            self._socket.change(MessageKind.NEWLINK, encode_link(index, options))

    def disable_host_ip(self, index: int, name: str) -> None:
        """Stop the host's IP stack from using an interface.

        IPv6 is disabled, so router advertisements of guests have no effect. For IPv4, strict reverse path filtering
        (RFC 3704) drops all packets on an interface without an address. The value 1 of ``arp_ignore`` prevents ARP
        replies for addresses of other interfaces.
        """
        with _translate_errors(f"disable the host's IP stack on {name} (interface {index})"):
            _write_sysctls(name, {ADDRESS_MODE: NO_ADDRESSES, **HOST_IP_DISABLED})

    def read_host_ip(self, name: str | None) -> HostIpSettings:
        """Return an interface's configuration in the host's IP stack. None stands for a new interface."""
        with _translate_errors(f"read the host's IP configuration of {name or 'new interfaces'}"):
            paths = {setting: _sysctl_path(name or "default", setting) for setting in (*HOST_IP_DISABLED, ADDRESS_MODE)}
            settings = {setting: path.read_text().strip() for setting, path in paths.items() if path.exists()}
            return HostIpSettings(settings=settings, addresses=self._link_local(name) if name else ())

    def restore_host_ip(self, index: int, name: str, former: HostIpSettings) -> None:
        """Restore the former addresses and sysctls of an interface in the host's IP stack.

        ``disable_ipv6`` is restored after ``addr_gen_mode``. When IPv6 is enabled, the kernel creates a link-local
        address according to ``addr_gen_mode``.
        """
        with _translate_errors(f"restore the host's IP configuration of {name}"):
            last = "ipv6/disable_ipv6"
            _write_sysctls(name, {setting: value for setting, value in former.settings.items() if setting != last})
            _write_sysctls(name, {setting: value for setting, value in former.settings.items() if setting == last})
            for missing in set(former.addresses) - set(self._link_local(name)):
                address, _, length = missing.partition("/")
                message = encode_address(index, IPv6Address(address), int(length))
                self._socket.change(MessageKind.NEWADDR, message, NLM_F_CREATE | NLM_F_EXCL)

    def _link_local(self, name: str) -> tuple[str, ...]:
        index = self._index(name)
        addresses = self._socket.dump(MessageKind.GETADDR, encode_address_query(socket.AF_INET6), parse_address)
        return tuple(
            sorted(
                f"{IPv6Address(address.address)}/{address.prefix_length}"
                for address in addresses
                if address.index == index and address.scope == SCOPE_LINK
            )
        )

    def delete(self, index: int) -> None:
        """Delete an interface. An absent interface is success."""
        with _translate_errors(f"delete interface {index}"):
            try:
                self._socket.change(MessageKind.DELLINK, encode_link(index))
            except NetlinkError as error:
                if error.errno != errno.ENODEV:
                    raise

    def _create(self, name: str, attributes: Values, kind: str, data: Values) -> int:
        """Create an interface. Return its index."""
        link = encode_link(attributes={LinkAttribute.IFNAME: text(name), **attributes, **encode_kind(kind, data)})
        self._socket.change(MessageKind.NEWLINK, link, NLM_F_CREATE | NLM_F_EXCL)
        return self._index(name)

    def _set_port_flag(self, index: int, flag: PortData) -> None:
        port = {nested(LinkAttribute.PROTINFO): encode_attributes({flag: u8(1)})}
        self._socket.change(MessageKind.SETLINK, encode_link(index, port, family=socket.AF_BRIDGE))

    def _index(self, name: str) -> int:
        query: Values = {LinkAttribute.EXT_MASK: NO_STATISTICS, LinkAttribute.IFNAME: text(name)}
        return parse_index(self._socket.get(MessageKind.GETLINK, encode_link(attributes=query)))


HOST_IP_DISABLED = {"ipv6/disable_ipv6": "1", "ipv4/rp_filter": "1", "ipv4/arp_ignore": "1"}
ADDRESS_MODE, NO_ADDRESSES = "ipv6/addr_gen_mode", "1"


def _sysctl_path(name: str, setting: str) -> Path:
    family, _, key = setting.partition("/")
    return SYSCTL / family / "conf" / name / key


def _write_sysctls(name: str, settings: Mapping[str, str]) -> None:
    for setting, value in settings.items():
        path = _sysctl_path(name, setting)
        if path.exists():  # on a kernel without IPv6, the file is missing
            path.write_text(value)


@contextmanager
def _translate_errors(action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(f"the kernel refused to {action}: {error.strerror}") from error
