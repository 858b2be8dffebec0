"""The kernel's interfaces, accessed through a netlink socket. Only this module and `netlink_dumps` import pyroute2."""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyroute2
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from virtcloud.agent.network.interface_messages import PACKET_FILTERS, MessageAttributes, parse_interface
from virtcloud.agent.network.interfaces import HostIpSettings, KernelInterface
from virtcloud.agent.network.netlink_dumps import read_dump, release_memory
from virtcloud.model.errors import Refused

T = TypeVar("T")
SYSCTL = Path("/proc/sys/net")
_SIOCGIFMTU, _SIOCSIFMTU = 0x8921, 0x8922  # linux/sockios.h
_MTU_REQUEST = struct.Struct("16si20x")  # struct ifreq of netdevice(7)
_UNICAST = 1  # RTN_UNICAST, linux/rtnetlink.h


class NetlinkKernel:
    """The kernel's interfaces in the network namespace in which the object was created."""

    def __init__(self) -> None:
        """Open the sockets."""
        pyroute2.config.nlm_generator = True  # a dump yields each message on arrival, so memory holds few messages
        self._socket = IPRoute()
        self._control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # for netdevice(7)

    def close(self) -> None:
        """Close the sockets."""
        self._control.close()
        self._socket.close()

    def list_interfaces(self) -> list[KernelInterface]:
        """Return all interfaces."""
        with _translate_errors("list interfaces"):
            addresses = self._dump_addresses(lambda message: (message["index"], message["scope"]))
            addressed = {index for index, scope in addresses if scope < _SCOPE_LINK}
            return read_dump(
                lambda: release_memory(self._socket.link("dump")), lambda message: parse_interface(message, addressed)
            )

    def add_vlan(self, name: str, parent: KernelInterface, vlan: int) -> int:
        """Create an 802.1Q interface that is down, with the MTU of its parent. Return the new interface's index.

        Both interfaces can have the same MTU, because an MTU does not include the four octets of the tag.
        """
        with _translate_errors(f"create VLAN {vlan} on {parent.name}"):
            self._socket.link("add", ifname=name, kind="vlan", link=parent.index, vlan_id=vlan, mtu=parent.mtu)
            return _read_index(name)

    def add_bridge(self, name: str) -> int:
        """Create a bridge that is down. Return its index.

        Spanning tree is off: a segment has one uplink, and a switch should receive no BPDU from a host. Multicast
        snooping is off: snooping loses frames if the network has no querier, or if a guest poses as the querier.
        Flooding costs little, because a bridge has few ports.
        """
        with _translate_errors(f"create bridge {name}"):
            self._socket.link("add", ifname=name, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
            return _read_index(name)

    def add_veth_pair(self, name: str, peer: str, process: int, mtu: int, mac: str | None = None) -> int:
        """Create a veth pair that is down, with ``peer`` in the network namespace of the process ID ``process``.

        ``mac`` is the MAC address of ``peer``. If ``mac`` is None, the kernel chooses an address. Return the index of
        ``name``.
        """
        return self._add_veth(name, peer, mtu, mac, net_ns_pid=process)

    def add_namespace_veth(self, name: str, peer: str, descriptor: int, mtu: int, mac: str | None = None) -> int:
        """Create a veth pair that is down, with ``peer`` in the network namespace of an open descriptor.

        ``mac`` is the MAC address of ``peer``. If ``mac`` is None, the kernel chooses an address. Return the index of
        ``name``.
        """
        return self._add_veth(name, peer, mtu, mac, net_ns_fd=descriptor)

    def _add_veth(self, name: str, peer: str, mtu: int, mac: str | None, **namespace: int) -> int:
        with _translate_errors(f"create the interfaces {name} and {peer}"):
            address = {} if mac is None else {"address": mac}
            peer_attributes = {"ifname": peer, "mtu": mtu, **address, **namespace}
            self._socket.link("add", ifname=name, kind="veth", mtu=mtu, peer=peer_attributes)
            return _read_index(name)

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``mtu``, ``master`` or ``up`` of an interface, in one netlink message."""
        attribute_names = {"name": "ifname", "alias": "ifalias"}
        attributes = {attribute_names.get(key, key): value for key, value in values.items() if key != "up"}
        if "up" in values:
            attributes["state"] = "up" if values["up"] else "down"
        with _translate_errors(
            f"set {', '.join(f'{key}={value}' for key, value in values.items())} of interface {index}"
        ):
            self._socket.link("set", index=index, **attributes)

    def read_mtu(self, name: str) -> int | None:
        """Return the MTU of an interface, or None if the interface does not exist. Thread-safe."""
        try:
            answer = fcntl.ioctl(self._control, _SIOCGIFMTU, _MTU_REQUEST.pack(name.encode(), 0))
        except OSError as error:
            if error.errno == errno.ENODEV:
                return None
            raise
        return int(_MTU_REQUEST.unpack(answer)[1])

    def set_mtu(self, name: str, mtu: int) -> None:
        """Set the MTU of an interface. Thread-safe."""
        with _translate_errors(f"set MTU {mtu} of {name}"):
            fcntl.ioctl(self._control, _SIOCSIFMTU, _MTU_REQUEST.pack(name.encode(), mtu))

    def isolate(self, index: int) -> None:
        """Isolate a bridge's port: a bridge forwards no frames between isolated ports (bridge(8))."""
        with _translate_errors(f"isolate the bridge port {index}"):
            self._socket.brport("set", index=index, isolated=1)

    def set_hairpin(self, index: int) -> None:
        """Allow a bridge to send frames that arrived at this port back out of this port (bridge(8), ``hairpin``)."""
        with _translate_errors(f"set the hairpin mode of the bridge port {index}"):
            self._socket.brport("set", index=index, mode=1)

    def add_tap(self, name: str) -> int:
        """Create a tap that is down, and that remains when no program uses it. Return its index.

        The owner is root, so a process of root can open the tap without CAP_NET_ADMIN. A process of another user needs
        CAP_NET_ADMIN to open the tap.
        """
        with _translate_errors(f"create the tap {name}"):
            self._socket.link("add", ifname=name, kind="tuntap", mode="tap", uid=0)
            return _read_index(name)

    def packet_filter_sysctls(self) -> tuple[str, ...]:
        """Return the sysctls of br_netfilter that are not zero, as ``net.bridge.NAME``.

        Without the kernel module br_netfilter, return ().

        The sysctls apply to all bridges of the network namespace. The kernel (br_nf_pre_routing) passes a frame to the
        packet filter if the sysctl or the bridge's own option is set.
        """
        paths = [SYSCTL / "bridge" / name for name in ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables")]
        with _translate_errors("read the sysctls of bridges"):
            return tuple(
                f"net.bridge.{path.name}" for path in paths if path.exists() and path.read_text().strip() != "0"
            )

    def disable_packet_filter(self, index: int) -> None:
        """Set to 0 those options of a bridge that pass its frames to the host's packet filter."""
        with _translate_errors(f"disable the packet filter of bridge {index}"):
            self._socket.link("set", index=index, kind="bridge", **dict.fromkeys(PACKET_FILTERS, 0))

    def set_up_link(self, index: int, name: str, addresses: tuple[str, ...]) -> None:
        """Set the addresses of the interface ``name``, and set the interface up. Idempotent.

        Also enable the forwarding of IPv4 packets that arrive at this interface. The interface is the end of a link
        (`outside_links`) in the gateway's main namespace.
        """
        with _translate_errors(f"set the addresses {', '.join(addresses)} of {name}"):
            _write_sysctls(name, {"ipv6/disable_ipv6": "0", "ipv6/accept_ra": "0", "ipv4/rp_filter": "1"})
            _write_sysctls(name, {"ipv6/accept_dad": "0", FORWARDING: "1"})
            for address in addresses:
                text, _, length = address.partition("/")
                self._socket.addr("replace", index=index, address=text, prefixlen=int(length))
            self._socket.link("set", index=index, state="up")

    def enable_forwarding(self, name: str) -> None:
        """Enable the forwarding of IPv4 packets that arrive at an interface."""
        with _translate_errors(f"forward the packets of {name}"):
            _write_sysctls(name, {FORWARDING: "1"})

    def read_forwarding(self, name: str) -> bool | None:
        """Return whether IPv4 packets that arrive at an interface are forwarded, or None for a missing interface."""
        path = _sysctl_path(name, FORWARDING)
        return path.read_text().strip() == "1" if path.exists() else None

    def find_exit(self, address: str) -> str | None:
        """Return the interface of the route to an address, or None without a route.

        Return "" for an address of this host, and for broadcast and multicast addresses.
        """
        try:
            (message,) = tuple(self._socket.route("get", dst=address))
            is_other = message["type"] == _UNICAST
            return socket.if_indextoname(MessageAttributes(message)["RTA_OIF"]) if is_other else ""
        except (NetlinkError, OSError):  # no route, an unreachable route, or a deleted interface
            return None

    def disable_host_ip(self, index: int, name: str) -> None:
        """Stop the host's IP stack from using an interface.

        IPv6 is disabled, so guests' router advertisements have no effect. For IPv4, strict reverse path filtering (RFC
        3704) drops all packets on an interface without an address. The value 1 of ``arp_ignore`` prevents ARP replies
        for addresses of other interfaces.
        """
        with _translate_errors(f"disable the host's IP stack on {name} (interface {index})"):
            _write_sysctls(name, {ADDRESS_MODE: NO_ADDRESSES, **HOST_IP_DISABLED})

    def read_host_ip(self, name: str | None) -> HostIpSettings:
        """Return an interface's settings in the host's IP stack. If ``name`` is None, return the default settings."""
        with _translate_errors(f"read the host's IP configuration of {name or 'new interfaces'}"):
            paths = {setting: _sysctl_path(name or "default", setting) for setting in (*HOST_IP_DISABLED, ADDRESS_MODE)}
            settings = {setting: path.read_text().strip() for setting, path in paths.items() if path.exists()}
            return HostIpSettings(settings=settings, addresses=self._link_local(name) if name else ())

    def restore_host_ip(self, index: int, name: str, former: HostIpSettings) -> None:
        """Restore an interface's former addresses and sysctls in the host's IP stack.

        ``disable_ipv6`` is restored after ``addr_gen_mode``, because the kernel creates a link-local address according
        to ``addr_gen_mode`` when IPv6 is enabled.
        """
        with _translate_errors(f"restore the host's IP configuration of {name}"):
            last = "ipv6/disable_ipv6"
            _write_sysctls(name, {setting: value for setting, value in former.settings.items() if setting != last})
            _write_sysctls(name, {setting: value for setting, value in former.settings.items() if setting == last})
            for missing in set(former.addresses) - set(self._link_local(name)):
                address, _, length = missing.partition("/")
                self._socket.addr("add", index=index, address=address, prefixlen=int(length))

    def list_addresses(self) -> frozenset[str]:
        """Return the IP addresses of all interfaces of this host."""
        with _translate_errors("list the addresses of this host"):
            found = self._dump_addresses(MessageAttributes)
            return frozenset(str(one["IFA_LOCAL"] or one["IFA_ADDRESS"]) for one in found)

    def _link_local(self, name: str) -> tuple[str, ...]:
        index = _read_index(name)
        messages = self._dump_addresses(lambda message: message, family=socket.AF_INET6)
        link_local = [message for message in messages if message["index"] == index and message["scope"] == _SCOPE_LINK]
        return tuple(sorted(f"{message.get_attr('IFA_ADDRESS')}/{message['prefixlen']}" for message in link_local))

    def _dump_addresses(self, parse: Callable[[Any], T], **filters: int) -> list[T]:
        return read_dump(lambda: self._socket.addr("dump", **filters), parse)

    def delete(self, index: int) -> None:
        """Delete an interface. Do nothing if the interface is absent."""
        with _translate_errors(f"delete interface {index}"):
            try:
                self._socket.link("del", index=index)
            except NetlinkError as error:
                if error.code != errno.ENODEV:
                    raise


_SCOPE_LINK = 253
"""RT_SCOPE_LINK (linux/rtnetlink.h). Addresses of this or a higher scope are valid only on one link or host."""


FORWARDING = "ipv4/forwarding"
HOST_IP_DISABLED = {"ipv6/disable_ipv6": "1", "ipv4/rp_filter": "1", "ipv4/arp_ignore": "1"}
ADDRESS_MODE, NO_ADDRESSES = "ipv6/addr_gen_mode", "1"


def _read_index(name: str) -> int:
    """Return the index of an interface by a system call, which is faster than a netlink request."""
    try:
        return socket.if_nametoindex(name)
    except OSError as error:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV)) from error  # if_nametoindex() sets no errno


def _sysctl_path(name: str, setting: str) -> Path:
    family, _, key = setting.partition("/")
    return SYSCTL / family / "conf" / name / key


def _write_sysctls(name: str, settings: Mapping[str, str]) -> None:
    """Write sysctls of an interface by os.write(), which needs fewer system calls than pathlib."""
    for setting, value in settings.items():
        try:
            descriptor = os.open(_sysctl_path(name, setting), os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # the kernel has no IPv6
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)


@contextmanager
def _translate_errors(action: str) -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        raise Refused(f"the kernel refused to {action}: {error.args[1]}") from error
    except OSError as error:
        raise Refused(f"the kernel refused to {action}: {error.strerror}") from error
