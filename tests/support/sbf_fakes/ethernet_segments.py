"""The Ethernet segments of fake devices: the networks whose frames meet on a transport, a service, or a link.

The functions examine what the devices carry. Only the owners of VLAN IDs come from SBF's records.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from sbf_service.domain.paths import LiveCluster, find_cluster_ports
from support.sbf_fakes.edges import FakeEdge
from support.sbf_fakes.world import World
from virtcloud.model.element import Switch
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Link
from virtcloud.model.values import Name, PortRef
from virtcloud.model.wanted import Segment

Owners = Mapping[tuple[str, int], str]
"""The ID of the network that has claimed a VLAN ID, by site and VLAN ID."""
HostSegments = Mapping[str, Sequence[Segment]]
"""What each host carries, by the host's name."""


def list_carried_vlans(world: World, hosts: HostSegments) -> Iterator[tuple[str, set[int]]]:
    """Yield the VLAN IDs that each element carries, including elements that are not in the topology."""
    for name, switch in world.switches.found.items():
        yield name, {int(vlan) for vlans in switch.ports.values() for vlan in vlans}
    for name, edge in world.edges.found.items():
        yield name, {int(circuit.vlan) for circuit in edge.circuits}
    for name, segments in hosts.items():
        yield name, {int(one.vlan) for one in segments}


def find_networks(world: World, topology: Topology, owners: Owners, hosts: HostSegments) -> dict[object, set[str]]:
    """Return the networks on each segment. An element outside the topology is connected to nothing."""
    found: dict[object, set[str]] = defaultdict(set)
    for segment, network in _list_networks(world, topology, owners, hosts):
        found[segment].add(network)
    return found


def _list_networks(
    world: World, topology: Topology, owners: Owners, hosts: HostSegments
) -> Iterator[tuple[object, str]]:
    attachments = [(site.name, one) for site in topology.sites for one in site.attachments]
    for site, one in attachments:
        if not topology.transport(one.transport).on_edges:
            yield from (((one.transport, vlan), owners[site, vlan]) for vlan in _find_vlans(world, one.port))
    for name in world.edges.found.keys() & topology.site_of.keys():
        yield from _list_networks_of_edge(world.edges[name], topology, owners)
    for link in topology.links:
        if link.access:
            networks = _list_networks_of_access(world, topology, owners, hosts, link)
            yield from (((link.a, link.b), network) for network in networks)
        else:
            sites = [topology.site_of[end.element].name for end in link.ends]
            both = _find_vlans(world, link.a) & _find_vlans(world, link.b)
            yield from (((link.a, link.b, vlan), owners[site, vlan]) for vlan in both for site in sites)


def _list_networks_of_edge(edge: FakeEdge, topology: Topology, owners: Owners) -> Iterator[tuple[object, str]]:
    """Yield the networks of an edge's circuits. A service of a VLAN-separated transport has a segment for each VLAN."""
    site = topology.site_of[Name(edge.name)].name
    for circuit in edge.circuits:
        transport, vlan = topology.transports_by_name.get(circuit.transport), int(circuit.vlan)
        has_own_service = transport is not None and transport.translates
        yield (circuit.transport, circuit.service, None if has_own_service else vlan), owners[site, vlan]


def _list_networks_of_access(
    world: World, topology: Topology, owners: Owners, hosts: HostSegments, link: Link
) -> Iterator[str]:
    """Yield the networks whose frames are untagged at the ends of a link. Frames with a tag are dropped by the host."""
    for end in link.ends:
        if isinstance(topology.elements[end.element], Switch):
            if end.port not in world.switches[end.element].access:
                return
            yield from (owners[topology.site_of[end.element].name, vlan] for vlan in _find_vlans(world, end))
    for end in link.ends:
        yield from (one.id for one in hosts.get(end.element, ()) if one.untagged and one.port == end.port)


def _find_vlans(world: World, port: PortRef) -> set[int]:
    return {int(vlan) for vlan in world.switches[port.element].ports.get(port.port, ())}


def is_connected(topology: Topology, cluster: LiveCluster) -> bool:
    """Return whether the ports of a cluster's path exist and connect all hosts of the cluster.

    The path of a member also uses ports of its network. Therefore, only the ports are checked for a member.
    """
    ports = find_cluster_ports(topology, cluster)
    if not all(port.port in topology.element(port.element).ports for port in ports):
        return False
    groups = {name: {name} for name in (*topology.elements, *topology.transports_by_name)}
    pairs = [(port, topology.peers[port]) for port in ports if topology.peers.get(port) in ports]
    joins = [(a.element, b.element) for a, b in pairs]
    attachments = [one for site in topology.sites for one in site.attachments if one.transport == cluster.transport]
    joins += [(one.port.element, one.transport) for one in attachments if one.port in ports]
    for a, b in joins:
        both = groups[a] | groups[b]
        groups.update(dict.fromkeys(both, both))
    hosts = cluster.spec.all_hosts if cluster.joined is None else ()
    return len({frozenset(groups[host]) for host in hosts}) < 2


def is_on_path(topology: Topology, cluster: LiveCluster, port: PortRef) -> bool:
    """Return whether a cluster's path contains a port. An ending cluster may have no path any more."""
    try:
        return port in find_cluster_ports(topology, cluster)
    except VirtcloudError:
        return False
