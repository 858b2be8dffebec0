"""Which ports carry a cluster: from its hosts, over the switches of each site, to the site's edge. Pure.

Within a site the ports are those of a tree (parts of one breadth-first tree), never of a loop, so that a cluster's
frames need no spanning tree. Ports of equal merit are taken in the order in which the topology lists them.

A host takes part over one of its ports: the first it lists from which the tree's root is reached. The others are for
when that way is taken out of the topology. All this depends on the topology, the cluster's hosts and its transport, not
on which other clusters there are: no cluster is moved because another one came or went.
"""

from collections import deque
from collections.abc import Iterator, Mapping

from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.element import Edge, Host
from virtcloud.model.errors import Conflict
from virtcloud.model.topology import Site, Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortRef

Uplink = tuple[PortRef, PortRef]
"""A host's port and the switch's port that it is linked to."""
Tree = Mapping[Name, PortRef | None]
"""For each switch that is reached: its port towards the root (nothing for the root itself)."""


def sites_of(topology: Topology, spec: ClusterSpec) -> tuple[Site, ...]:
    """Give the sites that the cluster spans, as the topology orders them; raises NotFound for an unknown host."""
    names = {topology.site_of[topology.host(host).name].name for host in spec.all_hosts}
    return tuple(site for site in topology.sites if site.name in names)


def transport_of(topology: Topology, spec: ClusterSpec) -> Transport | None:
    """Give the first transport, in the order of preference, that all sites of a cluster share; one site needs none.

    Raises NotFound for an unknown host, and :class:`Conflict` when nothing joins the sites.
    """
    sites = sites_of(topology, spec)
    if len(sites) < 2:  # noqa: PLR2004 - one site is not joined to anything
        return None
    shared = set.intersection(*({one.transport for one in site.attachments} for site in sites))
    for attachment in sites[0].attachments:
        if attachment.transport in shared:
            return topology.transport(attachment.transport)
    raise Conflict(_no_transport(sites))


def ports_of(topology: Topology, spec: ClusterSpec, transport: Name | None = None) -> frozenset[PortRef]:
    """Give every port that must carry the cluster: of hosts, of switches on the way, of edges.

    ``transport`` is the one that the cluster has; without it the one is taken that it would get now. Raises NotFound
    for an unknown host and :class:`Conflict` when its sites or switches are not joined.
    """
    sites = sites_of(topology, spec)
    if transport is None and (chosen := transport_of(topology, spec)) is not None:
        transport = chosen.name
    return frozenset(port for site in sites for port in _site_ports(topology, site, spec, transport))


def uplinks(topology: Topology, host: Host) -> tuple[Uplink, ...]:
    """Give the host's ports that are linked to switches of its site, as it lists them, each with the switch's port."""
    site = topology.site_of[host.name]
    switches = {switch.name for switch in site.switches}
    ends = (PortRef(f"{host.name}:{port}") for port in host.ports)
    linked = ((end, topology.peers[end]) for end in ends if end in topology.peers)
    found = tuple((end, peer) for end, peer in linked if peer.element in switches)
    if not found:
        lacks = f"host {host.name} has no link to a switch of its site {site.name}"
        raise Conflict(f"{lacks}: link one of its ports to one")
    return found


def attached(site: Site, transport: Name) -> PortRef:
    """Give a site's port on a transport; raises :class:`Conflict` when it has none any more."""
    for attachment in site.attachments:
        if attachment.transport == transport:
            return attachment.port
    raise Conflict(f"site {site.name} is not attached to transport {transport}")


def _no_transport(sites: tuple[Site, ...]) -> str:
    names = ", ".join(site.name for site in sites)
    has = "; ".join(
        f"{site.name} is on {', '.join(one.transport for one in site.attachments) or 'none'}" for site in sites
    )
    return f"no transport joins {names}: {has}; attach them to a common one or choose other hosts"


def _site_ports(topology: Topology, site: Site, spec: ClusterSpec, transport: Name | None) -> Iterator[PortRef]:
    hosts = [uplinks(topology, host) for host in site.hosts if host.name in spec.all_hosts]
    edge = None if transport is None else attached(site, transport)
    inner = None if edge is None else _inner(topology, edge)
    roots = [inner.element] if inner else [peer.element for _, peer in hosts[0]]
    root, tree = _first_that_reaches(hosts, [(root, _tree(topology, site, root)) for root in roots])
    if edge and inner:
        yield from {edge, inner}
    for ups in hosts:
        end, peer = next((one for one in ups if one[1].element in tree), ups[0])
        yield from (end, peer)
        yield from _way(topology, tree, peer.element, root)


def _first_that_reaches(hosts: list[tuple[Uplink, ...]], trees: list[tuple[Name, Tree]]) -> tuple[Name, Tree]:
    """Give the first of these trees, with its root, that has a switch of every host; the first one where none has."""
    whole = (one for one in trees if all(any(peer.element in one[1] for _, peer in ups) for ups in hosts))
    return next(whole, trees[0])


def _inner(topology: Topology, edge: PortRef) -> PortRef:
    """Give the switch's port where a site meets its transport: the attachment itself, or what a provider edge is on."""
    return topology.peers[edge] if isinstance(topology.element(edge.element), Edge) else edge


def _tree(topology: Topology, site: Site, root: Name) -> Tree:
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


def _way(topology: Topology, tree: Tree, switch: Name, root: Name) -> Iterator[PortRef]:
    """Give both ports of each link from ``switch`` up to ``root``."""
    if switch not in tree:
        raise Conflict(f"switch {switch} is not joined to switch {root} within their site: link them")
    up = tree[switch]
    while up is not None:
        yield up
        yield topology.peers[up]
        up = tree[topology.peers[up].element]
