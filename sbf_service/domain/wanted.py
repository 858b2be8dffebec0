"""What a provider edge must know beside itself: the transports it is on, and who else is on them. Pure.

From clusters to what each element must carry: the pure half of the one mechanism (DESIGN.md §3).
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sbf_service.domain.admission import find_origin
from sbf_service.domain.paths import find_path_ports
from virtcloud.model.cluster import ClusterSpec, Guest
from virtcloud.model.edge import Circuit, EdgeWanted, sort_circuits
from virtcloud.model.element import Edge, Switch
from virtcloud.model.topology import Attachment, Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import ClusterKey, Mac, Name, PortName, PortRef, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import GuestWanted, HostWanted, Segment, SwitchWanted


def find_edge_transports(topology: Topology, edge: Name) -> tuple[Transport, ...]:
    """Give the transports by which the edge's site is attached at it, in the topology's order."""
    names = {one.transport for one in topology.site_of[edge].attachments if one.port.element == edge}
    return tuple(one for one in topology.transports if one.name in names)


def find_edge_peers(topology: Topology, edge: Name, transports: Iterable[Transport]) -> dict[str, tuple[str, ...]]:
    """Give, for each of these transports, the addresses by which its other edges are known, in the topology's order.

    An edge without such an address is no peer of anybody.
    """
    return {one.name: tuple(_loopbacks(topology, one.name, edge)) for one in transports}


def _loopbacks(topology: Topology, transport: Name, edge: Name) -> Iterator[str]:
    for other in _edges_on(topology, transport):
        if other.name != edge and other.loopback is not None:
            yield str(other.loopback)


def _edges_on(topology: Topology, transport: Name) -> list[Edge]:
    ends = {one.port.element for one in _attachments(topology) if one.transport == transport}
    return [edge for site in topology.sites for edge in site.edges if edge.name in ends]


def _attachments(topology: Topology) -> Iterator[Attachment]:
    for site in topology.sites:
        yield from site.attachments


@dataclass(frozen=True, slots=True)
class ClusterNetwork:
    """The cluster whose network a member has joined."""

    id: str
    key: ClusterKey
    spec: ClusterSpec


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """A cluster that elements are to carry, with its network's VLAN number at each site.

    ``transport`` joins the sites, ``service`` is the network's own number there, where each has one. ``joined`` is a
    member's network; another cluster is its own. ``created_by`` asked for it, as the audit log has it.
    """

    id: str
    key: ClusterKey
    spec: ClusterSpec
    vlans: Mapping[Name, VlanId]
    transport: Name | None = None
    service: int | None = None
    joined: ClusterNetwork | None = None
    created_by: str | None = None

    @property
    def network(self) -> ClusterNetwork:
        """The network that it is in."""
        return self.joined or ClusterNetwork(self.id, self.key, self.spec)


WantedState = SwitchWanted | EdgeWanted | HostWanted


FindPorts = Callable[[Topology, LiveCluster, Name], Iterable[PortRef]]
"""Returns the ports of one element that must carry a cluster."""


def find_ports_on(topology: Topology, cluster: LiveCluster, element: Name) -> Iterable[PortRef]:
    """Return the ports of ``element`` that must carry a cluster."""
    return [port for port in find_cluster_ports(topology, cluster) if port.element == element]


@dataclass(frozen=True, slots=True)
class CachedPaths:
    """The ports that carry each cluster, computed once per cluster, for a caller that compares many elements."""

    _found: dict[str, Mapping[Name, Sequence[PortRef]]] = field(default_factory=dict)

    def ports_on(self, topology: Topology, cluster: LiveCluster, element: Name) -> Iterable[PortRef]:
        """Return what :func:`ports_on` does; ``topology`` must be the same in all calls."""
        if cluster.id not in self._found:
            found: dict[Name, list[PortRef]] = defaultdict(list)
            for port in find_cluster_ports(topology, cluster):
                found[port.element].append(port)
            self._found[cluster.id] = found
        return self._found[cluster.id].get(element, ())


def compute_wanted(
    element: Name, topology: Topology, clusters: Iterable[LiveCluster], ports: FindPorts = find_ports_on
) -> WantedState:
    """Return what ``element`` must carry. Raises NotFound when the topology does not have it."""
    found = topology.element(element)
    if isinstance(found, Switch):
        return _switch_wanted(found, topology, clusters, ports)
    if isinstance(found, Edge):
        return _edge_wanted(found, topology, clusters, ports)
    return HostWanted(segments=tuple(_segments(element, topology, clusters, ports)))


def find_cluster_ports(topology: Topology, cluster: LiveCluster) -> frozenset[PortRef]:
    """Give the ports that must carry a cluster: see :func:`~sbf_service.domain.paths.find_path_ports`."""
    joined = None if cluster.joined is None else cluster.joined.spec
    return find_path_ports(topology, cluster.spec, cluster.transport, joined)


def list_elements(ports: Iterable[PortRef]) -> frozenset[Name]:
    """Give the elements that these ports belong to."""
    return frozenset(port.element for port in ports)


def derive_mac(cluster_id: str, guest: Name) -> Mac:
    """Make a guest's MAC address: the same each time, another one in another cluster.

    It is locally administered and unicast (IEEE 802c: second lowest bit of the first octet set, lowest clear). The
    highest bit is clear too: libvirt keeps ``fe:…`` for the host's end of a guest's interface.
    """
    octets = bytearray(hashlib.sha256(f"{cluster_id}/{guest}".encode()).digest()[:6])
    octets[0] = octets[0] & 0x7C | 0x02
    return Mac(octets.hex(":"))


def _switch_wanted(
    switch: Switch, topology: Topology, clusters: Iterable[LiveCluster], ports: FindPorts
) -> SwitchWanted:
    """Return every managed port, also the one that is to carry nothing."""
    site = topology.site_of[switch.name].name
    numbers: dict[PortName, set[VlanId]] = {port: set() for port in switch.ports}
    for cluster in clusters:
        for port in ports(topology, cluster, switch.name):
            numbers[port.port].add(cluster.vlans[site])
    access = tuple(port for port in switch.ports if PortRef(f"{switch.name}:{port}") in topology.access_ports)
    return SwitchWanted(ports={port: VlanSet(carried) for port, carried in numbers.items()}, access=access)


def _edge_wanted(edge: Edge, topology: Topology, clusters: Iterable[LiveCluster], ports: FindPorts) -> EdgeWanted:
    return EdgeWanted(
        circuits=sort_circuits({one for each in clusters for one in _circuits(edge, topology, each, ports)})
    )


def _circuits(edge: Edge, topology: Topology, cluster: LiveCluster, ports: FindPorts) -> Iterator[Circuit]:
    if cluster.transport is None:
        return
    service = topology.transport(cluster.transport).shared if cluster.service is None else cluster.service
    if service is None:
        return
    for end in ports(topology, cluster, edge.name):
        vlan = cluster.vlans[topology.site_of[edge.name].name]
        yield Circuit(transport=cluster.transport, port=end.port, vlan=vlan, service=service)


def _segments(host: Name, topology: Topology, clusters: Iterable[LiveCluster], ports: FindPorts) -> Iterator[Segment]:
    """Give one segment for each network, in the order of their ids."""
    networks: dict[tuple[str, PortRef], list[LiveCluster]] = defaultdict(list)
    for cluster in sorted(clusters, key=lambda one: one.id):
        for end in ports(topology, cluster, host):
            networks[cluster.network.id, end].append(cluster)
    for (_, end), some in sorted(networks.items()):
        yield _segment(topology, end, some)


def _segment(topology: Topology, end: PortRef, clusters: Sequence[LiveCluster]) -> Segment:
    """Put the guests of a network's cluster before those of its members."""
    network = clusters[0].network
    ordered = sorted(clusters, key=lambda one: one.joined is not None)
    return Segment(
        id=network.id,
        key=network.key,
        vlan=clusters[0].vlans[topology.site_of[end.element].name],
        port=end.port,
        untagged=end in topology.access_ports,
        guests=tuple(_guest(one, guest) for one in ordered for guest in one.spec.guests if guest.host == end.element),
        members={one.id: one.key for one in clusters if one.joined is not None},
        origins={one.id: find_origin(one.spec.owner, one.created_by) for one in clusters},
    )


def _guest(cluster: LiveCluster, guest: Guest) -> GuestWanted:
    return GuestWanted(
        name=guest.name,
        image=guest.image,
        memory_mb=guest.memory_mb,
        cpus=guest.cpus,
        mac=guest.mac or derive_mac(cluster.id, guest.name),
        addresses=guest.addresses,
        cluster=None if cluster.joined is None else cluster.id,
    )
