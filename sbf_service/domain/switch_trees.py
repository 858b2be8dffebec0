"""The trees of switches at a site, and the uplinks of hosts and gateways to switches. Pure.

Each tree is built breadth first from its root. The root is the switch of the first attachment to a transport, if the
tree has one. The search follows the ports of each switch in the topology's order. For each other switch, the tree
contains the first link that the search finds, so the tree has no loop and needs no spanning tree protocol.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping

from virtcloud.model.element import Edge, Gateway, Host, kind_of
from virtcloud.model.errors import Conflict, HostNotLinked
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Site
from virtcloud.model.values import Name, PortRef

Uplink = tuple[PortRef, PortRef]
"""The port of a host or gateway, and the switch's port at the other end of the link."""
SwitchTree = Mapping[Name, PortRef | None]
"""For each switch of the tree, its port towards the root. The root comes first and has no port (None)."""
MAX_COMPUTED = 32_768
"""The maximum number of paths and trees that SBF caches in a topology object. A path or tree needs about 3 KB."""


def find_uplinks(topology: Topology, end_system: Host | Gateway) -> tuple[Uplink, ...]:
    """Return the uplinks of a host or gateway to switches of its site, in the order of the host's or gateway's ports.

    Raise HostNotLinked if there is no such uplink.
    """
    name, site = end_system.name, topology.site_of[end_system.name]
    switches = {switch.name for switch in site.switches}
    ends = (PortRef.of(name, port) for port in end_system.ports)
    linked = ((end, topology.peers[end]) for end in ends if end in topology.peers)
    found = tuple((end, peer) for end, peer in linked if peer.element in switches)
    if not found:
        lacks = f"{kind_of(end_system)} {name} has no link to a switch of its site {site.name}"
        raise HostNotLinked(f"{lacks}: link one of its ports to a switch")
    return found


def find_attachment_port(site: Site, transport: Name) -> PortRef:
    """Return a site's port on a transport. Raise Conflict when the site is not attached to the transport."""
    for attachment in site.attachments:
        if attachment.transport == transport:
            return attachment.port
    raise Conflict(f"site {site.name} is not attached to transport {transport}")


def keep_computed(topology: Topology, key: object, value: object) -> None:
    """Cache a value in the topology object, after deleting all values if :data:`MAX_COMPUTED` are cached."""
    if len(topology.computed) >= MAX_COMPUTED:
        topology.computed.clear()
    topology.computed[key] = value


def find_ports_between(topology: Topology, tree: SwitchTree, ends: frozenset[Name]) -> Iterator[PortRef]:
    """Yield both ports of each link on the tree's paths between the switches in ``ends``.

    A link is on these paths if some of these switches, but not all, use the link on their way to the root. Raise
    Conflict if the tree lacks one of the switches.
    """
    passed = Counter(up for end in ends for up in _ports_to_root(topology, tree, end))
    for up, times in passed.items():
        if times < len(ends):
            yield up
            yield topology.peers[up]


def choose_tree(topology: Topology, site: Site, base: frozenset[Name], transport: Name | None) -> SwitchTree:
    """Return the tree that carries a network at a site. ``base`` contains the names of the network's hosts.

    With a transport, return the tree of the site's attachment to the transport. Otherwise, return the first tree that
    reaches all hosts of the network at this site, or else the tree of the first host. Raise Conflict if the site is not
    attached to the transport, has no switch, or has several trees of which neither a transport nor a host determines
    one. Raise HostNotLinked if a host has no uplink.
    """
    trees = _find_trees(topology, site)
    if transport is not None:
        inner = find_switch_port(topology, find_attachment_port(site, transport)).element
        return next(tree for tree in trees if inner in tree)
    hosts = [[peer.element for _, peer in find_uplinks(topology, host)] for host in site.hosts if host.name in base]
    if not trees:
        raise Conflict(f"site {site.name} has no switch to carry a network: add a switch, or name another site")
    if not hosts and len(trees) > 1:
        raise Conflict(f"site {site.name} has groups of switches without a link between them: name a host of one group")
    with_all = (tree for tree in trees if all(any(switch in tree for switch in ups) for ups in hosts))
    return next(with_all, None) or next(tree for tree in trees if hosts[0][0] in tree)


def _find_trees(topology: Topology, site: Site) -> list[SwitchTree]:
    key = "trees", site.name
    found: list[SwitchTree] | None = topology.computed.get(key)
    if found is None:
        found = _build_trees(topology, site)
        keep_computed(topology, key, found)
    return found


def _build_trees(topology: Topology, site: Site) -> list[SwitchTree]:
    found: list[SwitchTree] = []
    starts = (find_switch_port(topology, attachment.port).element for attachment in site.attachments)
    for start in (*starts, *(switch.name for switch in site.switches)):
        if not any(start in tree for tree in found):
            found.append(_build_tree(topology, site, start))
    return found


def find_switch_port(topology: Topology, attachment: PortRef) -> PortRef:
    """Return the switch port of an attachment, which may be a port of a provider edge."""
    return topology.peers[attachment] if isinstance(topology.element(attachment.element), Edge) else attachment


def _build_tree(topology: Topology, site: Site, root: Name) -> SwitchTree:
    ports = {switch.name: switch.ports for switch in site.switches}
    towards: dict[Name, PortRef | None] = {root: None}
    queue = deque([root])
    while queue:
        here = queue.popleft()
        for port in ports[here]:
            peer = topology.peers.get(PortRef.of(here, port))
            if peer is not None and peer.element in ports and peer.element not in towards:
                towards[peer.element] = peer
                queue.append(peer.element)
    return towards


def _ports_to_root(topology: Topology, tree: SwitchTree, switch: Name) -> Iterator[PortRef]:
    """For each link on the tree's path from ``switch`` to the root, yield the port at the end farther from the root."""
    if switch not in tree:
        raise Conflict(f"switch {switch} has no path to switch {next(iter(tree))} within their site: link the switches")
    up = tree[switch]
    while up is not None:
        yield up
        up = tree[topology.peers[up].element]
