"""The check that a new topology keeps everything that clusters use or may still use.

The check concerns transports, sites, elements, ports and paths.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from sqlalchemy import select

from sbf_service.domain.network_conflicts import QUARANTINE_REMEDY, join_remedies
from sbf_service.domain.paths import LiveCluster, find_cluster_ports, list_role_keys
from sbf_service.domain.topology_change import TopologyChange, join_faults, list_broken_paths
from sbf_service.store.clusters.cluster_queries import UNSETTLED, find_clusters, find_unsettled_clusters
from sbf_service.store.clusters.cluster_statuses import read_placements
from sbf_service.store.clusters.live_clusters import read_networks, read_service_ids
from sbf_service.store.elements.observed_state import parse_observed_circuits
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.topology.topology_ports import list_lost_ports, list_reattached_ports
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import LEAVING_STATES
from virtcloud.model.element import Gateway
from virtcloud.model.errors import Conflict
from virtcloud.model.topology import Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name
from virtcloud.model.views import PlacementProgress


def list_transport_losses(unit: Unit, former: Topology, topology: Topology) -> Iterator[str]:
    """Yield an error for each transport whose users the new topology would interrupt.

    A used transport at provider edges must keep its kind and its users' service IDs. Its shared service must not become
    a service for each cluster, and a service for each cluster must not become a shared service. A used transport
    without provider edges must not get any. :func:`list_detached_clusters` finds the users of a lost transport without
    provider edges.
    """
    known = {transport.name: transport for transport in topology.transports}
    for before in former.transports:
        used = [user for user in _list_transport_users(unit, before) if not _still_has(known, before, user.service)]
        if used:
            users = ", ".join(f"{_format_service_id(before, user.service)}{user.text}" for user in used)
            remedy = join_remedies("keep the transport until its users have ended", [user.quarantined for user in used])
            change = "change its kind or its service IDs" if before.name in known else "vanish"
            yield f"transport {before.name} would {change}, and is in use: {users}; {remedy}"


class _TransportUser(NamedTuple):
    text: str
    service: int | None
    quarantined: bool = False


def _list_transport_users(unit: Unit, transport: Transport) -> Iterator[_TransportUser]:
    """Yield each user of a transport.

    The users are the transport's clusters, and observed attachment circuits whose service ID belongs to none of these
    clusters.
    """
    rows = find_clusters(unit, UNSETTLED, ClusterRow.transport == transport.name)
    services = read_service_ids(unit, read_networks(unit, rows))
    used = {row.id: services.get(row.network or row.id, transport.shared) for row in rows}
    yield from (_TransportUser(f"cluster {row.key} ({row.state})", used[row.id], row.quarantined) for row in rows)
    for edge in unit.session.scalars(select(ElementRow).where(ElementRow.present).order_by(ElementRow.name)):
        for circuit in parse_observed_circuits(edge) or ():
            if circuit.transport == transport.name and circuit.service not in used.values():
                yield _TransportUser(f"VLAN {circuit.vlan}, last seen on {edge.name}", circuit.service)


def _still_has(known: Mapping[Name, Transport], before: Transport, service: int | None) -> bool:
    after = known.get(before.name)
    if not before.on_edges:
        return after is None or not after.on_edges
    if after is None or after.kind is not before.kind:
        return False
    return service in after.service_ids and bool(before.services) is bool(after.services)


def _format_service_id(transport: Transport, service: int | None) -> str:
    return f"service ID {service} by " if transport.services else ""


def list_detached_clusters(topology: Topology, live: Iterable[LiveCluster]) -> Iterator[str]:
    """Yield an error for each site where a running cluster would lose its transport."""
    for cluster in live:
        sites = (topology.sites_by_name[name] for name in cluster.vlans if name in topology.sites_by_name)
        for site in sites if cluster.transport is not None else ():
            if cluster.transport not in {attachment.transport for attachment in site.attachments}:
                yield f"cluster {cluster.key} needs {site.name} on transport {cluster.transport}: end the cluster first"


def loses_nothing(change: TopologyChange, cluster: LiveCluster) -> bool:
    """Return whether a cluster with paths in both topologies keeps its sites, its transport and its ports.

    Return False if a gateway of the cluster returns at a site where the cluster has no VLAN ID.
    """
    lost = chain(
        _list_lost_sites(change.topology, [cluster]),
        list_detached_clusters(change.topology, [cluster]),
        _list_distant_gateways(change.topology, [cluster]),
    )
    if next(lost, None) is not None:
        return False
    return not change.lost_ports or change.lost_ports.isdisjoint(find_cluster_ports(change.former, cluster))


def check_nothing_lost(unit: Unit, change: TopologyChange, live: Iterable[LiveCluster]) -> None:
    """Raise Conflict if a new topology lacks a used transport, site, element or port, or breaks a cluster's path.

    Also raise Conflict in these cases:

    - a used transport changes its kind or service IDs
    - a site of a running cluster loses the cluster's transport
    - a newly attached port may carry the VLAN of a network that does not use the port's transport
    - a used element changes its kind or site
    - a gateway of a running cluster returns to the topology at a site where the cluster has no VLAN ID

    ``live`` contains the clusters at the sites that change. Clusters that lose nothing (:func:`loses_nothing`) may be
    missing.
    """
    losses = list(_list_losses(unit, change, live))
    faults = list(dict.fromkeys(losses or list_broken_paths(change.topology, live)))
    if faults:
        raise Conflict(join_faults(faults))


def _list_lost_sites(topology: Topology, live: Iterable[LiveCluster]) -> Iterator[str]:
    for cluster in live:
        for site in (name for name in cluster.network.spec.sites if name not in topology.sites_by_name):
            yield f"cluster {cluster.network.key} names site {site}, which would vanish: end the cluster first"


def _list_distant_gateways(topology: Topology, live: Iterable[LiveCluster]) -> Iterator[str]:
    for cluster in live:
        for name in (name for name in cluster.gateways if name in topology.gateways):
            site, keys = topology.site_of[name].name, list_role_keys(topology.gateways[name])
            if keys and site not in cluster.vlans:
                yield (
                    f"cluster {cluster.key} used gateway {name} at another site, and is not at {site}: give the "
                    "gateway another name, or end the cluster first"
                )


def _list_losses(unit: Unit, change: TopologyChange, live: Iterable[LiveCluster]) -> Iterator[str]:
    if change.changes_transports:
        yield from list_transport_losses(unit, change.former, change.topology)
    yield from _list_lost_sites(change.topology, live)
    yield from list_detached_clusters(change.topology, live)
    yield from _list_distant_gateways(change.topology, live)
    yield from list_reattached_ports(unit, change.former, change.topology, change.sites)
    for element, row in _list_users(unit, change.lost_elements):
        remedy = _describe_remedy(row, change.former.gateways.get(element))
        user = f"cluster {row.key} ({row.state})"
        yield f"{user} needs {element}, which would vanish or change its kind or site: {remedy}"
    yield from list_lost_ports(unit, change, live)


def _describe_remedy(cluster: ClusterRow, gateway: Gateway | None) -> str:
    """Return how a cluster can leave an element that would vanish.

    ``gateway`` is the element if the element is a gateway, otherwise None.
    """
    if cluster.quarantined:
        return QUARANTINE_REMEDY
    if cluster.state in LEAVING_STATES:
        return "wait until the cluster has ended"
    remedy = "end the cluster first"
    if gateway is None:
        return remedy
    keys = ", ".join(f"`{key}`" for key in list_role_keys(gateway))
    removal = f"first remove {keys} of the gateway and " if keys else ""
    return f"{remedy}, or {removal}wait until the gateway has removed the cluster"


def _list_users(unit: Unit, elements: Collection[Name]) -> Iterator[tuple[Name, ClusterRow]]:
    if not elements:
        return
    rows = find_unsettled_clusters(unit, elements)
    parts = read_placements(unit, [row.id for row in rows])
    for row in rows:
        for part in parts.get(row.id, ()):
            if part.element in elements and part.progress is not PlacementProgress.REMOVED:
                yield part.element, row
