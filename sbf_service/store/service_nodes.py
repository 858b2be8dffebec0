"""The service nodes of networks: the choice of a node for a new cluster, and the nodes' services in wanted documents.

A service node is a gateway that offers services, such as NFS, in a network.
"""

from collections.abc import Mapping, Sequence
from ipaddress import ip_interface

from sbf_service.domain.paths import LiveCluster
from sbf_service.domain.service_nodes import ServedNetwork, add_services, choose_service_node, find_service_node
from sbf_service.store.cluster_gateways import find_alive_gateways, read_cluster_gateways
from sbf_service.store.cluster_queries import find_clusters
from sbf_service.store.cluster_tables import ClusterRow
from sbf_service.store.columns import split_ids
from sbf_service.store.current_topology import read_topology
from sbf_service.store.gateway_addresses import ensure_gateway_addresses, read_gateway_addresses
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.nfs import FileMount
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, UserName
from virtcloud.model.views import ClusterView
from virtcloud.model.wanted import HostWanted


def find_cluster_service_node(unit: Unit, topology: Topology, cluster: LiveCluster) -> Name:
    """Choose the service node for a new cluster. Raise NoGateway if no gateway can be the service node."""
    return choose_service_node(topology, cluster, find_alive_gateways(unit))


def address_service_node(unit: Unit, topology: Topology, row: ClusterRow, cluster: LiveCluster) -> None:
    """Assign addresses in a new network to the network's service node, if the network has a service node."""
    node = find_service_node(topology, cluster.gateways)
    if node is not None:
        ensure_gateway_addresses(unit, row, node)


def add_mounts(unit: Unit, view: ClusterView) -> ClusterView:
    """Add to a cluster's view the folders that the cluster's guests can mount, and return the result."""
    if not view.spec.services or view.state not in WANTED_STATES:
        return view
    topology = read_topology(unit)
    node = find_service_node(topology, read_cluster_gateways(unit, [view.id]).get(view.id, ()))
    addresses = () if node is None else read_gateway_addresses(unit, node, [view.id]).get(view.id, ())
    listener = None if node is None else topology.gateways[node].nfs
    if node is None or listener is None or not addresses:
        return view
    mounts = tuple(
        FileMount(name=one.name, gateway=node, address=ip_interface(addresses[0]).ip, read_only=one.read_only)
        for one in listener.exports
    )
    return view.model_copy(update={"mounts": mounts})


def add_network_services(unit: Unit, name: str, wanted: HostWanted) -> HostWanted:
    """Add to an element's wanted state the services of the networks on this element, and return the result."""
    networks = [segment.id for segment in wanted.segments if segment.services]
    if not networks:
        return wanted
    topology = read_topology(unit)
    return add_services(wanted, Name(name), topology, _read_served_networks(unit, topology, networks))


def _read_served_networks(unit: Unit, topology: Topology, networks: Sequence[str]) -> Mapping[str, ServedNetwork]:
    gateways = read_cluster_gateways(unit, networks)
    found: dict[str, ServedNetwork] = {}
    for group in split_ids(networks):
        for row in find_clusters(unit, ClusterRow.id.in_(group)):
            node = find_service_node(topology, gateways.get(row.id, ()))
            if node is not None:
                addresses = read_gateway_addresses(unit, node, [row.id]).get(row.id, ())
                found[row.id] = ServedNetwork(UserName(row.owner), node, addresses)
    return found
