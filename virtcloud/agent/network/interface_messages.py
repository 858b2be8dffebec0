"""Interfaces in the kernel's netlink messages (rtnetlink(7), linux/if_link.h), parsed as `KernelInterface`. Pure."""

from collections.abc import Container
from typing import Any

from virtcloud.agent.network.interfaces import InterfaceCounters, KernelInterface

_UP = 1  # IFF_UP, netdevice(7)
PACKET_FILTERS = ("br_nf_call_iptables", "br_nf_call_ip6tables", "br_nf_call_arptables")


def parse_interface(message: Any, addressed: Container[int]) -> KernelInterface:  # noqa: ANN401 - pyroute2 has no types
    """Return the interface that a message describes. ``addressed`` are the indexes of interfaces with addresses."""
    link = MessageAttributes(message)
    info = MessageAttributes(link["IFLA_LINKINFO"])
    kind = info["IFLA_INFO_KIND"]
    data = MessageAttributes(info["IFLA_INFO_DATA"] if kind in {"vlan", "bridge"} else None)
    port = MessageAttributes(info["IFLA_INFO_SLAVE_DATA"] if info["IFLA_INFO_SLAVE_KIND"] == "bridge" else None)
    return KernelInterface(
        index=message["index"],
        name=link["IFLA_IFNAME"],
        kind=kind,
        alias=link["IFLA_IFALIAS"],
        parent=link["IFLA_LINK"],
        master=link["IFLA_MASTER"],
        vlan=data["IFLA_VLAN_ID"] if kind == "vlan" else None,
        mtu=link["IFLA_MTU"],
        up=bool(message["flags"] & _UP),
        host_ip_disabled=_is_host_ip_disabled(MessageAttributes(link["IFLA_AF_SPEC"])),
        addressed=message["index"] in addressed,
        packet_filtered=kind == "bridge" and any(data[f"IFLA_{option.upper()}"] for option in PACKET_FILTERS),
        isolated=bool(port["IFLA_BRPORT_ISOLATED"]),
        hairpin=bool(port["IFLA_BRPORT_MODE"]),
        counters=_parse_counters(link["IFLA_STATS64"]) if link["IFLA_MASTER"] else None,
    )


def _parse_counters(statistics: Any) -> InterfaceCounters | None:  # noqa: ANN401 - pyroute2 has no types
    """Return the counters of ``struct rtnl_link_stats64`` (linux/if_link.h)."""
    if statistics is None:
        return None
    keys = "rx_bytes", "tx_bytes", "rx_packets", "tx_packets"
    return InterfaceCounters(*(int(statistics[key]) for key in keys))


class MessageAttributes:
    """The attributes of a netlink message by name. pyroute2's own search reads all attributes at each access."""

    def __init__(self, message: Any) -> None:  # noqa: ANN401 - pyroute2 has no types
        """Index the attributes of a message by name, without decoding values.

        If ``message`` is None, the object has no attributes.
        """
        self._attributes = {attribute[0]: attribute for attribute in message["attrs"]} if message else {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - the type depends on the attribute
        """Return the value of an attribute, or None."""
        attribute = self._attributes.get(name)
        return attribute[1] if attribute else None


def _is_host_ip_disabled(families: MessageAttributes) -> bool:
    ipv4, conf = families["AF_INET"], MessageAttributes(families["AF_INET6"])["IFLA_INET6_CONF"]
    return (ipv4 is None or (ipv4["rp_filter"], ipv4["arp_ignore"]) == (1, 1)) and (
        conf is None or conf["disable_ipv6"] == 1
    )
