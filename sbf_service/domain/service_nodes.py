"""Chooses service nodes (gateways that offer services in networks), and adds services to wanted documents. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sbf_service.domain.gateway_access import FILE_SERVER
from sbf_service.domain.gateway_choice import list_reachable_gateways, make_no_gateway_error
from sbf_service.domain.paths import LiveCluster
from virtcloud.model.nfs import NFS, NfsServer, make_nfs_server
from virtcloud.model.topology import Topology
from virtcloud.model.values import Address, Name, UserName
from virtcloud.model.wanted import HostWanted, Segment


@dataclass(frozen=True, slots=True)
class ServedNetwork:
    """A network with services at ``addresses`` of the gateway ``node``."""

    owner: UserName
    node: Name
    addresses: tuple[Address, ...]


def find_service_node(topology: Topology, gateways: Iterable[Name]) -> Name | None:
    """Return the gateway that serves a network: the first with a file server (NFS) in ``gateways``, or None.

    ``gateways`` are in order of preference: the present service node comes first.
    """
    return next((name for name in gateways if FILE_SERVER.has(topology, name)), None)


def choose_service_node(topology: Topology, cluster: LiveCluster, alive: Collection[Name]) -> Name:
    """Return the gateway with a file server (NFS) that serves a new cluster.

    Choose the first of the cluster's gateways, or else the topology's first gateway in ``alive`` that is at a site of
    the cluster and connected to its hosts through switches. Raise NoGateway if there is no such gateway.
    """
    if (chosen := find_service_node(topology, cluster.gateways)) is not None:
        return chosen
    if (chosen := next(list_reachable_gateways(topology, cluster, alive, FILE_SERVER), None)) is not None:
        return chosen
    raise make_no_gateway_error(topology, cluster, FILE_SERVER)


def add_services(
    wanted: HostWanted, element: Name, topology: Topology, networks: Mapping[str, ServedNetwork]
) -> HostWanted:
    """Return an element's wanted state with the addresses of services and, for a gateway, its file servers.

    The keys of ``networks`` are IDs of networks.
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
