"""Which ports carry a cluster: from its hosts, over the switches of each site, to the site's edge. Pure.

A site's switches form trees, walked breadth first from where the site meets its transports: always the same ones,
whoever is carried. A cluster goes over the part of one that joins its hosts (and the edge, when it has other sites
too), never over a loop, so that its frames need no spanning tree. Ports of equal merit are taken in the order in which
the topology lists them. A host takes part over one of its ports: the first it lists from which that tree is reached;
the others are for when that way is taken out of the topology.

All this depends on the topology and the cluster, not on which others there are: no cluster is moved because another one
came or went. A member's part (docs/decisions says why) depends on itself and on the cluster whose network it joins:
what joins its own hosts, and what joins these to that cluster. So what carries a network is what carries its cluster
and each of its members, and nobody's ways change when a member comes or goes. A network may reach sites where it has
no host: then its members meet at the root of the site's tree.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self

from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.element import Edge, Host
from virtcloud.model.errors import Conflict, HostNotLinked
from virtcloud.model.topology import Site, Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortRef

HostUplink = tuple[PortRef, PortRef]
"""A host's port and the switch's port that it is linked to."""
SwitchTree = Mapping[Name, PortRef | None]
"""For each switch that is reached: its port towards the root (nothing for the root itself, which comes first)."""


class NetworkEndpoints(NamedTuple):
    """What a cluster's ports join: its hosts, and the root of each site that it reaches even without a host."""

    hosts: frozenset[Name]
    sites: frozenset[Name]

    @classmethod
    def of(cls, spec: ClusterSpec) -> Self:
        """Give a cluster's."""
        return cls(frozenset(spec.all_hosts), frozenset(spec.sites))

    def __or__(self, other: "NetworkEndpoints") -> "NetworkEndpoints":
        """Give those of both."""
        return NetworkEndpoints(self.hosts | other.hosts, self.sites | other.sites)


def find_sites(topology: Topology, hosts: Iterable[Name], also: Iterable[Name] = ()) -> tuple[Site, ...]:
    """Give the sites that these hosts are at, and ``also`` these, as the topology orders them; raises NotFound."""
    names = {topology.site_of[topology.host(host).name].name for host in hosts}
    names |= {topology.site(name).name for name in also}
    return tuple(site for site in topology.sites if site.name in names)


def choose_transport(topology: Topology, hosts: Iterable[Name], also: Iterable[Name] = ()) -> Transport | None:
    """Give the first transport, in the order of preference, that all sites of a cluster share; one site needs none.

    Raises NotFound, and :class:`Conflict` when nothing joins the sites.
    """
    sites = find_sites(topology, hosts, also)
    if len(sites) < 2:  # noqa: PLR2004 - one site is not joined to anything
        return None
    shared = set.intersection(*({one.transport for one in site.attachments} for site in sites))
    for attachment in sites[0].attachments:
        if attachment.transport in shared:
            return topology.transport(attachment.transport)
    raise Conflict(_no_transport_message(sites))


def find_path_ports(
    topology: Topology, spec: ClusterSpec, transport: Name | None = None, joined: ClusterSpec | None = None
) -> frozenset[PortRef]:
    """Give every port that must carry the cluster: of hosts, of switches on the way, of edges.

    ``transport`` is the one that its network has; without it the one is taken that it would get now. A member's are
    those that it needs in the network of the cluster that it ``joined``. Raises NoSuchHost, and :class:`Conflict` when
    its sites or switches are not joined.
    """
    ends = NetworkEndpoints.of(spec)
    if joined is None:
        return _find_joining_ports(topology, ends, ends, transport)
    base = NetworkEndpoints.of(joined)
    if transport is None and (chosen := choose_transport(topology, *(ends | base))) is not None:
        transport = chosen.name
    way = _find_joining_ports(topology, ends | base, base, transport) - _find_joining_ports(
        topology, base, base, transport
    )
    return way | _find_joining_ports(topology, ends, base, transport)


def find_uplinks(topology: Topology, host: Host) -> tuple[HostUplink, ...]:
    """Give the host's ports that are linked to switches of its site, as it lists them, each with the switch's port."""
    site = topology.site_of[host.name]
    switches = {switch.name for switch in site.switches}
    ends = (PortRef(f"{host.name}:{port}") for port in host.ports)
    linked = ((end, topology.peers[end]) for end in ends if end in topology.peers)
    found = tuple((end, peer) for end, peer in linked if peer.element in switches)
    if not found:
        lacks = f"host {host.name} has no link to a switch of its site {site.name}"
        raise HostNotLinked(f"{lacks}: link one of its ports to one")
    return found


def find_attachment_port(site: Site, transport: Name) -> PortRef:
    """Give a site's port on a transport; raises :class:`Conflict` when it has none any more."""
    for attachment in site.attachments:
        if attachment.transport == transport:
            return attachment.port
    raise Conflict(f"site {site.name} is not attached to transport {transport}")


def _no_transport_message(sites: tuple[Site, ...]) -> str:
    names = ", ".join(site.name for site in sites)
    has = "; ".join(
        f"{site.name} is on {', '.join(one.transport for one in site.attachments) or 'none'}" for site in sites
    )
    return f"no transport joins {names}: {has}; attach them to a common one or choose other hosts"


def _find_joining_ports(
    topology: Topology, joins: NetworkEndpoints, base: NetworkEndpoints, transport: Name | None
) -> frozenset[PortRef]:
    """Give the ports that join these ends, in the trees that the ``base`` is in: the cluster whose network it is."""
    sites = find_sites(topology, *joins)
    if transport is None and (chosen := choose_transport(topology, *joins)) is not None:
        transport = chosen.name
    over_edges = len(sites) > 1
    return frozenset(
        port
        for site in sites
        for port in _find_site_ports(
            topology, site, joins, _choose_tree(topology, site, base.hosts, transport), transport, over_edges
        )
    )


def _find_site_ports(  # noqa: PLR0913, PLR0917 - all that the way depends on
    topology: Topology, site: Site, joins: NetworkEndpoints, tree: SwitchTree, transport: Name | None, over_edges: bool
) -> Iterator[PortRef]:
    ends: list[Name] = [next(iter(tree))] if site.name in joins.sites else []
    if over_edges and transport is not None:
        edge = find_attachment_port(site, transport)
        inner = _find_switch_port(topology, edge)
        ends.append(inner.element)
        yield from {edge, inner}
    for host in site.hosts:
        if host.name in joins.hosts:
            ups = find_uplinks(topology, host)
            end, peer = next((one for one in ups if one[1].element in tree), ups[0])
            ends.append(peer.element)
            yield from (end, peer)
    yield from _find_ports_between(topology, tree, frozenset(ends))


def _find_ports_between(topology: Topology, tree: SwitchTree, ends: frozenset[Name]) -> Iterator[PortRef]:
    """Give both ports of each link of the tree that has some of these switches on either side."""
    passed = Counter(up for end in ends for up in _ports_to_root(topology, tree, end))
    for up, times in passed.items():
        if times < len(ends):
            yield up
            yield topology.peers[up]


def _choose_tree(topology: Topology, site: Site, base: frozenset[Name], transport: Name | None) -> SwitchTree:
    """Give the tree at a site that carries a network: the one with the edge, else the first that has all its hosts."""
    trees = _build_trees(topology, site)
    if transport is not None:
        inner = _find_switch_port(topology, find_attachment_port(site, transport)).element
        return next(tree for tree in trees if inner in tree)
    hosts = [[peer.element for _, peer in find_uplinks(topology, host)] for host in site.hosts if host.name in base]
    if not hosts and len(trees) > 1:
        raise Conflict(f"site {site.name} has switches that nothing joins: say by a host where the network is to be")
    whole = (tree for tree in trees if all(any(switch in tree for switch in ups) for ups in hosts))
    return next(whole, None) or next(tree for tree in trees if hosts[0][0] in tree)


def _build_trees(topology: Topology, site: Site) -> list[SwitchTree]:
    """Walk the site's switches: from where it meets its transports, then from those that were not reached."""
    found: list[SwitchTree] = []
    starts = (_find_switch_port(topology, one.port).element for one in site.attachments)
    for start in (*starts, *(switch.name for switch in site.switches)):
        if not any(start in tree for tree in found):
            found.append(_build_tree(topology, site, start))
    return found


def _find_switch_port(topology: Topology, edge: PortRef) -> PortRef:
    """Give the switch's port where a site meets its transport: the attachment itself, or what a provider edge is on."""
    return topology.peers[edge] if isinstance(topology.element(edge.element), Edge) else edge


def _build_tree(topology: Topology, site: Site, root: Name) -> SwitchTree:
    """Walk the site's switches from ``root`` breadth first."""
    ports = {switch.name: switch.ports for switch in site.switches}
    towards: dict[Name, PortRef | None] = {root: None}
    queue = deque([root])
    while queue:
        here = queue.popleft()
        for port in ports[here]:
            peer = topology.peers.get(PortRef(f"{here}:{port}"))
            if peer is not None and peer.element in ports and peer.element not in towards:
                towards[peer.element] = peer
                queue.append(peer.element)
    return towards


def _ports_to_root(topology: Topology, tree: SwitchTree, switch: Name) -> Iterator[PortRef]:
    """Give the lower port of each link from ``switch`` to the tree's root."""
    if switch not in tree:
        raise Conflict(f"switch {switch} is not joined to switch {next(iter(tree))} within their site: link them")
    up = tree[switch]
    while up is not None:
        yield up
        up = tree[topology.peers[up].element]
