"""The kernel's interfaces through a netlink socket. Only this module uses pyroute2."""

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
    """The kernel's interfaces in the network namespace in which the object was created."""

    def __init__(self) -> None:
        """Open the socket."""
        self._socket = IPRoute()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def list_interfaces(self) -> list[KernelInterface]:
        """Return all interfaces."""
        with _translate_errors("list interfaces"):
            addresses = self._socket.addr("dump")
            addressed = {message["index"] for message in addresses if message["scope"] < _SCOPE_LINK}
            return [_parse_interface(message, addressed) for message in self._socket.link("dump")]

    def add_vlan(self, name: str, parent: KernelInterface, vlan: int) -> int:
        """Create an 802.1Q interface in the state down.

        Its MTU is its parent's MTU, which excludes the four octets of the tag.
        """
        with _translate_errors(f"create VLAN {vlan} on {parent.name}"):
            self._socket.link("add", ifname=name, kind="vlan", link=parent.index, vlan_id=vlan, mtu=parent.mtu)
            return self._index(name)

    def add_bridge(self, name: str) -> int:
        """Create a bridge in the state down.

        Spanning tree is off, since a segment has one uplink and a switch's port should receive no BPDU from a host.
        Multicast snooping is off, since snooping loses frames without a querier, or with a querier that a guest
        imitates. A host has few members, so flooding costs little.
        """
        with _translate_errors(f"create bridge {name}"):
            self._socket.link("add", ifname=name, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
            return self._index(name)

    def add_veth_pair(self, name: str, peer: str, process: int, mtu: int) -> int:
        """Create a veth pair in the state down, with ``peer`` in a process's network namespace.

        Return the index of ``name``.
        """
        with _translate_errors(f"create the interfaces {name} and {peer}"):
            far = {"ifname": peer, "net_ns_pid": process, "mtu": mtu}
            self._socket.link("add", ifname=name, kind="veth", mtu=mtu, peer=far)
            return self._index(name)

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

    def packet_filter_sysctls(self) -> tuple[str, ...]:
        """Return the sysctls of br_netfilter that are set, as ``net.bridge.NAME``.

        Without br_netfilter, return no sysctl.

        The sysctls apply to all bridges of the network namespace: the kernel's br_nf_pre_routing() skips a frame only
        if neither the sysctl nor the bridge's own option is set.
        """
        found = [SYSCTL / "bridge" / name for name in ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables")]
        with _translate_errors("read the sysctls of bridges"):
            return tuple(f"net.bridge.{one.name}" for one in found if one.exists() and one.read_text().strip() != "0")

    def disable_packet_filter(self, index: int) -> None:
        """Reset a bridge's own options of br_netfilter."""
        with _translate_errors(f"disable the packet filter of bridge {index}"):
            self._socket.link("set", index=index, kind="bridge", **dict.fromkeys(_FILTERS, 0))

    def disable_host_ip(self, index: int, name: str) -> None:
        """Stop the host's IP stack from using an interface.

        IPv6 is disabled, so a guest's router advertisement has no effect. IPv4 receives no packet, because strict
        reverse path filtering (RFC 3704) drops packets on an interface without an address. IPv4 answers no ARP request,
        because arp_ignore 1 excludes addresses of other interfaces.
        """
        with _translate_errors(f"disable the host's IP stack on {name}"):
            self._socket.link("set", index=index, IFLA_AF_SPEC=_ADDRGEN_NONE)
            _write_sysctls(name, HOST_IP_DISABLED)

    def read_host_ip(self, name: str | None) -> HostIpSettings:
        """Return how the host's IP stack is configured on the interface ``name``; for None, on a new interface."""
        with _translate_errors(f"read how the host's IP stack uses {name or 'new interfaces'}"):
            paths = {setting: _sysctl_path(name or "default", setting) for setting in (*HOST_IP_DISABLED, ADDRESS_MODE)}
            settings = {setting: path.read_text().strip() for setting, path in paths.items() if path.exists()}
            return HostIpSettings(settings=settings, addresses=self._link_local(name) if name else ())

    def restore_host_ip(self, index: int, name: str, former: HostIpSettings) -> None:
        """Restore the host's own sysctls and addresses on an interface.

        IPv6 is enabled last, because the kernel then creates the link-local address according to addr_gen_mode.
        """
        with _translate_errors(f"restore the host's IP configuration of {name}"):
            last = "ipv6/disable_ipv6"
            _write_sysctls(name, {setting: value for setting, value in former.settings.items() if setting != last})
            _write_sysctls(name, {setting: value for setting, value in former.settings.items() if setting == last})
            for one in set(former.addresses) - set(self._link_local(name)):
                address, _, length = one.partition("/")
                self._socket.addr("add", index=index, address=address, prefixlen=int(length))

    def _link_local(self, name: str) -> tuple[str, ...]:
        index = self._index(name)
        every = self._socket.addr("dump", family=socket.AF_INET6)
        own = [one for one in every if one["index"] == index and one["scope"] == _SCOPE_LINK]
        return tuple(sorted(f"{one.get_attr('IFA_ADDRESS')}/{one['prefixlen']}" for one in own))

    def delete(self, index: int) -> None:
        """Delete an interface; an absent interface is success."""
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
"""RT_SCOPE_LINK (linux/rtnetlink.h): addresses of this scope and above are valid on one link only."""


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
        host_ip_disabled=_is_host_ip_disabled(message.get_attr("IFLA_AF_SPEC")),
        addressed=message["index"] in addressed,
        packet_filtered=kind == "bridge"
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
