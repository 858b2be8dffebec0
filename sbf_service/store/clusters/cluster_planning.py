"""Plans a new cluster in the transaction that creates it: chooses and checks IDs and addresses."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sbf_service.domain.addressing import (
    NetworkAddresses,
    check_guests_differ,
    choose_device_addresses,
    plan_member,
    plan_network,
)
from sbf_service.domain.admission import check_admitted, check_filters, find_origin
from sbf_service.domain.gateway_access import OUTSIDE_LINK, check_destinations, list_roles
from sbf_service.domain.network_conflicts import check_ports_free
from sbf_service.domain.paths import ClusterNetwork, LiveCluster, find_cluster_ports, list_elements
from sbf_service.domain.service_nodes import find_service_node
from sbf_service.domain.subnets import NetworkIdentity, check_addresses
from sbf_service.store.access.vpn_grants import choose_cluster_gateways
from sbf_service.store.clusters.cluster_keys import KeyHolders, find_running_cluster
from sbf_service.store.clusters.live_clusters import make_live_clusters
from sbf_service.store.networks.networks import (
    allocate_for_member,
    check_guests_distinct,
    find_joinable_network,
    read_clusters_on,
    read_network_addresses,
)
from sbf_service.store.networks.service_nodes import find_cluster_service_node
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.users.images import find_usable_sources
from sbf_service.store.vlans.allocation import (
    CanSeeOwner,
    NetworkIds,
    ReservedVlans,
    allocate_network_ids,
    can_see_none,
)
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import BadInput, NameTaken
from virtcloud.model.image import ImageSource
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name


@dataclass(frozen=True, slots=True)
class NewCluster:
    """A cluster to be created. ``holders`` are the clusters that already have the key as their key or name.

    ``requested`` is the caller's spec, or None in a dry run. In ``spec``, each guest has a host: SBF has already chosen
    the hosts of the guests in ``ClusterSpec.spread``.
    """

    id: str
    key: str
    attempt: int
    spec: ClusterSpec
    holders: KeyHolders
    sees: CanSeeOwner = can_see_none
    images: Mapping[Name, ImageSource] = field(default_factory=dict)
    requested: ClusterSpec | None = None

    @property
    def version(self) -> int:
        """The version of the cluster's first view, higher than all versions of earlier clusters with this key."""
        return 1 if self.holders.newest is None else self.holders.newest.version + 1

    @property
    def placement_text(self) -> str:
        """The hosts that SBF chose, and their numbers of guests, as text; empty if SBF chose no hosts."""
        if self.requested is None or self.requested.spread is None:
            return ""
        counts = Counter(guest.host for guest in self.spec.guests[len(self.requested.guests) :])
        return f", guests placed on {', '.join(f'{host} ({count})' for host, count in counts.items())}"


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    """A cluster before its creation, with the IDs of its network.

    ``joined`` is the row of the cluster that created the network, if the cluster joins one.
    """

    cluster: LiveCluster
    ids: NetworkIds
    joined: ClusterRow | None = None

    @property
    def ids_text(self) -> str:
        """The VLAN IDs (by site if they differ), the service ID, and the joined network, as text."""
        vlans = self.ids.vlans
        parts = [f"VLAN {vlan} at {site}" for site, vlan in vlans.items()]
        if len(set(vlans.values())) == 1:
            parts = [f"VLAN {next(iter(vlans.values()))}"]
        if self.ids.service is not None:
            parts.append(f"service {self.ids.service}")
        if self.joined is not None:
            parts.append(f"joins cluster {self.joined.key}")
        return ", ".join(parts)


def plan_cluster(unit: Unit, topology: Topology, new: NewCluster, reserved: ReservedVlans) -> PlannedCluster:
    """Return the cluster that a request would create. Raise the errors of :func:`put_cluster`."""
    check_addresses(new.spec)
    check_admitted(topology, new.spec, find_origin(new.spec.owner, unit.who))
    _check_name_free(unit, new)
    plan = _plan_network if new.spec.joins is None else _plan_member
    images = find_usable_sources(unit, new.spec) if new.spec.guests else {}
    planned = plan(unit, topology, replace(new, images=images), reserved)
    if planned.cluster.spec.uses_gateways:
        planned = replace(planned, cluster=_add_gateways(unit, topology, planned.cluster))
        _check_gateway_addresses(topology, planned.cluster, NetworkIdentity(new.spec.owner, new.key, new.attempt))
    check_filters(topology, planned.cluster.spec, planned.cluster.network.spec)
    if topology.access_ports and (ports := topology.access_ports & find_cluster_ports(topology, planned.cluster)):
        # Include the clusters on the hosts, because an administrator may have moved a host with an ending cluster to
        # another switch.
        others = read_clusters_on(unit, list_elements(ports))
        check_ports_free(topology, planned.cluster, others, new.sees)
    return planned


def _add_gateways(unit: Unit, topology: Topology, cluster: LiveCluster) -> LiveCluster:
    """Return the cluster with the gateways that its spec needs for VPN access, for the router, and for services.

    Raise NotFound for an unknown destination.
    """
    check_destinations(topology, cluster.spec, cluster.vlans)
    for role in list_roles(cluster.spec):
        chosen = choose_cluster_gateways(unit, topology, cluster, role)
        cluster = replace(cluster, gateways=tuple(dict.fromkeys((*cluster.gateways, *chosen))))
    if cluster.spec.services:
        node = find_cluster_service_node(unit, topology, cluster)
        cluster = replace(cluster, gateways=tuple(dict.fromkeys((*cluster.gateways, node))))
    return cluster


def _check_gateway_addresses(topology: Topology, cluster: LiveCluster, identity: NetworkIdentity) -> None:
    """Check that a new network has addresses for its service node and for the gateways that can be its router.

    Raise BadInput for a service node in a network without subnets. Raise NoAddressFree if a subnet is too small.
    """
    spec, network = cluster.spec, NetworkAddresses(identity, cluster.spec, cluster.spec.guests)
    node = find_service_node(topology, cluster.gateways) if spec.services else None
    routers = [name for name in cluster.gateways if spec.router == "gateway" and OUTSIDE_LINK.has(topology, name)]
    for name in dict.fromkeys([*([] if node is None else [node]), *routers]):
        addresses = choose_device_addresses(network, f"gateway {name}")
        if name == node and not addresses:
            raise BadInput(
                f"spec.services: expected a subnet for the addresses of {node}, got a network without subnets"
            )
        used = (address.partition("/")[0] for address in addresses)
        network = replace(network, gateways=(*network.gateways, *used))


def _check_name_free(unit: Unit, new: NewCluster) -> None:
    """Raise NameTaken if a running cluster has the new key or name.

    The new key must not be another cluster's name. The new name must be neither another cluster's name nor another
    cluster's key.
    """
    key, name = new.key, new.spec.name
    if (other := new.holders.named) is not None:
        described = f"cluster {other.key}" if new.sees(other.owner) else "another cluster"
        raise NameTaken(f"the key {key} is the name of {described}: choose another key")
    if name is not None and (taken := find_running_cluster(unit, name)) is not None:
        described = f"cluster {taken.key}, which is {taken.state}" if new.sees(taken.owner) else "another cluster"
        raise NameTaken(f"the name {name} is taken by {described}: choose another name")


def _plan_network(unit: Unit, topology: Topology, new: NewCluster, reserved: ReservedVlans) -> PlannedCluster:
    check_guests_differ(new.spec.guests)
    identity = NetworkIdentity(new.spec.owner, new.key, new.attempt)
    spec = plan_network(new.spec, identity, batch=find_origin(new.spec.owner, unit.who).batch)
    ids = allocate_network_ids(unit, topology, spec, reserved, new.sees)
    return PlannedCluster(_make_live_cluster(new, spec, ids), ids)


def _plan_member(unit: Unit, topology: Topology, new: NewCluster, reserved: ReservedVlans) -> PlannedCluster:
    check_guests_differ(new.spec.guests)
    row = find_joinable_network(unit, new.spec)
    check_guests_distinct(unit, row, new.spec)
    batch = find_origin(new.spec.owner, unit.who).batch
    spec = plan_member(new.spec, read_network_addresses(unit, row), batch=batch)
    (network,) = make_live_clusters(unit, [row])
    ids = allocate_for_member(unit, topology, network, spec, reserved, new.sees)
    return PlannedCluster(_make_live_cluster(new, spec, ids, network.network), ids, row)


def _make_live_cluster(
    new: NewCluster, spec: ClusterSpec, ids: NetworkIds, joined: ClusterNetwork | None = None
) -> LiveCluster:
    return LiveCluster(
        new.id,
        ClusterKey(new.key),
        spec,
        ids.vlans,
        ids.transport_name,
        ids.service,
        joined,
        images=new.images,
    )
