"""The service nodes of networks: their choice, their replacement, and their services in wanted documents.

A service node is a gateway that offers services, such as NFS, in a network.
"""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_interface

from sqlalchemy import bindparam, insert, update

from sbf_service.domain.paths import LiveCluster
from sbf_service.domain.service_nodes import ServedNetwork, add_services, choose_service_node, find_service_node
from sbf_service.domain.topology_change import TopologyChange
from sbf_service.store.clusters.cluster_queries import RowsOfClusters, find_clusters
from sbf_service.store.clusters.guest_seeds import find_network_hosts
from sbf_service.store.networks.cluster_gateways import find_alive_gateways, read_cluster_gateways
from sbf_service.store.networks.gateway_addresses import (
    assign_possible_addresses,
    ensure_gateway_addresses,
    read_gateway_addresses,
)
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import split_ids
from sbf_service.store.tables.gateway_tables import ServiceNodeRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.nfs import FileMount
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, UserName
from virtcloud.model.views import ClusterView
from virtcloud.model.wanted import HostWanted

_NODES = RowsOfClusters(ServiceNodeRow.network_id, ServiceNodeRow.gateway)
_INSERT = insert(ServiceNodeRow).values(network_id=bindparam("network"), gateway=bindparam("node"))
_UPDATE = (
    update(ServiceNodeRow).where(ServiceNodeRow.network_id == bindparam("network")).values(gateway=bindparam("node"))
)


def find_cluster_service_node(unit: Unit, topology: Topology, cluster: LiveCluster) -> Name:
    """Choose the service node for a new cluster, or raise NoGateway."""
    return choose_service_node(topology, cluster, find_alive_gateways(unit))


def start_services(unit: Unit, topology: Topology, row: ClusterRow, cluster: LiveCluster) -> None:
    """Record a new network's service node, if a gateway can be one, and assign it addresses in the network."""
    node = find_service_node(topology, cluster.gateways)
    if node is not None:
        unit.connection.execute(_INSERT, {"network": row.id, "node": node})
        ensure_gateway_addresses(unit, row, node)


def move_services(unit: Unit, change: TopologyChange, live: Iterable[LiveCluster]) -> set[str]:
    """Record another service node for each network whose service node no longer offers the services.

    Assign addresses to the new service nodes. Return these nodes and the hosts and gateways of these networks, whose
    wanted documents change. Networks of an older version of SBF get a service node, too.
    """
    served = {one.id: one for one in live if one.joined is None and one.spec.services}
    recorded = _read_service_nodes(unit, served)
    found: set[str] = set()
    for network, cluster in served.items():
        before = find_service_node(change.former, _prefer(recorded.get(network), cluster.gateways))
        after = find_service_node(change.topology, _prefer(before or recorded.get(network), cluster.gateways))
        if (node := after or before) is not None and node != recorded.get(network):
            unit.connection.execute(_UPDATE if network in recorded else _INSERT, {"network": network, "node": node})
        if before == after:
            continue
        if after is not None:
            assign_possible_addresses(unit, unit.session.get_one(ClusterRow, network), after)
            found.add(after)
        found |= find_network_hosts(unit, network)
    return found


def add_mounts(unit: Unit, view: ClusterView) -> ClusterView:
    """Return a cluster's view with the folders that its guests can mount."""
    if not view.spec.services or view.state not in WANTED_STATES:
        return view
    topology = read_topology(unit)
    node = _find_service_nodes(unit, topology, [view.id]).get(view.id)
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
    """Return an element's wanted state with the services of its networks."""
    networks = [segment.id for segment in wanted.segments if segment.services]
    if not networks:
        return wanted
    topology = read_topology(unit)
    return add_services(wanted, Name(name), topology, _read_served_networks(unit, topology, networks))


def _read_served_networks(unit: Unit, topology: Topology, networks: Sequence[str]) -> Mapping[str, ServedNetwork]:
    nodes = _find_service_nodes(unit, topology, networks)
    found: dict[str, ServedNetwork] = {}
    for group in split_ids(nodes):
        for row in find_clusters(unit, ClusterRow.id.in_(group)):
            addresses = read_gateway_addresses(unit, nodes[row.id], [row.id]).get(row.id, ())
            found[row.id] = ServedNetwork(UserName(row.owner), nodes[row.id], addresses)
    return found


def _find_service_nodes(unit: Unit, topology: Topology, networks: Sequence[str]) -> Mapping[str, Name]:
    recorded, gateways = _read_service_nodes(unit, networks), read_cluster_gateways(unit, networks)
    found = {one: find_service_node(topology, _prefer(recorded.get(one), gateways.get(one, ()))) for one in networks}
    return {network: node for network, node in found.items() if node is not None}


def _read_service_nodes(unit: Unit, networks: Iterable[str]) -> Mapping[str, Name]:
    return {network: Name(gateway) for network, gateway in _NODES.read(unit, networks)}


def _prefer(node: Name | None, gateways: tuple[Name, ...]) -> tuple[Name, ...]:
    return gateways if node is None else (node, *gateways)
