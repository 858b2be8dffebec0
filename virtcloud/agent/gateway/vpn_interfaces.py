"""The interfaces of a gateway's VPN: the taps of OpenVPN servers, and their ports on networks' bridges."""

from typing import Any, Protocol

from virtcloud.agent.gateway.admission import ETHERNET_MTU
from virtcloud.agent.gateway.openvpn_config import DEVICES
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.vpn import VpnProtocol
from virtcloud.model.wanted import Segment


class VpnKernel(Protocol):
    """The operations of the kernel that the VPN's interfaces need."""

    def list_interfaces(self) -> list[KernelInterface]:
        """Return all interfaces."""

    def add_tap(self, name: str) -> int:
        """Create a tap that is down. Return its index."""

    def add_vlan(self, name: str, parent: KernelInterface, vlan: int) -> int:
        """Create an 802.1Q interface that is down. Return its index."""

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``mtu``, ``master`` or ``up`` of an interface."""

    def set_hairpin(self, index: int) -> None:
        """Allow a bridge to send a frame out of the port at which the frame arrived."""

    def disable_host_ip(self, index: int, name: str) -> None:
        """Stop the host's IP stack from using an interface."""

    def delete(self, index: int) -> None:
        """Delete an interface. Do nothing if the interface is absent."""


def is_own_tap(interface: KernelInterface, name: str) -> bool:
    """Return whether an interface is the tap with this name.

    If an agent was killed while it created the tap, the tap has its temporary name and no alias.
    """
    is_incomplete = interface.name == names.temporary_tap_name(name)
    return is_incomplete or (interface.name, interface.alias) == (name, names.VPN_ALIAS)


class VpnInterfaces:
    """The taps and ports of a gateway's VPN. All operations are idempotent."""

    def __init__(self, kernel: VpnKernel) -> None:
        """Store ``kernel``, whose interfaces the methods create, change and delete."""
        self._kernel = kernel

    def ensure_tap(self, name: str) -> int:
        """Create the tap with this name, or correct its faults.

        Return its index. Raise Unsafe if a foreign interface has this name.
        """
        interfaces = {interface.name: interface for interface in self._kernel.list_interfaces()}
        tap = interfaces.get(name)
        if tap is not None and tap.alias != names.VPN_ALIAS:
            raise Unsafe(f"virtcloud did not create the interface {name}; left unchanged: remove or rename it")
        index = tap.index if tap else self._create_tap(name, interfaces.get(names.temporary_tap_name(name)))
        self._kernel.change(index, mtu=ETHERNET_MTU, master=0)
        self._kernel.disable_host_ip(index, name)
        self._kernel.change(index, up=True)
        return index

    def ensure_no_tap(self, name: str) -> None:
        """Delete a tap, even if the tap is incomplete. Keep a foreign interface with the tap's name."""
        for interface in self._kernel.list_interfaces():
            if is_own_tap(interface, name):
                self._kernel.delete(interface.index)

    def ensure_port(self, segment: Segment, protocol: VpnProtocol) -> None:
        """Create the port between a server and a network's bridge, or correct its faults.

        No frame passes before the port belongs to its bridge. Raise Refused if the bridge or the tap is missing. Raise
        Unsafe if a foreign interface has the port's name.
        """
        name, vlan = names.vpn_port_name(DEVICES[protocol], segment.vlan), segment.vlan
        interfaces = {interface.name: interface for interface in self._kernel.list_interfaces()}
        bridge, tap = interfaces.get(names.bridge_name(vlan)), interfaces.get(DEVICES[protocol])
        if bridge is None or names.cluster_of_alias(bridge.alias) != segment.id:
            raise Refused(f"expected bridge {names.bridge_name(vlan)} of cluster {segment.key}, found none")
        if tap is None:
            raise Refused(f"the OpenVPN server of {protocol} is not running")
        port = interfaces.get(name)
        if port is not None and names.cluster_of_alias(port.alias) is None:
            raise Unsafe(f"virtcloud did not create the interface {name}; left unchanged: remove or rename it")
        if port is not None and (port.parent, port.vlan) == (tap.index, vlan):
            index = port.index
            self._kernel.change(index, alias=names.ownership_alias(segment.id))
        else:
            index = self._create_port(segment, name, tap, [port, interfaces.get(names.temporary_vpn_port_name(vlan))])
        self._kernel.disable_host_ip(index, name)
        self._kernel.change(index, master=bridge.index, mtu=min(bridge.mtu, ETHERNET_MTU))
        self._kernel.set_hairpin(index)
        self._kernel.change(index, up=True)

    def ensure_no_port(self, cluster: str, name: str) -> None:
        """Delete the port with this name if the port exists and belongs to the cluster."""
        for interface in self._kernel.list_interfaces():
            if interface.name == name and names.cluster_of_alias(interface.alias) == cluster:
                self._kernel.delete(interface.index)

    def _create_tap(self, name: str, former: KernelInterface | None) -> int:
        if former is not None:
            self._kernel.delete(former.index)
        index = self._kernel.add_tap(names.temporary_tap_name(name))
        self._kernel.change(index, name=name, alias=names.VPN_ALIAS)
        return index

    def _create_port(
        self, segment: Segment, name: str, tap: KernelInterface, former: list[KernelInterface | None]
    ) -> int:
        for interface in former:
            if interface is not None:
                self._kernel.delete(interface.index)
        index = self._kernel.add_vlan(names.temporary_vpn_port_name(segment.vlan), tap, segment.vlan)
        self._kernel.change(index, name=name, alias=names.ownership_alias(segment.id))
        return index
