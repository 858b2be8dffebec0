"""Paths: the ports of hosts, switches and provider edges that must carry a cluster. Pure.

The switches of a site form trees (:mod:`.switch_trees`). At each site, a cluster uses the part of one tree that
connects the cluster's hosts. A cluster with several sites also uses the ports to the transport. A host or gateway uses
its first port with a link to a switch of the tree.

The path of a cluster that created its network depends only on the topology and this cluster. A member is a cluster that
joined the network of another cluster (decision 31). A member's path also depends on the creating cluster, and connects
the member's hosts with each other and with the joined network. If the creating cluster lists a site in ``sites``, its
path includes the root of the tree at this site, even without a host there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Self

from sbf_service.domain.switch_trees import (
    SwitchTree,
    choose_tree,
    find_attachment_port,
    find_ports_between,
    find_switch_port,
    find_uplinks,
    keep_computed,
)
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.element import Gateway
from virtcloud.model.errors import Conflict
from virtcloud.model.image import ImageSource
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Site
from virtcloud.model.transport import Transport
from virtcloud.model.values import ClusterKey, Name, PortRef, VlanId


@dataclass(frozen=True, slots=True)
class ClusterNetwork:
    """The network of a cluster, identified by the cluster that created the network."""

    id: str
    key: ClusterKey
    spec: ClusterSpec


@dataclass(frozen=True)
class LiveCluster:
    """A cluster that elements must carry, with its network's VLAN ID at each site.

    ``transport`` connects the sites, and ``service`` is the network's own service ID on this transport, or None.
    ``joined`` is the network that a member joined. ``created_by`` is the creator's name in the audit log. ``images``
    maps catalogue images to their sources. ``gateways`` are the cluster's gateways in order of preference.
    ``quarantined``: the cluster has ended, but an element has not confirmed the removal.
    """

    id: str
    key: ClusterKey
    spec: ClusterSpec
    vlans: Mapping[Name, VlanId]
    transport: Name | None = None
    service: int | None = None
    joined: ClusterNetwork | None = None
    created_by: str | None = None
    images: Mapping[Name, ImageSource] = field(default_factory=dict)
    gateways: tuple[Name, ...] = ()
    quarantined: bool = False

    @property
    def network(self) -> ClusterNetwork:
        """The cluster's own network, or the network that the cluster joined."""
        return self.joined or ClusterNetwork(self.id, self.key, self.spec)

    @cached_property
    def endpoints(self) -> "NetworkEndpoints":
        """The hosts and sites of the cluster's spec, without gateways. Cached."""
        return NetworkEndpoints.of(self.spec)


class NetworkEndpoints(NamedTuple):
    """The endpoints of a path: hosts, gateways, and the sites that a spec names. A named site need not have a host."""

    hosts: frozenset[Name]
    sites: frozenset[Name]
    gateways: frozenset[Name] = frozenset()

    @classmethod
    def of(cls, spec: ClusterSpec, gateways: Iterable[Name] = ()) -> Self:
        """Return the endpoints of a cluster."""
        return cls(frozenset(spec.all_hosts), frozenset(spec.sites), frozenset(gateways))

    def __or__(self, other: "NetworkEndpoints") -> "NetworkEndpoints":
        """Return the union of both sets of endpoints."""
        return NetworkEndpoints(self.hosts | other.hosts, self.sites | other.sites, self.gateways | other.gateways)


def find_cluster_ports(topology: Topology, cluster: LiveCluster) -> frozenset[PortRef]:
    """Return the ports that must carry a cluster. Raise the errors of :func:`find_path_ports`.

    A gateway carries the cluster only if the gateway has a role in ``topology``.
    """
    joined = None if cluster.joined is None else cluster.joined.spec
    gateways = [name for name in cluster.gateways if _has_role(topology, name)]
    if gateways:
        return find_path_ports(topology, cluster.spec, cluster.transport, joined, gateways)
    return _find_ports(topology, cluster.endpoints, cluster.transport, joined)


def _has_role(topology: Topology, gateway: Name) -> bool:
    found = topology.gateways.get(gateway)
    return found is not None and bool(list_role_keys(found))


def list_role_keys(gateway: Gateway) -> list[str]:
    """Return the gateway's keys in the topology that define roles, such as ``vpn``."""
    roles = {"vpn": gateway.vpn, "ssh": gateway.ssh, "outside": gateway.outside, "nfs": gateway.nfs}
    return [key for key, role in roles.items() if role is not None]


def find_pair_ports(topology: Topology, cluster: LiveCluster, hosts: tuple[Name, Name]) -> frozenset[PortRef]:
    """Return the ports between two hosts of a network. Raise the errors of :func:`find_path_ports`."""
    endpoints = NetworkEndpoints(frozenset(hosts), frozenset())
    base = NetworkEndpoints.of(cluster.network.spec)
    return _find_connecting_ports(topology, endpoints, base, cluster.transport)


def find_ports_on(topology: Topology, cluster: LiveCluster, element: Name) -> tuple[PortRef, ...]:
    """Return the ports of ``element`` that must carry a cluster. Raise the errors of :func:`find_path_ports`."""
    return _find_ports_by_element(topology, cluster).get(element, ())


def find_elements(topology: Topology, cluster: LiveCluster) -> frozenset[Name]:
    """Return the elements that must carry a cluster. Raise the errors of :func:`find_path_ports`."""
    return frozenset(_find_ports_by_element(topology, cluster))


def _find_ports_by_element(topology: Topology, cluster: LiveCluster) -> Mapping[Name, tuple[PortRef, ...]]:
    ports = find_cluster_ports(topology, cluster)
    key = "ports by element", ports
    found: dict[Name, tuple[PortRef, ...]] | None = topology.computed.get(key)
    if found is None:
        found = {}
        for port in ports:
            element = port.element
            found[element] = (*found.get(element, ()), port)
        keep_computed(topology, key, found)
    return found


def list_elements(ports: Iterable[PortRef]) -> frozenset[Name]:
    """Return the elements of these ports."""
    return frozenset(port.element for port in ports)


def find_sites(
    topology: Topology, hosts: Iterable[Name], extra_sites: Iterable[Name] = (), gateways: Iterable[Name] = ()
) -> tuple[Site, ...]:
    """Return the sites of ``hosts`` and ``gateways``, and ``extra_sites``, in the topology's order.

    Raise NotFound for an unknown name.
    """
    names = {topology.site_of[topology.host(host).name].name for host in hosts}
    names |= {topology.site(name).name for name in extra_sites}
    names |= {topology.site_of[topology.element(name).name].name for name in gateways}
    return tuple(topology.sites_by_name[name] for name in sorted(names, key=topology.site_positions.__getitem__))


def choose_transport(
    topology: Topology, hosts: Iterable[Name], extra_sites: Iterable[Name] = (), gateways: Iterable[Name] = ()
) -> Transport | None:
    """Return the transport that all sites of a cluster share, or None for a single site.

    Among several shared transports, the order of the first site's attachments decides. Raise NotFound for an unknown
    name. Raise Conflict if no transport connects all sites.
    """
    sites = find_sites(topology, hosts, extra_sites, gateways)
    if len(sites) < 2:  # noqa: PLR2004 - a single site needs no transport
        return None
    shared = set.intersection(*({attachment.transport for attachment in site.attachments} for site in sites))
    for attachment in sites[0].attachments:
        if attachment.transport in shared:
            return topology.transport(attachment.transport)
    raise Conflict(_no_transport_message(sites))


def find_path_ports(
    topology: Topology,
    spec: ClusterSpec,
    transport: Name | None = None,
    joined: ClusterSpec | None = None,
    gateways: Iterable[Name] = (),
) -> frozenset[PortRef]:
    """Return every port of hosts, gateways, switches and edges that must carry a cluster.

    ``transport`` is the network's transport, or None for the transport that SBF would choose now. For a member,
    ``joined`` is the spec of the cluster that created the network. Raise NotFound for an unknown name. Raise Conflict
    if the topology does not connect the sites or switches.
    """
    return _find_ports(topology, NetworkEndpoints.of(spec, gateways), transport, joined)


def _find_ports(
    topology: Topology, ends: NetworkEndpoints, transport: Name | None, joined: ClusterSpec | None
) -> frozenset[PortRef]:
    if joined is None:
        base = NetworkEndpoints(ends.hosts, ends.sites) if ends.gateways else ends
        return _find_connecting_ports(topology, ends, base, transport)
    base = NetworkEndpoints.of(joined)
    if transport is None and (chosen := choose_transport(topology, *(ends | base))) is not None:
        transport = chosen.name
    combined = _find_connecting_ports(topology, ends | base, base, transport)
    to_network = combined - _find_connecting_ports(topology, base, base, transport)
    return to_network | _find_connecting_ports(topology, ends, base, transport)


def _no_transport_message(sites: tuple[Site, ...]) -> str:
    names = ", ".join(site.name for site in sites)
    attached = "; ".join(
        f"{site.name} is on {', '.join(attachment.transport for attachment in site.attachments) or 'none'}"
        for site in sites
    )
    return f"no transport connects {names}: {attached}; attach the sites to a common transport, or choose other hosts"


def _find_connecting_ports(
    topology: Topology, endpoints: NetworkEndpoints, base: NetworkEndpoints, transport: Name | None
) -> frozenset[PortRef]:
    """Return the ports that connect ``endpoints``, in the trees that the network's endpoints ``base`` determine.

    The result is cached in the topology object.
    """
    key = "ports", endpoints, base, transport
    found: frozenset[PortRef] | None = topology.computed.get(key)
    if found is None:
        found = _compute_connecting_ports(topology, endpoints, base, transport)
        keep_computed(topology, key, found)
    return found


def _compute_connecting_ports(
    topology: Topology, endpoints: NetworkEndpoints, base: NetworkEndpoints, transport: Name | None
) -> frozenset[PortRef]:
    sites = find_sites(topology, *endpoints)
    if transport is None and (chosen := choose_transport(topology, *endpoints)) is not None:
        transport = chosen.name
    over = transport if len(sites) > 1 else None
    found = set[PortRef]()
    for site in sites:
        tree = choose_tree(topology, site, base.hosts, transport)
        found.update(_find_site_ports(topology, site, endpoints, tree, over))
    return frozenset(found)


def _find_site_ports(
    topology: Topology, site: Site, endpoints: NetworkEndpoints, tree: SwitchTree, over: Name | None
) -> Iterator[PortRef]:
    """Yield the ports of one site, with ``over`` as the transport to other sites."""
    ends: list[Name] = [next(iter(tree))] if site.name in endpoints.sites else []
    if over is not None:
        edge = find_attachment_port(site, over)
        inner = find_switch_port(topology, edge)
        ends.append(inner.element)
        yield from {edge, inner}
    for name in sorted(endpoints.hosts | endpoints.gateways):
        if topology.site_of[name].name == site.name:
            uplinks = find_uplinks(topology, topology.hosts.get(name) or topology.gateways[name])
            end, peer = next((uplink for uplink in uplinks if uplink[1].element in tree), uplinks[0])
            ends.append(peer.element)
            yield from (end, peer)
    yield from find_ports_between(topology, tree, frozenset(ends))
