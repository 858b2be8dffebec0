"""The topology: its document, the rows of its sites and elements, and its effect on placements of clusters.

A new topology must contain every transport, element and port that a cluster uses, or that may still carry a cluster.
"""

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

from sqlalchemy import bindparam, insert, select, update

from sbf_service.domain.gateway_access import OUTSIDE_LINK
from sbf_service.domain.paths import LiveCluster, find_cluster_ports, list_elements
from sbf_service.domain.topology_change import TopologyChange, list_broken_paths, list_path_changes
from sbf_service.domain.wanted import compute_wanted, find_edge_peers, find_edge_transports
from sbf_service.store.cluster_queries import UNSETTLED, find_clusters, find_unsettled_clusters
from sbf_service.store.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.columns import split_ids
from sbf_service.store.live_clusters import (
    make_live_clusters,
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
from sbf_service.store.tables import Base, ElementRow, SiteRow, TopologyRow
from sbf_service.store.unit_of_work import TOPOLOGY_TOPIC, Unit, read_topology, read_topology_version, record_audit
from sbf_service.store.vlan_ownership import delete_foreign_vlans, replace_created_vlans
from virtcloud.model.changes import PathChange
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.element import Device, Element, Switch, kind_of
from virtcloud.model.errors import Conflict
from virtcloud.model.topology import Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortRef
from virtcloud.model.views import PlacementProgress
from virtcloud.model.vlans import VlanSet

SHOWN_LOSSES = 20
"""The highest number of losses that an error lists."""
_READ_ELEMENTS = (
    select(ElementRow).where(ElementRow.name.in_(bindparam("names", expanding=True))).order_by(ElementRow.name)
)
_READ_SITES = select(SiteRow.name).where(SiteRow.name.in_(bindparam("names", expanding=True)))
_INSERT_ELEMENTS = insert(Base.metadata.tables[ElementRow.__tablename__]).values(
    present=True, reachable=True, fence=0, wanted_revision=1, confirmed_revision=0, highest_confirmed=0
)


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
        sites = (topology.sites_by_name[name] for name in cluster.vlans if name in topology.sites_by_name)
        for site in sites if cluster.transport is not None else ():
            if cluster.transport not in {attachment.transport for attachment in site.attachments}:
                yield f"cluster {cluster.key} needs {site.name} on transport {cluster.transport}: end the cluster first"


def check_nothing_lost(unit: Unit, change: TopologyChange, live: Iterable[LiveCluster]) -> None:
    """Raise Conflict if a new topology lacks something in use, or breaks a path. The error describes each use.

    ``live`` are the clusters at the sites that change.
    """
    losses = list(_list_losses(unit, change, live))
    faults = list(dict.fromkeys(losses or list_broken_paths(change.topology, live)))
    if faults:
        rest = [f"and {len(faults) - SHOWN_LOSSES} more"] if len(faults) > SHOWN_LOSSES else []
        raise Conflict("\n".join([*faults[:SHOWN_LOSSES], *rest]))


def _list_lost_sites(topology: Topology, live: Iterable[LiveCluster]) -> Iterator[str]:
    """Yield an error for each network with a site that the new topology lacks."""
    for cluster in live:
        for site in (name for name in cluster.network.spec.sites if name not in topology.sites_by_name):
            yield f"cluster {cluster.network.key} names site {site}, which would vanish: end the cluster first"


def _list_losses(unit: Unit, change: TopologyChange, live: Iterable[LiveCluster]) -> Iterator[str]:
    if change.changes_transports:
        yield from list_transport_losses(unit, change.former, change.topology)
    yield from _list_lost_sites(change.topology, live)
    yield from list_detached_clusters(change.topology, live)
    for element, user in _list_users(unit, change.lost_elements):
        remedy = "end the cluster first"
        if element in change.former.gateways:
            remedy += ", or first remove `vpn` and `nfs` of the gateway and wait until it has removed the cluster"
        yield f"{user} needs {element}, which would vanish or change its kind or site: {remedy}"
    if change.lost_ports:
        for port, user in _list_needed_ports(unit, change, live):
            if port in change.lost_ports:
                yield f"{user} needs port {port}, which would vanish: end the cluster first"


def _list_users(unit: Unit, elements: Collection[Name]) -> Iterator[tuple[Name, str]]:
    """Yield each of these elements that carries or may still carry a cluster, with a description of the cluster."""
    if not elements:
        return
    rows = find_unsettled_clusters(unit, elements)
    parts = read_placements(unit, [row.id for row in rows])
    for row in rows:
        for part in parts.get(row.id, ()):
            if part.element in elements and part.progress is not PlacementProgress.REMOVED:
                yield part.element, f"cluster {row.key} ({row.state})"


def _list_needed_ports(
    unit: Unit, change: TopologyChange, live: Iterable[LiveCluster]
) -> Iterator[tuple[PortRef, str]]:
    for cluster in live:
        for port in sorted(find_cluster_ports(change.former, cluster)):
            yield port, f"cluster {cluster.key}"
    for row in _read_elements(unit, {port.element for port in change.lost_ports}).values():
        for name, vlans in (parse_observed_ports(row) or {}).items():
            if vlans:
                yield PortRef(f"{row.name}:{name}"), f"VLAN {vlans}, last seen there,"
        for circuit in parse_observed_circuits(row) or ():
            yield PortRef(f"{row.name}:{circuit.port}"), f"VLAN {circuit.vlan}, last seen there,"


def _read_elements(unit: Unit, names: Iterable[Name]) -> dict[str, ElementRow]:
    """Return the rows of these elements by name, in the order of the names."""
    groups = split_ids(sorted(names))
    return {row.name: row for group in groups for row in unit.session.scalars(_READ_ELEMENTS, {"names": group})}


def put_topology(unit: Unit, topology: Topology) -> None:
    """Replace the topology; idempotent.

    Add placements of running clusters on the elements that carry the clusters in the new topology. Remove the clusters'
    other placements. Raise Conflict when the new topology lacks an element or port that a cluster uses or may still
    use.
    """
    former = None if read_topology_version(unit) is None else read_topology(unit)
    if former == topology:
        return
    change = TopologyChange(former or topology.model_copy(update={"sites": (), "links": ()}), topology)
    live = [] if former is None else _read_clusters_at(unit, change)
    if former is not None:
        check_nothing_lost(unit, change, live)
        check_access_ports_kept(unit, change)
    values = {"document": topology.model_dump_json(), "version": TopologyRow.version + 1}
    version = unit.session.scalars(update(TopologyRow).values(values).returning(TopologyRow.version)).one()
    unit.topology_version, unit.new_topology = version, topology
    unit.changed.add(TOPOLOGY_TOPIC)
    record_audit(unit, "topology_put", why=f"version {version}")
    _update_sites(unit, change)
    _update_elements(unit, change)
    if former is not None:
        _update_placements(unit, change, live)
        for name, gateway in former.gateways.items():
            if gateway.outside is not None and not OUTSIDE_LINK.has(topology, name):
                replace_routers(unit, name)


def _read_clusters_at(unit: Unit, change: TopologyChange) -> list[LiveCluster]:
    """Return the live clusters that use, or may use, an element at a site that changes."""
    if len(change.sites) > len(change.former.sites) // 2:
        return read_live_clusters(unit)
    rows = find_unsettled_clusters(unit, change.elements, change.sites)
    return make_live_clusters(unit, [row for row in rows if row.state in WANTED_STATES])


def read_path_changes(unit: Unit, former: Topology) -> tuple[PathChange, ...]:
    """Return the changes of live clusters' paths from a former topology to the topology of the unit."""
    change = TopologyChange(former, read_topology(unit))
    return tuple(list_path_changes(change, _read_clusters_at(unit, change)))


def _update_sites(unit: Unit, change: TopologyChange) -> None:
    known = {
        name
        for group in split_ids(sorted(change.sites))
        for name in unit.session.scalars(_READ_SITES, {"names": group})
    }
    present = change.topology.sites_by_name.keys()
    new = [{"name": name, "present": True, "pool": VlanSet()} for name in sorted(change.sites - known)]
    if new:
        unit.session.execute(insert(SiteRow), new)
    changed = [{"name": name, "present": name in present} for name in sorted(change.sites & known)]
    if changed:
        unit.session.execute(update(SiteRow), changed)


def _update_elements(unit: Unit, change: TopologyChange) -> None:
    """Update the rows of elements at sites that change.

    Set the confirmed revision of a new or changed element to 0, so that the element is read again.

    If an element's name may now denote another device, delete the records of VLANs and ports under this name, because
    they describe the former device.
    """
    topology, before = change.topology, change.former.elements
    rows = _read_elements(unit, change.elements)
    after = [topology.elements[name] for name in sorted(change.elements) if name in topology.elements]
    _insert_elements(unit, topology, [element for element in after if element.name not in rows])
    for element in after:
        row = rows.get(element.name)
        if row is not None:
            row.site, row.kind = topology.site_of[element.name].name, kind_of(element)
            if before.get(element.name) != element:
                row.wanted_revision, row.confirmed_revision = row.wanted_revision + 1, 0
                row.unsaved_since = row.unsaved_since or (unit.now if row.carried is not None else None)
                unit.changed.add(f"element:{element.name}")
    unit.session.flush()
    for element in after:
        is_other = is_other_device(before.get(element.name), element)
        if isinstance(element, Switch):
            update_described_ports(unit, element, before.get(element.name), is_other=is_other)
        if is_other:
            delete_foreign_vlans(unit, element.name)
            replace_created_vlans(unit, element.name, VlanSet())
    for row in rows.values():
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


def _insert_elements(unit: Unit, topology: Topology, new: Sequence[Element]) -> None:
    """Insert the rows of new elements. Their first wanted revision is 1, so that they are read."""
    rows = [
        {"name": element.name, "site": topology.site_of[element.name].name, "kind": str(kind_of(element))}
        for element in new
    ]
    if rows:
        unit.connection.execute(_INSERT_ELEMENTS, rows)
    unit.changed.update(f"element:{element.name}" for element in new)


def _find_other_destinations(change: TopologyChange) -> set[Name]:
    """Return the gateways at sites whose destinations changed."""
    before, after = change.former, change.topology
    both = before.gateways.keys() & after.gateways.keys() & change.elements
    return {name for name in both if before.site_of[name].destinations != after.site_of[name].destinations}


def _update_placements(unit: Unit, change: TopologyChange, live: list[LiveCluster]) -> None:
    """Move the placements of clusters, and increment the revisions of elements whose wanted state changed."""
    former, topology = change.former, change.topology
    before, after = (
        {cluster.id: _find_elements(version, cluster) for cluster in live} for version in (former, topology)
    )
    carried: dict[Name, list[LiveCluster]] = defaultdict(list)
    for cluster in live:
        for name in before[cluster.id] | after[cluster.id]:
            carried[name].append(cluster)
    changed = {
        name
        for name in change.common_elements
        if _compute_wanted_configuration(name, former, carried[name])
        != _compute_wanted_configuration(name, topology, carried[name])
    }
    increment_revisions(unit, changed | _find_other_destinations(change))
    unit.session.flush()
    for cluster in live:
        of_cluster = {
            name
            for name in changed & before[cluster.id] & after[cluster.id]
            if compute_wanted(name, former, [cluster]) != compute_wanted(name, topology, [cluster])
        }
        if of_cluster or before[cluster.id] != after[cluster.id]:
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
