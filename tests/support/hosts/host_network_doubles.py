"""The kernel, the hypervisor and the records of a host for `host_network_world`: all requests are counted.

Links of the kind ``vlan`` are replaced by taps, because the kernel of a test machine may lack 802.1Q.
"""

import errno
import socket
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from support.fake_machine import FakeHypervisor
from virtcloud.agent.network.interface_messages import parse_interface
from virtcloud.agent.network.interfaces import KernelInterface, UplinkRecord, UplinkRecordFiles
from virtcloud.model.errors import Refused


class Killed(BaseException):
    """Simulates that the agent's process is killed."""


class Meter:
    """Counts the agent's requests to the kernel, the hypervisor and the disk.

    ``changes`` are the requests that change something. After ``left`` further requests, ``fault`` is called before each
    request.
    """

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.requests: list[str] = []
        self.left = 0
        self.fault: Callable[[str], None] | None = None

    def count(self, request: str, *, changes: bool = True) -> None:
        self.requests.append(request)
        if self.fault is not None:
            self.left -= 1
            if self.left < 0:
                self.fault(request)
        if changes:
            self.changes.append(request)


class TaggedLinks:
    """The 802.1Q links of a kernel that may lack them: persistent taps that behave as ``net/8021q`` in Linux does.

    ``tags`` maps the index of a link to the index of its parent and its VLAN ID.
    """

    def __init__(self, route: IPRoute) -> None:
        self._route = route
        self.tags: dict[int, tuple[int, int]] = {}

    def add(self, ifname: str, link: int, vlan_id: int, mtu: int) -> None:
        """Create a link that is down. Raise NetlinkError if Linux would refuse the link."""
        present = {one["index"]: one for one in self._route.get_links()}
        if link not in present:
            raise NetlinkError(errno.ENODEV, "No such device")
        self.tags = {index: tag for index, tag in self.tags.items() if index in present}
        if (link, vlan_id) in self.tags.values():
            raise NetlinkError(errno.EEXIST, "File exists")
        if mtu > present[link].get_attr("IFLA_MTU"):
            raise NetlinkError(errno.ERANGE, "Numerical result out of range")
        add_tap(self._route, ifname, mtu=mtu)
        self.tags[socket.if_nametoindex(ifname)] = link, vlan_id

    def check(self, index: int, values: Mapping[str, Any]) -> None:
        """Raise NetlinkError if a link's new MTU exceeds its parent's, or a link is set up while its parent is down."""
        if index not in self.tags or not {"mtu", "state"} & values.keys():
            return
        (parent,) = self._route.get_links(self.tags[index][0])
        if values.get("mtu", 0) > parent.get_attr("IFLA_MTU"):
            raise NetlinkError(errno.ERANGE, "Numerical result out of range")
        if values.get("state") == "up" and not parent["flags"] & 1:
            raise NetlinkError(errno.ENETDOWN, "Network is down")

    def follow(self, *, with_state: bool) -> None:
        """Delete each link without a parent. Limit the MTU of each other link to the MTU of its parent.

        With ``with_state``, also set each link up or down, as its parent is.
        """
        present = {one["index"]: one for one in self._route.get_links()}
        for index in self.tags.keys() & present.keys():
            parent = present.get(self.tags[index][0])
            if parent is None:
                self._route.link("del", index=index)
                continue
            mtu = min(one.get_attr("IFLA_MTU") for one in (present[index], parent))
            state = {"state": "up" if parent["flags"] & 1 else "down"} if with_state else {}
            self._route.link("set", index=index, mtu=mtu, **state)

    def parse(self, message: Any, addressed: Container[int]) -> KernelInterface:
        interface = parse_interface(message, addressed)
        parent, vlan = self.tags.get(interface.index, (None, None))
        return interface if parent is None else replace(interface, kind="vlan", parent=parent, vlan=vlan)


class MeteredSocket:
    """pyroute2's socket, whose requests are counted."""

    def __init__(self, route: IPRoute, meter: Meter, tagged: TaggedLinks) -> None:
        self._route, self._meter, self._tagged = route, meter, tagged

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._route, name)
        if name == "close":
            return method

        def request(command: str, **values: Any) -> Any:
            self._meter.count(f"{name} {command} {values}", changes=command not in {"dump", "get"})
            if name == "link" and values.get("kind") == "vlan":
                values.pop("kind")
                return self._tagged.add(**values)
            if command == "set":
                self._tagged.check(values["index"], values)
            return method(command, **values)

        return request


class MeteredRecords(UplinkRecordFiles):
    """The records of uplinks in files, whose changes are counted."""

    def __init__(self, folder: Path, boot: str, meter: Meter) -> None:
        super().__init__(folder, boot)
        self._meter = meter

    def record(self, record: UplinkRecord) -> None:
        self._meter.count(f"record {record.uplink}")
        super().record(record)

    def forget(self, uplink: str) -> None:
        self._meter.count(f"forget {uplink}")
        super().forget(uplink)


class TapHypervisor(FakeHypervisor):
    """A hypervisor whose guests have taps of the real kernel. libvirt gives a tap its bridge's MTU by default."""

    def __init__(self, meter: Meter, route: IPRoute) -> None:
        super().__init__()
        self._meter, self._route = meter, route
        self.ports: dict[str, tuple[str, str]] = {}
        """The names of each domain's port and bridge."""

    def start(self, xml: str) -> None:
        self._meter.count("start guest")
        root = ET.fromstring(xml)  # noqa: S314 - written by the agent
        name, interface = root.findtext("name"), root.find("devices/interface")
        assert name
        assert interface is not None
        bridge, port = (interface.find(part) for part in ("source", "target"))
        assert bridge is not None
        assert port is not None
        size = interface.find("mtu")
        self.ports[name] = port.attrib["dev"], bridge.attrib["bridge"]
        try:
            self.plug(name, None if size is None else int(size.attrib["size"]))
        except (NetlinkError, ValueError) as error:
            raise Refused(f"libvirt: cannot create the port of {name}") from error
        super().start(xml)

    def plug(self, domain: str, mtu: int | None = None) -> None:
        """Create a guest's port on its bridge, as libvirt does when the guest starts."""
        port, bridge = self.ports[domain]
        (found,) = self._route.get_links(ifname=bridge)
        add_tap(self._route, port, master=found["index"], mtu=mtu or found.get_attr("IFLA_MTU"), state="up")

    def unplug(self, domain: str) -> None:
        port = self.ports[domain][0]
        if port in {name for _, name in socket.if_nameindex()}:
            self._route.link("del", index=socket.if_nametoindex(port))

    def shut_down(self, name: str, *, systemd: bool = False) -> None:
        self._meter.count("shut guest down")
        if name in self.by_name and name not in self.stubborn:
            self.unplug(name)
        super().shut_down(name, systemd=systemd)

    def destroy(self, name: str) -> None:
        self._meter.count("destroy guest")
        if name in self.by_name and name not in self.immortal:
            self.unplug(name)
        super().destroy(name)

    def end(self, name: str) -> None:
        """End a guest as if it had shut down by itself."""
        self.unplug(name)
        self.by_name.pop(name)


def add_tap(route: IPRoute, name: str, **values: Any) -> None:
    route.link("add", ifname=name, kind="tuntap", mode="tap")
    if values:
        route.link("set", index=socket.if_nametoindex(name), **values)
