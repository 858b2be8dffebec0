"""Service nodes: the gateways that offer services in networks, and the services in wanted documents. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from sbf_service.domain.paths import LiveCluster, find_cluster_ports
from virtcloud.model.errors import Conflict, NoGateway
from virtcloud.model.nfs import NFS, NfsServer, make_nfs_server
from virtcloud.model.topology import Topology
from virtcloud.model.values import Address, Name, UserName
from virtcloud.model.wanted import HostWanted, Segment


@dataclass(frozen=True, slots=True)
class ServedNetwork:
    """A network with services. The gateway ``node`` offers the services, and has ``addresses`` in the network."""

    owner: UserName
    node: Name
    addresses: tuple[Address, ...]


def find_service_node(topology: Topology, gateways: Iterable[Name]) -> Name | None:
    """Return the gateway that serves a network: the first file server among ``gateways``, or None."""
    return next((name for name in gateways if _has_nfs(topology, name)), None)


def choose_service_node(topology: Topology, cluster: LiveCluster, alive: Collection[Name]) -> Name:
    """Return the gateway that serves a new cluster: the first file server among the cluster's gateways.

    If the cluster has no such gateway, return the first file server in ``alive``, in the topology's order, that is at a
    site of the cluster and that switches connect to the cluster's hosts. Raise NoGateway if there is none.
    """
    if (chosen := find_service_node(topology, cluster.gateways)) is not None:
        return chosen
    for name in _list_candidates(topology, cluster):
        if name in alive and _is_linked(topology, cluster, name):
            return name
    raise NoGateway(_describe_missing(topology, cluster))


def add_services(
    wanted: HostWanted, element: Name, topology: Topology, networks: Mapping[str, ServedNetwork]
) -> HostWanted:
    """Return the wanted state of a host or gateway with the addresses of services, and with its own file servers.

    ``networks`` maps the ID of each network to the network. A network's ID is the ID of the cluster that created it.
    """
    gateway = topology.gateways.get(element)
    listener = None if gateway is None else gateway.nfs
    segments = []
    for segment in wanted.segments:
        network = networks.get(segment.id)
        is_node = network is not None and network.node == element and listener is not None
        server = make_nfs_server(listener, network.owner) if is_node and network and listener else None
        segments.append(_add_to_segment(segment, network, server))
    return wanted.model_copy(update={"segments": tuple(segments)})


def _add_to_segment(segment: Segment, network: ServedNetwork | None, server: NfsServer | None) -> Segment:
    if not segment.services:
        return segment
    addresses = () if network is None else network.addresses
    added: dict[str, object] = {"services": dict.fromkeys(segment.services, addresses)}
    if server is not None and addresses:
        added |= {"nfs": server, "requires": (*segment.requires, NFS)}
    return segment.model_copy(update=added)


def _has_nfs(topology: Topology, name: Name) -> bool:
    gateway = topology.gateways.get(name)
    return gateway is not None and gateway.nfs is not None


def _list_candidates(topology: Topology, cluster: LiveCluster) -> list[Name]:
    names = [name for name in topology.gateways if _has_nfs(topology, name)]
    return [name for name in names if topology.site_of[name].name in cluster.vlans]


def _is_linked(topology: Topology, cluster: LiveCluster, gateway: Name) -> bool:
    """Return whether switches connect a gateway to the cluster's hosts."""
    try:
        find_cluster_ports(topology, replace(cluster, gateways=(gateway,)))
    except Conflict:
        return False
    return True


def _describe_missing(topology: Topology, cluster: LiveCluster) -> str:
    sites = ", ".join(site.name for site in topology.sites if site.name in cluster.vlans)
    wanted = f"cluster {cluster.key}: expected a gateway with the service {NFS} at {sites}"
    here = ", ".join(_list_candidates(topology, cluster))
    if here:
        return f"{wanted}; {here} does not answer, or no switch links it to the cluster: ask its administrator"
    known = [name for name in topology.gateways if _has_nfs(topology, name)]
    others = ", ".join(f"{name} at {topology.site_of[name].name}" for name in known) or "none"
    site = topology.site_of[known[0]].name if known else "SITE"
    return f"{wanted}, got none; gateways with {NFS}: {others}. Extend the cluster to such a site, with --reach {site}"
