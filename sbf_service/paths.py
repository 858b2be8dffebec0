"""Which ports carry a cluster: from its hosts, over the switches of each site, to the site's edge. Pure.

Within a site the ports are those of a tree (parts of one breadth-first tree), never of a loop, so that a cluster's
frames need no spanning tree. Ports of equal merit are taken in the order in which the topology lists them.
"""

from collections import deque
from collections.abc import Iterator, Mapping

from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import Conflict
from virtcloud.model.topology import Attachment, Host, Site, Topology
from virtcloud.model.values import Name, PortRef

Tree = Mapping[Name, PortRef | None]
"""For each switch that is reached: its port towards the root (nothing for the root itself)."""


def sites_of(topology: Topology, spec: ClusterSpec) -> tuple[Site, ...]:
    """Give the sites that the cluster spans, as the topology orders them; raises NotFound for an unknown host."""
    names = {topology.site_of[topology.host(host).name].name for host in spec.all_hosts}
    return tuple(site for site in topology.sites if site.name in names)


def ports_of(topology: Topology, spec: ClusterSpec) -> frozenset[PortRef]:
    """Give every port that must carry the cluster: of hosts, of switches on the way, of edges.

    Raises NotFound for an unknown host and :class:`Conflict` when its sites or switches are not joined.
    """
    sites = sites_of(topology, spec)
    edges = _edges(sites)
    return frozenset(port for site in sites for port in _site_ports(topology, site, spec, edges.get(site.name)))


def uplink(topology: Topology, host: Host) -> tuple[PortRef, PortRef]:
    """Give the host's first port that is linked to a switch of its site, and that switch's port."""
    site = topology.site_of[host.name]
    switches = {switch.name for switch in site.switches}
    for port in host.ports:
        end = PortRef(f"{host.name}:{port}")
        peer = topology.peers.get(end)
        if peer is not None and peer.element in switches:
            return end, peer
    raise Conflict(f"host {host.name} has no link to a switch of its site {site.name}: link one of its ports to one")


def _edges(sites: tuple[Site, ...]) -> dict[Name, PortRef]:
    """Give each site's edge port on the transport that all of them share; one site alone needs none."""
    if len(sites) < 2:  # noqa: PLR2004 - one site is not joined to anything
        return {}
    attached = [{one.transport for one in site.attachments} for site in sites]
    shared = set.intersection(*attached)
    chosen = next((one.transport for one in sites[0].attachments if one.transport in shared), None)
    if chosen is None:
        raise Conflict(_no_transport(sites))
    return {site.name: _attachment(site, chosen).port for site in sites}


def _attachment(site: Site, transport: Name) -> Attachment:
    return next(one for one in site.attachments if one.transport == transport)


def _no_transport(sites: tuple[Site, ...]) -> str:
    names = ", ".join(site.name for site in sites)
    has = "; ".join(
        f"{site.name} is on {', '.join(one.transport for one in site.attachments) or 'none'}" for site in sites
    )
    return f"no transport joins {names}: {has}; attach them to a common one or choose other hosts"


def _site_ports(topology: Topology, site: Site, spec: ClusterSpec, edge: PortRef | None) -> Iterator[PortRef]:
    ups = [uplink(topology, host) for host in site.hosts if host.name in spec.all_hosts]
    root = edge.element if edge else ups[0][1].element
    tree = _tree(topology, site, root)
    if edge:
        yield edge
    for end, peer in ups:
        yield from (end, peer)
        yield from _way(topology, tree, peer.element, root)


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
