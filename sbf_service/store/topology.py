"""The topology: its document, the rows of its sites and elements, and its effect on placements of clusters.

A new topology must contain every transport, element and port that a cluster uses, or that may still carry a cluster.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping

from sqlalchemy import select

from sbf_service.domain.gateway_access import OUTSIDE_LINK
from sbf_service.domain.paths import LiveCluster, find_cluster_ports, list_elements
from sbf_service.domain.wanted import compute_wanted, find_edge_peers, find_edge_transports
from sbf_service.store.cluster_queries import (
    UNSETTLED,
    find_clusters,
    read_live_clusters,
    read_networks,
    read_placements,
    read_service_ids,
)
from sbf_service.store.network_routers import replace_routers
from sbf_service.store.networks import check_access_ports_kept
from sbf_service.store.observed_state import parse_observed_circuits, parse_observed_ports
from sbf_service.store.ports import release_removed_switch, update_described_ports
from sbf_service.store.revisions import increment_revisions
from sbf_service.store.tables import ClusterRow, ElementRow, PlacementRow, SiteRow, TopologyRow
from sbf_service.store.unit_of_work import TOPOLOGY_TOPIC, Unit, read_topology, record_audit
from sbf_service.store.vlan_ownership import delete_foreign_vlans, replace_created_vlans
from virtcloud.model.element import Device, Element, Switch, kind_of
from virtcloud.model.errors import Conflict
from virtcloud.model.topology import Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortRef
from virtcloud.model.views import PlacementProgress
from virtcloud.model.vlans import VlanSet


def list_transport_losses(unit: Unit, former: Topology, topology: Topology) -> Iterator[str]:
    """Yield an error for each transport in use that the new topology lacks or changes to another kind.

    Also yield an error for each transport that loses a service ID in use.
    """
    known = {transport.name: transport for transport in topology.transports}
    for before in former.transports:
        used = [
            (user, service)
            for user, service in _list_transport_users(unit, before)
            if not _still_has(known, before, service)
        ]
        if used:
            users = ", ".join(f"{_format_service_id(before, service)}{user}" for user, service in used)
            change = "change its kind or its service IDs" if before.name in known else "vanish"
            yield f"transport {before.name} would {change}, and is in use: {users}; keep it until these have ended"


def _list_transport_users(unit: Unit, transport: Transport) -> Iterator[tuple[str, int | None]]:
    """Yield each user of a transport with its service ID.

    The users are the clusters on the transport. An attachment circuit that was last seen on an edge is also a user if
    its service ID belongs to none of these clusters.
    """
    rows = find_clusters(unit, UNSETTLED, ClusterRow.transport == transport.name)
    services = read_service_ids(unit, read_networks(unit, rows))
    used = {row.id: services.get(row.network or row.id, transport.shared) for row in rows}
    yield from ((f"cluster {row.key} ({row.state})", used[row.id]) for row in rows)
    for edge in unit.session.scalars(select(ElementRow).where(ElementRow.present).order_by(ElementRow.name)):
        for circuit in parse_observed_circuits(edge) or ():
            if circuit.transport == transport.name and circuit.service not in used.values():
                yield f"VLAN {circuit.vlan}, last seen on {edge.name}", circuit.service


def _still_has(known: Mapping[Name, Transport], before: Transport, service: int | None) -> bool:
    after = known.get(before.name)
    if not before.on_edges:
        return after is None or not after.on_edges
    if after is None or after.kind is not before.kind:
        return False
    return service in after.service_ids and bool(before.services) is bool(after.services)


def _format_service_id(transport: Transport, service: int | None) -> str:
    return f"{service} by " if transport.services else ""


def list_detached_clusters(topology: Topology, live: Iterable[LiveCluster]) -> Iterator[str]:
    """Yield an error for each site where a running cluster would lose its transport."""
    for cluster in live:
        for site in topology.sites if cluster.transport is not None else ():
            if site.name in cluster.vlans and cluster.transport not in {
                attachment.transport for attachment in site.attachments
            }:
                yield f"cluster {cluster.key} needs {site.name} on transport {cluster.transport}: end the cluster first"


def check_nothing_lost(unit: Unit, former: Topology, topology: Topology, live: Iterable[LiveCluster]) -> None:
    """Raise Conflict if a new topology lacks a transport, site, element or port in use. The error describes the use."""
    for fault in _list_losses(unit, former, topology, live):
        raise Conflict(fault)


def _list_lost_sites(topology: Topology, live: Iterable[LiveCluster]) -> Iterator[str]:
    """Yield an error for each network with a site that the new topology lacks."""
    known = {site.name for site in topology.sites}
    for cluster in live:
        for site in (name for name in cluster.network.spec.sites if name not in known):
            yield f"cluster {cluster.network.key} names site {site}, which would vanish: end the cluster first"


def _list_losses(unit: Unit, former: Topology, topology: Topology, live: Iterable[LiveCluster]) -> Iterator[str]:
    yield from list_transport_losses(unit, former, topology)
    yield from _list_lost_sites(topology, live)
    yield from list_detached_clusters(topology, live)
    for element, user in _list_needed_elements(unit):
        if _is_lost(former, topology, element):
            remedy = "end the cluster first"
            if element in former.gateways:
                remedy += ", or first remove `vpn` and `nfs` of the gateway and wait until it has removed the cluster"
            yield f"{user} needs {element}, which would vanish or change its kind or site: {remedy}"
    for port, user in _list_needed_ports(unit, former, live):
        if port.element in topology.elements and port.port not in topology.elements[port.element].ports:
            yield f"{user} needs port {port}, which would vanish: end the cluster first"


def _list_needed_elements(unit: Unit) -> Iterator[tuple[Name, str]]:
    rows = find_clusters(unit, UNSETTLED)
    parts = read_placements(unit, [row.id for row in rows])
    for row in rows:
        for part in parts.get(row.id, ()):
            if part.progress is not PlacementProgress.REMOVED:
                yield part.element, f"cluster {row.key} ({row.state})"


def _list_needed_ports(unit: Unit, former: Topology, live: Iterable[LiveCluster]) -> Iterator[tuple[PortRef, str]]:
    for cluster in live:
        for port in sorted(find_cluster_ports(former, cluster)):
            yield port, f"cluster {cluster.key}"
    for row in unit.session.scalars(select(ElementRow).where(ElementRow.present).order_by(ElementRow.name)):
        for name, vlans in (parse_observed_ports(row) or {}).items():
            if vlans:
                yield PortRef(f"{row.name}:{name}"), f"VLAN {vlans}, last seen there,"
        for circuit in parse_observed_circuits(row) or ():
            yield PortRef(f"{row.name}:{circuit.port}"), f"VLAN {circuit.vlan}, last seen there,"


def _is_lost(former: Topology, topology: Topology, element: Name) -> bool:
    if element not in topology.elements:
        return True
    before, after = former.site_of[element].name, topology.site_of[element].name
    return before != after or kind_of(former.element(element)) is not kind_of(topology.element(element))


def put_topology(unit: Unit, topology: Topology) -> None:
    """Replace the topology; idempotent.

    Add placements of running clusters on the elements that carry the clusters in the new topology. Remove the clusters'
    other placements. Raise Conflict when the new topology lacks an element or port that a cluster uses or may still
    use.
    """
    row = unit.session.scalars(select(TopologyRow)).one()
    document = topology.model_dump_json()
    if row.document == document:
        return
    former = None if row.document is None else read_topology(unit)
    live = read_live_clusters(unit)
    if former is not None:
        check_nothing_lost(unit, former, topology, live)
        check_access_ports_kept(unit, former, topology)
    row.document, row.version = document, row.version + 1
    unit.changed.add(TOPOLOGY_TOPIC)
    record_audit(unit, "topology_put", why=f"version {row.version}")
    _update_sites(unit, topology)
    _update_elements(unit, former, topology)
    if former is not None:
        _update_placements(unit, former, topology, live)
        for name, gateway in former.gateways.items():
            if gateway.outside is not None and not OUTSIDE_LINK.has(topology, name):
                replace_routers(unit, name)


def _update_sites(unit: Unit, topology: Topology) -> None:
    rows = {row.name: row for row in unit.session.scalars(select(SiteRow))}
    names = {site.name for site in topology.sites}
    for name in names - rows.keys():
        unit.session.add(SiteRow(name=name, present=True, pool=VlanSet()))
    for row in rows.values():
        row.present = row.name in names
    unit.session.flush()


def _update_elements(unit: Unit, former: Topology | None, topology: Topology) -> None:
    """Update the rows of elements.

    Set the confirmed revision of a new or changed element to 0, so that the element is read again.

    If an element's name may now denote another device, delete the records of VLANs and ports under this name, because
    they describe the former device.
    """
    rows = {row.name: row for row in unit.session.scalars(select(ElementRow))}
    before = former.elements if former else {}
    for name, element in topology.elements.items():
        row = rows.get(name) or _add_element_row(unit, element, topology)
        row.site, row.kind = topology.site_of[name].name, kind_of(element)
        if before.get(name) != element:
            row.wanted_revision, row.confirmed_revision = row.wanted_revision + 1, 0
            row.unsaved_since = row.unsaved_since or (unit.now if row.carried is not None else None)
            unit.changed.add(f"element:{name}")
    unit.session.flush()
    for name, element in topology.elements.items():
        is_other = is_other_device(before.get(name), element)
        if isinstance(element, Switch):
            update_described_ports(unit, element, before.get(name), is_other=is_other)
        if is_other:
            delete_foreign_vlans(unit, name)
            replace_created_vlans(unit, name, VlanSet())
    for row in unit.session.scalars(select(ElementRow)):
        left = before.get(Name(row.name)) if row.present and row.name not in topology.elements else None
        row.present = row.name in topology.elements
        if not row.present:
            delete_foreign_vlans(unit, row.name)
            replace_created_vlans(unit, row.name, VlanSet())
        row.leaving = None if row.present else row.leaving
        if isinstance(left, Switch):
            release_removed_switch(unit, row, left)


def is_other_device(former: Element | None, element: Element) -> bool:
    """Return whether an element's name may now denote another device, on which SBF owns no VLAN."""
    if not isinstance(former, Device) or not isinstance(element, Device):
        return former is not None and kind_of(former) != kind_of(element)
    return (former.address, former.platform) != (element.address, element.platform)


def _add_element_row(unit: Unit, element: Element, topology: Topology) -> ElementRow:
    site, kind = topology.site_of[element.name].name, kind_of(element)
    row = ElementRow(name=element.name, site=site, kind=kind, present=True, reachable=True, fence=0)
    row.wanted_revision = row.confirmed_revision = row.highest_confirmed = 0
    unit.session.add(row)
    return row


def _find_other_destinations(former: Topology, topology: Topology) -> set[Name]:
    """Return the gateways at sites whose destinations changed."""
    both = former.gateways.keys() & topology.gateways.keys()
    return {name for name in both if former.site_of[name].destinations != topology.site_of[name].destinations}


def _update_placements(unit: Unit, former: Topology, topology: Topology, live: list[LiveCluster]) -> None:
    """Move the placements of clusters, and increment the revisions of elements whose wanted state changed."""
    before, after = (
        {cluster.id: _find_elements(version, cluster) for cluster in live} for version in (former, topology)
    )
    carried: dict[Name, list[LiveCluster]] = defaultdict(list)
    for cluster in live:
        for name in before[cluster.id] | after[cluster.id]:
            carried[name].append(cluster)
    both = former.elements.keys() & topology.elements.keys()
    changed = {
        name
        for name in both
        if _compute_wanted_configuration(name, former, carried[name])
        != _compute_wanted_configuration(name, topology, carried[name])
    }
    increment_revisions(unit, changed | _find_other_destinations(former, topology))
    unit.session.flush()
    for cluster in live:
        of_cluster = {
            name
            for name in changed & before[cluster.id] & after[cluster.id]
            if compute_wanted(name, former, [cluster]) != compute_wanted(name, topology, [cluster])
        }
        update_cluster_placements(unit, cluster, after[cluster.id], of_cluster)


def _find_elements(topology: Topology, cluster: LiveCluster) -> frozenset[Name]:
    return list_elements(find_cluster_ports(topology, cluster))


def _compute_wanted_configuration(name: Name, topology: Topology, live: list[LiveCluster]) -> object:
    """Return an element's wanted state and, for an edge, the transports and the other edges that its driver needs."""
    transports = find_edge_transports(topology, name)
    return compute_wanted(name, topology, live), transports, find_edge_peers(topology, name, transports)


def update_cluster_placements(
    unit: Unit, cluster: LiveCluster, elements: frozenset[Name], changed: Container[Name]
) -> None:
    """Place a cluster on ``elements``. Elements with a ``changed`` configuration must confirm the cluster again."""
    found = unit.session.scalars(select(PlacementRow).where(PlacementRow.cluster_id == cluster.id))
    parts = {part.element: part for part in found}
    for name in sorted(elements):
        part = parts.get(name)
        if part is None:
            add_placement(unit, cluster.id, name)
        elif part.removed_revision is not None or name in changed:
            part.added_revision, part.removed_revision = _wanted_revision(unit, name), None
    for element in sorted(parts.keys() - elements):
        if parts[element].removed_revision is None:
            parts[element].removed_revision = _wanted_revision(unit, element)
    unit.changed.add(f"cluster:{cluster.key}")


def add_placement(unit: Unit, cluster_id: str, element: str) -> None:
    """Add a placement that begins with the element's wanted revision. The caller must increment this revision first."""
    revision = _wanted_revision(unit, element)
    unit.session.add(PlacementRow(cluster_id=cluster_id, element=element, added_revision=revision))


def _wanted_revision(unit: Unit, element: str) -> int:
    return unit.session.get_one(ElementRow, element).wanted_revision
