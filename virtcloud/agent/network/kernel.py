"""The kernel's interfaces through one netlink socket (pyroute2). The only module that knows of pyroute2."""

import socket
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from virtcloud.agent.network.interfaces import HostIpSettings, KernelInterface
from virtcloud.model.errors import Refused

SYSCTL = Path("/proc/sys/net")
_ADDRGEN_NONE = {"attrs": [("AF_INET6", {"attrs": [("IFLA_INET6_ADDR_GEN_MODE", 1)]})]}
_UP = 1
_FILTERS = ("br_nf_call_iptables", "br_nf_call_ip6tables", "br_nf_call_arptables")


class NetlinkKernel:
    """The real kernel, in the network namespace in which this was made."""

    def __init__(self) -> None:
        """Open the socket."""
        self._socket = IPRoute()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def links(self) -> list[KernelInterface]:
        """Give all interfaces."""
        with _translate_errors("list interfaces"):
            addresses = self._socket.addr("dump")
            addressed = {message["index"] for message in addresses if message["scope"] < _SCOPE_LINK}
            return [_parse_interface(message, addressed) for message in self._socket.link("dump")]

    def add_vlan(self, name: str, parent: KernelInterface, vlan: int) -> int:
        """Create an 802.1q interface, down, with its parent's MTU: the four octets of the tag are not counted in it."""
        with _translate_errors(f"create VLAN {vlan} on {parent.name}"):
            self._socket.link("add", ifname=name, kind="vlan", link=parent.index, vlan_id=vlan, mtu=parent.mtu)
            return self._index(name)

    def add_bridge(self, name: str) -> int:
        """Create a bridge, down.

        No spanning tree: a segment has one way out, and BPDUs of ours do not belong on a switch's port. No multicast
        snooping: the segment is the user's own Ethernet, and snooping without a querier, or with one that a guest
        plays, loses frames; a host has few members, so flooding to all costs little.
        """
        with _translate_errors(f"create bridge {name}"):
            self._socket.link("add", ifname=name, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
            return self._index(name)

    def add_pair(self, name: str, peer: str, process: int, mtu: int) -> int:
        """Create a veth pair, down, its ``peer`` in the network namespace of a process; give the index of ``name``."""
        with _translate_errors(f"create the interfaces {name} and {peer}"):
            far = {"ifname": peer, "net_ns_pid": process, "mtu": mtu}
            self._socket.link("add", ifname=name, kind="veth", mtu=mtu, peer=far)
            return self._index(name)

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``mtu``, ``master`` or ``up``, in one message."""
        words = {"name": "ifname", "alias": "ifalias"}
        attributes = {words.get(key, key): value for key, value in values.items() if key != "up"}
        if "up" in values:
            attributes["state"] = "up" if values["up"] else "down"
        with _translate_errors(
            f"set {', '.join(f'{key}={value}' for key, value in values.items())} of interface {index}"
        ):
            self._socket.link("set", index=index, **attributes)

    def filters(self) -> tuple[str, ...]:
        """Return the sysctls of br_netfilter that are set, as ``net.bridge.NAME``; none where it is not loaded.

        They hold for all bridges of the network namespace: br_nf_pre_routing() of the kernel passes a frame over only
        where neither the sysctl nor the bridge's own option is set.
        """
        found = [SYSCTL / "bridge" / name for name in ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables")]
        with _translate_errors("read the sysctls of bridges"):
            return tuple(f"net.bridge.{one.name}" for one in found if one.exists() and one.read_text().strip() != "0")

    def unfilter(self, index: int) -> None:
        """Reset a bridge's own options of br_netfilter."""
        with _translate_errors(f"keep bridge {index} from the packet filter"):
            self._socket.link("set", index=index, kind="bridge", **dict.fromkeys(_FILTERS, 0))

    def hush(self, index: int, name: str) -> None:
        """Stop the host itself from speaking on an interface.

        No IPv6 at all (also none from a router advertisement of a guest), and of IPv4 nothing: without an address here
        strict reverse path filtering (RFC 3704) drops what comes, and arp_ignore 1 keeps the host from answering for
        addresses of its other interfaces.
        """
        with _translate_errors(f"keep the host off {name}"):
            self._socket.link("set", index=index, IFLA_AF_SPEC=_ADDRGEN_NONE)
            _write_sysctls(name, HOST_IP_DISABLED)

    def voice(self, name: str | None) -> HostIpSettings:
        """Read how the host speaks on an interface; with None, how it speaks on a new one."""
        with _translate_errors(f"read how the host speaks on {name or 'new interfaces'}"):
            paths = {setting: _sysctl_path(name or "default", setting) for setting in (*HOST_IP_DISABLED, ADDRESS_MODE)}
            settings = {setting: path.read_text().strip() for setting, path in paths.items() if path.exists()}
            return HostIpSettings(settings=settings, addresses=self._link_local(name) if name else ())

    def speak(self, index: int, name: str, voice: HostIpSettings) -> None:
        """Restore the host's own addresses and answers on an interface.

        IPv6 comes last: the kernel makes the link-local address when IPv6 is enabled, in the mode that is set by then.
        """
        with _translate_errors(f"let the host speak on {name}"):
            last = "ipv6/disable_ipv6"
            _write_sysctls(name, {setting: value for setting, value in voice.settings.items() if setting != last})
            _write_sysctls(name, {setting: value for setting, value in voice.settings.items() if setting == last})
            for one in set(voice.addresses) - set(self._link_local(name)):
                address, _, length = one.partition("/")
                self._socket.addr("add", index=index, address=address, prefixlen=int(length))

    def _link_local(self, name: str) -> tuple[str, ...]:
        index = self._index(name)
        every = self._socket.addr("dump", family=socket.AF_INET6)
        mine = [one for one in every if one["index"] == index and one["scope"] == _SCOPE_LINK]
        return tuple(sorted(f"{one.get_attr('IFA_ADDRESS')}/{one['prefixlen']}" for one in mine))

    def delete(self, index: int) -> None:
        """Delete an interface; one that is gone already is no error."""
        with _translate_errors(f"delete interface {index}"):
            try:
                self._socket.link("del", index=index)
            except NetlinkError as error:
                if error.code != _NO_SUCH_DEVICE:
                    raise

    def _index(self, name: str) -> int:
        return int(self._socket.link_lookup(ifname=name)[0])


_NO_SUCH_DEVICE = 19
_SCOPE_LINK = 253
"""RT_SCOPE_LINK (linux/rtnetlink.h): from there on an address is of use on one link only, as every IPv6 one has."""


HOST_IP_DISABLED = {"ipv6/disable_ipv6": "1", "ipv4/rp_filter": "1", "ipv4/arp_ignore": "1"}
ADDRESS_MODE = "ipv6/addr_gen_mode"


def _sysctl_path(name: str, setting: str) -> Path:
    family, _, key = setting.partition("/")
    return SYSCTL / family / "conf" / name / key


def _write_sysctls(name: str, settings: Mapping[str, str]) -> None:
    for setting, value in settings.items():
        path = _sysctl_path(name, setting)
        if path.exists():  # a kernel without IPv6 has no such file
            path.write_text(value)


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        raise Refused(f"the kernel refused to {what}: {error.args[1]}") from error
    except OSError as error:
        raise Refused(f"the kernel refused to {what}: {error.strerror}") from error


def _parse_interface(message: Any, addressed: Container[int]) -> KernelInterface:  # noqa: ANN401 - pyroute2 has no types
    info = message.get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info else None
    data = info.get_attr("IFLA_INFO_DATA") if info else None
    return KernelInterface(
        index=message["index"],
        name=message.get_attr("IFLA_IFNAME"),
        kind=kind,
        alias=message.get_attr("IFLA_IFALIAS"),
        parent=message.get_attr("IFLA_LINK"),
        master=message.get_attr("IFLA_MASTER"),
        vlan=data.get_attr("IFLA_VLAN_ID") if kind == "vlan" and data else None,
        mtu=message.get_attr("IFLA_MTU"),
        up=bool(message["flags"] & _UP),
        quiet=_is_host_ip_disabled(message.get_attr("IFLA_AF_SPEC")),
        addressed=message["index"] in addressed,
        filtered=kind == "bridge"
        and data is not None
        and any(data.get_attr(f"IFLA_{one.upper()}") for one in _FILTERS),
    )


def _is_host_ip_disabled(families: Any) -> bool:  # noqa: ANN401 - pyroute2 has no types
    four = families.get_attr("AF_INET") if families else None
    six = families.get_attr("AF_INET6") if families else None
    conf = six.get_attr("IFLA_INET6_CONF") if six else None
    return (four is None or (four["rp_filter"], four["arp_ignore"]) == (1, 1)) and (
        conf is None or conf["disable_ipv6"] == 1
    )
