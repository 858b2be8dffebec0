"""The observed VPN of a gateway, and the steps to the wanted VPN. Pure.

A grant is the right of one device to join a network. A network with grants has one port for each OpenVPN server: an
802.1Q interface with the network's VLAN ID on the server's tap. Without a port, no frame can pass between the VPN and a
network.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_interface

from virtcloud.agent.gateway.admission import ETHERNET_MTU, DeviceSession, find_ended_sessions, index_grants
from virtcloud.agent.gateway.openvpn_config import DEVICES
from virtcloud.agent.network import names
from virtcloud.agent.network.guest_filters import DevicePort
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.segment_step import format_faults
from virtcloud.model.gateway_access import derive_gateway_mac
from virtcloud.model.guest_spec import HOST_SERVICE_MAC
from virtcloud.model.message_text import count_of
from virtcloud.model.vpn import VpnProtocol, VpnServer
from virtcloud.model.wanted import HostWanted, Segment


@dataclass(frozen=True, slots=True)
class ObservedVpnServer:
    """A running OpenVPN server, with its open connections and the digest of its configuration."""

    protocol: VpnProtocol
    config: str = ""
    faults: tuple[str, ...] = ()
    sessions: tuple[DeviceSession, ...] = ()


@dataclass(frozen=True, slots=True)
class ObservedVpnPort:
    """The port of an OpenVPN server in a network."""

    cluster: str
    vlan: int
    name: str
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ObservedVpn:
    """The observed VPN of a gateway.

    ``configs`` are the digests of the wanted servers' configurations. ``limit_faults`` are the differences from the
    wanted filter of TCP connections (`connection_limits`). ``remains`` are the protocols of servers that do not run,
    but whose tap or files exist.
    """

    servers: tuple[ObservedVpnServer, ...] = ()
    ports: tuple[ObservedVpnPort, ...] = ()
    configs: Mapping[VpnProtocol, str] = field(default_factory=dict)
    limit_faults: tuple[str, ...] = ()
    remains: tuple[VpnProtocol, ...] = ()


@dataclass(frozen=True, slots=True)
class RunVpnServer:
    """Start or restart an OpenVPN server. After a restart, the server's devices connect again."""

    protocol: VpnProtocol
    server: VpnServer
    faults: tuple[str, ...] = ()
    cluster: str = ""

    def __str__(self) -> str:
        """Describe the step."""
        port = self.server.ports[self.protocol]
        return f"start the OpenVPN server at {self.protocol} port {port}{format_faults(self.faults)}"


@dataclass(frozen=True, slots=True)
class LimitVpnConnections:
    """Limit each client's connections to the OpenVPN server's TCP port. If ``port`` is None, remove the limits."""

    port: int | None
    faults: tuple[str, ...] = ()
    cluster: str = ""

    def __str__(self) -> str:
        """Describe the step."""
        if self.port is None:
            return "remove the limits of connections to the OpenVPN server"
        return f"limit the connections to TCP port {self.port}{format_faults(self.faults)}"


@dataclass(frozen=True, slots=True)
class StopVpnServer:
    """Stop an OpenVPN server, and remove its tap and its records.

    ``only_remains``: the server does not run, but its tap or its records exist.
    """

    protocol: VpnProtocol
    cluster: str = ""
    only_remains: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """Describe the step."""
        return f"stop the OpenVPN server of {self.protocol}"


@dataclass(frozen=True, slots=True)
class EndVpnSessions:
    """Wait until `DeviceControl` has ended those connections of a network that have no grant.

    ``clients`` are the client IDs by which OpenVPN identifies these connections.
    """

    cluster: str
    protocol: VpnProtocol
    clients: tuple[int, ...]

    def __str__(self) -> str:
        """Describe the step."""
        return f"wait for the end of {count_of(len(self.clients), 'VPN connection')}"


@dataclass(frozen=True, slots=True)
class AddVpnPort:
    """Create the port between an OpenVPN server and a network's bridge, or correct its faults."""

    segment: Segment
    protocol: VpnProtocol
    faults: tuple[str, ...] = ()

    @property
    def cluster(self) -> str:
        """The network's ID."""
        return self.segment.id

    @property
    def name(self) -> str:
        """The port's name."""
        return names.vpn_port_name(DEVICES[self.protocol], self.segment.vlan)

    def __str__(self) -> str:
        """Describe the step."""
        return f"connect {self.name}{format_faults(self.faults)}"


@dataclass(frozen=True, slots=True)
class RemoveVpnPort:
    """Delete the port between an OpenVPN server and a network's bridge."""

    cluster: str
    name: str

    def __str__(self) -> str:
        """Describe the step."""
        return f"disconnect {self.name}"


_BEFORE_ALL_ENDS = datetime.min.replace(tzinfo=UTC)
"""A time before the end of every lease. With this time as ``now``, `find_ended_sessions` finds no ended lease.

`DeviceControl` ends the connections at the end of a lease, without a step.
"""
VpnRemoval = EndVpnSessions | RemoveVpnPort | StopVpnServer
VpnStep = VpnRemoval | LimitVpnConnections | RunVpnServer | AddVpnPort


def list_vpn_ports(wanted: HostWanted) -> dict[str, str]:
    """Return the wanted ports of OpenVPN servers: the network's ID by the port's name."""
    return {step.name: step.cluster for step in _wanted_ports(wanted)}


def list_device_ports(segment: Segment, wanted: HostWanted) -> Iterator[DevicePort]:
    """Yield the wanted ports of a network's devices, with the data for the filter of the devices' frames."""
    granted = tuple(sorted({address for grant in segment.grants for address in grant.addresses}))
    routers = (grant for grant in segment.grants if grant.router)
    subnets = {str(ip_interface(address).network) for grant in routers for address in grant.addresses}
    for port, cluster in list_vpn_ports(wanted).items():
        if cluster == segment.id:
            yield DevicePort(
                port,
                (*segment.guest_macs, *_list_server_macs(segment)),
                granted if segment.filters == "addresses" else None,
                tuple(sorted(subnets)),
                served=bool(segment.host_services),
            )


def _list_server_macs(segment: Segment) -> Iterator[str]:
    if segment.host_services:
        yield HOST_SERVICE_MAC
    if segment.gateway_addresses:
        yield derive_gateway_mac(segment.id, segment.gateway_addresses[0])


def find_vpn_removals(wanted: HostWanted, observed: ObservedVpn) -> Iterator[VpnRemoval]:
    """Yield the steps that end connections without a grant, and remove unwanted ports and servers."""
    grants, protocols = index_grants(wanted.segments), wanted.vpn.ports if wanted.vpn else {}
    for server in observed.servers:
        clients: dict[str, list[int]] = {}
        for ended in find_ended_sessions(server.sessions, grants, _BEFORE_ALL_ENDS):
            clients.setdefault(ended.session.network, []).append(ended.session.client)
        for network, numbers in clients.items():
            yield EndVpnSessions(network, server.protocol, tuple(numbers))
    wanted_ports = {(step.cluster, step.name) for step in _wanted_ports(wanted)}
    for port in observed.ports:
        if (port.cluster, port.name) not in wanted_ports:
            yield RemoveVpnPort(port.cluster, port.name)
    for protocol in (*(server.protocol for server in observed.servers), *observed.remains):
        if protocol not in protocols:
            yield StopVpnServer(protocol, only_remains=protocol in observed.remains)


def find_server_starts(wanted: HostWanted, observed: ObservedVpn) -> Iterator[LimitVpnConnections | RunVpnServer]:
    """Yield the steps that start missing servers, and restart servers with faults or outdated settings."""
    if observed.limit_faults:
        port = wanted.vpn.ports.get(VpnProtocol.TCP) if wanted.vpn else None
        yield LimitVpnConnections(port, observed.limit_faults)
    if wanted.vpn is None:
        return
    by_protocol = {server.protocol: server for server in observed.servers}
    for protocol in wanted.vpn.ports:
        server = by_protocol.get(protocol)
        if server is None:
            yield RunVpnServer(protocol, wanted.vpn)
            continue
        outdated = () if server.config == observed.configs.get(protocol) else ("other settings",)
        if faults := (*server.faults, *outdated):
            yield RunVpnServer(protocol, wanted.vpn, faults)


def find_port_changes(segment: Segment, wanted: HostWanted, observed: ObservedVpn) -> Iterator[AddVpnPort]:
    """Yield the steps that create a network's missing ports, or correct faulty ports."""
    existing = {(port.cluster, port.name): port for port in observed.ports}
    for step in _wanted_ports(wanted):
        if step.cluster != segment.id:
            continue
        port = existing.get((step.cluster, step.name))
        if port is None:
            yield step
        elif port.faults:
            yield AddVpnPort(step.segment, step.protocol, port.faults)


def _wanted_ports(wanted: HostWanted) -> Iterator[AddVpnPort]:
    if wanted.vpn is None:
        return
    for segment in wanted.segments:
        for protocol in wanted.vpn.ports if segment.grants else ():
            yield AddVpnPort(segment, protocol)


def find_vpn_ports(interfaces: Sequence[KernelInterface]) -> Iterator[ObservedVpnPort]:
    """Yield the OpenVPN servers' ports that have an ownership alias, with the ports' faults."""
    by_index = {interface.index: interface for interface in interfaces}
    for port in interfaces:
        vlan, cluster = names.vlan_of_vpn_port(port.name), names.cluster_of_alias(port.alias)
        if vlan is not None and cluster is not None:
            yield ObservedVpnPort(cluster, vlan, port.name, tuple(_find_port_faults(port, vlan, cluster, by_index)))


def _find_port_faults(
    port: KernelInterface, vlan: int, cluster: str, by_index: Mapping[int, KernelInterface]
) -> Iterator[str]:
    bridge, tap = by_index.get(port.master or 0), by_index.get(port.parent or 0)
    if tap is None or names.vpn_port_name(tap.name, vlan) != port.name or port.vlan != vlan:
        yield f"{port.name} is not VLAN {vlan} of its tap"
    if bridge is None or bridge.name != names.bridge_name(vlan) or names.cluster_of_alias(bridge.alias) != cluster:
        yield f"{port.name} is not on {names.bridge_name(vlan)}"
    elif port.mtu != min(bridge.mtu, ETHERNET_MTU):
        yield f"{port.name} has MTU {port.mtu}, expected {min(bridge.mtu, ETHERNET_MTU)}"
    if not port.up:
        yield f"{port.name} is down"
    if not port.host_ip_disabled:
        yield f"the host's IP stack uses {port.name}"
    if not port.hairpin:
        yield f"{port.name} is not in hairpin mode"


def find_tap_faults(tap: KernelInterface | None, name: str) -> Iterator[str]:
    """Yield the faults of a server's tap."""
    if tap is None:
        yield f"{name} is missing"
        return
    if tap.master is not None:
        yield f"{name} is on a bridge"
    if not tap.up:
        yield f"{name} is down"
    if not tap.host_ip_disabled:
        yield f"the host's IP stack uses {name}"
