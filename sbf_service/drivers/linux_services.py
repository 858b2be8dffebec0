"""What carries a cluster's service on a Linux provider edge: a device of its own, a port of the edge's bridge. Pure.

For ``evpn`` it is a VXLAN device with the VNI, for ``qinq`` an 802.1ad VLAN of the edge's core port. Its name says
which service it is for.
"""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from virtcloud.model.element import Edge
from virtcloud.model.transport import Transport, TransportKind

BRIDGE = "br0"
PREFIXES = {TransportKind.EVPN: "vni", TransportKind.QINQ: "stag"}
VXLAN_PORT = 4789
"""IANA's (RFC 7348); Linux's own default is another one."""
TAGGING = "802.1ad"


class Info(BaseModel):
    """What kind of interface it is, with that kind's settings, and those that its bridge has for it."""

    model_config = ConfigDict(strict=True)

    kind: str = Field(default="", alias="info_kind")
    data: dict[str, Any] = Field(default={}, alias="info_data")
    slave: dict[str, Any] = Field(default={}, alias="info_slave_data")


class Link(BaseModel):
    """One interface as ``ip -details -json link show`` prints it."""

    model_config = ConfigDict(strict=True)

    name: str = Field(alias="ifname")
    flags: list[str] = []
    master: str = ""
    link: str = ""
    info: Info = Field(default=Info(), alias="linkinfo")

    @property
    def is_in_use(self) -> bool:
        """Whether it is a port of the edge's bridge and up."""
        return self.master == BRIDGE and "UP" in self.flags


class ServiceDevices:
    """The service devices of one edge on these transports; others are not looked at."""

    def __init__(self, edge: Edge, transports: Iterable[Transport]) -> None:
        """Speak of ``edge``."""
        self._edge = edge
        self.transports = {one.name: one for one in transports if one.kind in PREFIXES}

    def name(self, transport: Transport, service: int) -> str:
        """Give the name of a service's device."""
        return f"{PREFIXES[transport.kind]}{service}"

    def meant_by(self, link: Link) -> tuple[Transport, int] | None:
        """Say which service an interface's name claims to be for; nothing for a name that is not ours."""
        for transport in self.transports.values():
            number = link.name.removeprefix(PREFIXES[transport.kind])
            if number != link.name and number.isdecimal() and int(number) in transport.services:
                return transport, int(number)
        return None

    def made_by(self, link: Link) -> tuple[Transport, int] | None:
        """Say which service an interface carries in fact; nothing for one that carries none of ours."""
        for transport in self.transports.values():
            number = int(link.info.data.get("id", 0))
            if self._is_of(transport, link) and number in transport.services:
                return transport, number
        return None

    def is_as_made(self, transport: Transport, link: Link) -> bool:
        """Say whether a service's device has all the settings that ours have, and is in use."""
        if transport.kind is TransportKind.QINQ:
            return link.is_in_use
        data, mine = link.info.data, {"local": str(self._edge.loopback), "port": VXLAN_PORT, "learning": False}
        quiet = not {"group", "remote"} & data.keys() and link.info.slave.get("learning") is False
        return link.is_in_use and quiet and mine.items() <= data.items()

    def added(self, transport: Transport, service: int) -> tuple[str, ...]:
        """Give the lines for ``ip`` that make a device and put it into the bridge, not up yet.

        What a fabric's edges learn of each other they are told by BGP: no device learns from the frames that come.
        """
        name = self.name(transport, service)
        if transport.kind is TransportKind.QINQ:
            made = f"link add link {self._edge.core_port} name {name} type vlan proto {TAGGING} id {service}"
            return made, f"link set {name} master {BRIDGE}"
        made = f"link add {name} type vxlan id {service} local {self._edge.loopback} dstport {VXLAN_PORT} nolearning"
        return made, f"link set {name} master {BRIDGE}", f"link set {name} type bridge_slave learning off"

    def lacks(self, transport: Transport) -> str | None:
        """Say what the topology must give an edge before a service of this transport can be made."""
        if transport.kind is TransportKind.QINQ:
            return None if self._edge.core_port else "core_port"
        return None if self._edge.loopback else "loopback"

    def _is_of(self, transport: Transport, link: Link) -> bool:
        if transport.kind is TransportKind.QINQ:
            on_core = link.info.kind == "vlan" and link.link == self._edge.core_port
            return on_core and link.info.data.get("protocol") == TAGGING
        return link.info.kind == "vxlan"
