"""The wanted state of an element, computed from the topology and the clusters. Pure.

After a restore of the database, elements may still carry clusters that the database does not contain. Such a cluster
may use a VLAN ID that another cluster claims in the database. Therefore, SBF *holds* the claimed VLAN IDs of a site
until the elements that may carry them are checked (``store/elements/unchecked_elements.py``). On a device, SBF keeps
existing configuration with a held VLAN ID, but adds no new configuration with this VLAN ID.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from sbf_service.domain.admission import find_origin
from sbf_service.domain.paths import LiveCluster, find_ports_on
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.edge import Circuit, EdgeObserved, EdgeWanted, sort_circuits
from virtcloud.model.element import Edge, Switch
from virtcloud.model.guest_spec import GUEST_LIMITS, Guest, GuestLimits
from virtcloud.model.switch_state import SwitchObserved, SwitchWanted
from virtcloud.model.topology import Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Mac, Name, PortName, PortRef, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import ADDRESS_FILTERS, HOST_SERVICES, IMAGES, GuestWanted, HostWanted, Segment

WantedState = SwitchWanted | EdgeWanted | HostWanted
HELD_REASON = (
    "the database was restored from a backup: SBF sets up the VLAN when SBF has read all elements that may carry this "
    "VLAN ID for another cluster (virtcloud element list)"
)


def compute_wanted(element: Name, topology: Topology, clusters: Iterable[LiveCluster]) -> WantedState:
    """Return the wanted state of ``element``. Raise NotFound when the topology does not contain the element."""
    described = topology.element(element)
    if isinstance(described, Switch):
        return _switch_wanted(described, topology, clusters)
    if isinstance(described, Edge):
        return _edge_wanted(described, topology, clusters)
    return HostWanted(segments=tuple(_segments(element, topology, clusters)))


def find_edge_transports(topology: Topology, edge: Name) -> tuple[Transport, ...]:
    """Return the transports to which the edge attaches its site, in the topology's order."""
    attachments = topology.site_of[edge].attachments
    names = {attachment.transport for attachment in attachments if attachment.port.element == edge}
    return tuple(transport for transport in topology.transports if transport.name in names)


def find_edge_peers(topology: Topology, edge: Name, transports: Iterable[Transport]) -> dict[str, tuple[str, ...]]:
    """Return the loopback addresses of the other edges on each transport, in the topology's order.

    Omit edges without a loopback address.
    """
    return {transport.name: tuple(_find_loopbacks(topology, transport.name, edge)) for transport in transports}


def derive_mac(cluster_id: str, guest: Name) -> Mac:
    """Derive a guest's MAC address from the cluster's ID and the guest's name.

    The address is locally administered and unicast (IEEE 802c: second lowest bit of the first octet set, lowest clear).
    The highest bit is also clear, because libvirt uses ``fe:…`` for the host's end of a guest's interface.
    """
    octets = bytearray(hashlib.sha256(f"{cluster_id}/{guest}".encode()).digest()[:6])
    octets[0] = octets[0] & 0x7C | 0x02
    return Mac(octets.hex(":"))


def _find_loopbacks(topology: Topology, transport: Name, edge: Name) -> Iterator[str]:
    attachments = (attachment for site in topology.sites for attachment in site.attachments)
    attached = {attachment.port.element for attachment in attachments if attachment.transport == transport}
    others = (other for site in topology.sites for other in site.edges)
    for other in others:
        if other.name in attached and other.name != edge and other.loopback is not None:
            yield str(other.loopback)


def _switch_wanted(switch: Switch, topology: Topology, clusters: Iterable[LiveCluster]) -> SwitchWanted:
    site = topology.site_of[switch.name].name
    vlans: dict[PortName, set[VlanId]] = {port: set() for port in switch.ports}
    for cluster in clusters:
        for port in find_ports_on(topology, cluster, switch.name):
            vlans[port.port].add(cluster.vlans[site])
    untagged = topology.access_ports
    access = tuple(port for port in switch.ports if PortRef.of(switch.name, port) in untagged) if untagged else ()
    return SwitchWanted(ports={port: VlanSet(carried) for port, carried in vlans.items()}, access=access)


def _edge_wanted(edge: Edge, topology: Topology, clusters: Iterable[LiveCluster]) -> EdgeWanted:
    circuits = {circuit for cluster in clusters for circuit in _circuits(edge, topology, cluster)}
    return EdgeWanted(circuits=sort_circuits(circuits))


def _circuits(edge: Edge, topology: Topology, cluster: LiveCluster) -> Iterator[Circuit]:
    if cluster.transport is None:
        return
    service = topology.transport(cluster.transport).shared if cluster.service is None else cluster.service
    if service is None:
        return
    for end in find_ports_on(topology, cluster, edge.name):
        vlan = cluster.vlans[topology.site_of[edge.name].name]
        yield Circuit(transport=cluster.transport, port=end.port, vlan=vlan, service=service)


def _segments(host: Name, topology: Topology, clusters: Iterable[LiveCluster]) -> Iterator[Segment]:
    networks: dict[tuple[str, PortRef], list[LiveCluster]] = defaultdict(list)
    for cluster in sorted(clusters, key=lambda cluster: cluster.id):
        for end in find_ports_on(topology, cluster, host):
            networks[cluster.network.id, end].append(cluster)
    for (_, end), members in sorted(networks.items()):
        yield _segment(topology, end, members)


def _segment(topology: Topology, end: PortRef, clusters: Sequence[LiveCluster]) -> Segment:
    network = clusters[0].network
    ordered = sorted(clusters, key=lambda cluster: cluster.joined is not None)
    return Segment(
        id=network.id,
        key=network.key,
        vlan=clusters[0].vlans[topology.site_of[end.element].name],
        port=end.port,
        untagged=end in topology.access_ports,
        guests=tuple(guest for cluster in ordered for guest in _guests(cluster, end.element)),
        members={cluster.id: cluster.key for cluster in clusters if cluster.joined is not None},
        origins={cluster.id: find_origin(cluster.spec.owner, cluster.created_by) for cluster in clusters},
        requires=tuple(_list_requirements(network.spec, clusters, end.element)),
        filters=network.spec.filters,
        serves=network.spec.serves,
        host_services=network.spec.host_services,
        mtu=_find_mtu(topology, clusters),
        router_addresses=network.spec.router_addresses or (),
        services={Name(service): () for service in network.spec.services},
    )


def _list_requirements(network: ClusterSpec, clusters: Sequence[LiveCluster], host: Name) -> Iterator[str]:
    guests = [(cluster, guest) for cluster in clusters for guest in cluster.spec.guests if guest.host == host]
    if network.filters == "addresses":
        yield ADDRESS_FILTERS
    if network.host_services and guests:
        yield HOST_SERVICES
    if any(guest.image in cluster.images for cluster, guest in guests):
        yield IMAGES
    if any(guest.disks or _limits(guest) for _, guest in guests):
        yield GUEST_LIMITS


def _find_mtu(topology: Topology, clusters: Iterable[LiveCluster]) -> int | None:
    names = {cluster.transport for cluster in clusters}
    mtus = (transport.cluster_mtu for transport in topology.transports if transport.name in names)
    return min((mtu for mtu in mtus if mtu is not None), default=None)


def _guests(cluster: LiveCluster, host: Name) -> Iterator[GuestWanted]:
    return (_guest(cluster, guest) for guest in cluster.spec.guests if guest.host == host)


def _guest(cluster: LiveCluster, guest: Guest) -> GuestWanted:
    return GuestWanted(
        name=guest.name,
        image=guest.image,
        memory_mb=guest.memory_mb,
        cpus=guest.cpus,
        mac=guest.mac or derive_mac(cluster.id, guest.name),
        addresses=guest.addresses,
        cluster=None if cluster.joined is None else cluster.id,
        image_source=cluster.images.get(guest.image),
        limits=_limits(guest),
        disks=guest.disks or None,
    )


def _limits(guest: Guest) -> GuestLimits | None:
    limits = GuestLimits(disk_mb=guest.disk_mb, pids=guest.pids, bandwidth_mbit=guest.bandwidth_mbit)
    return None if limits == GuestLimits() else limits


def limit_switch(wanted: SwitchWanted, observed: SwitchObserved, held: VlanSet) -> tuple[SwitchWanted, VlanSet]:
    """Omit from each port of ``wanted`` the held VLAN IDs that this port does not carry yet.

    Return the rest of ``wanted``, and the omitted VLAN IDs.
    """
    missing = {
        port: (vlans & held) - observed.ports.get(port, VlanSet()) for port, vlans in wanted.ports.items() if vlans
    }
    ports = {port: vlans - missing.get(port, VlanSet()) for port, vlans in wanted.ports.items()}
    return wanted.model_copy(update={"ports": ports}), VlanSet(vlan for vlans in missing.values() for vlan in vlans)


def limit_edge(wanted: EdgeWanted, observed: EdgeObserved, held: VlanSet) -> tuple[EdgeWanted, VlanSet]:
    """Omit circuits of held VLAN IDs that ``observed`` does not contain.

    Return the rest of ``wanted``, and the omitted VLAN IDs.
    """
    present = set(observed.circuits)
    missing = {circuit for circuit in wanted.circuits if circuit.vlan in held and circuit not in present}
    circuits = tuple(circuit for circuit in wanted.circuits if circuit not in missing)
    return wanted.model_copy(update={"circuits": circuits}), VlanSet(circuit.vlan for circuit in missing)


def describe_held_vlans(vlans: VlanSet) -> dict[int, str]:
    """Return, by VLAN ID, the reason why SBF does not set up these held VLAN IDs yet."""
    return {int(vlan): f"VLAN {vlan} waits: {HELD_REASON}" for vlan in vlans}
