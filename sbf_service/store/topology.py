"""The topology document, and what follows from it: rows of sites and elements, and where live clusters go."""

from collections import defaultdict

from sqlalchemy import select

from sbf_service.edges import peers_of, transports_at
from sbf_service.store.audit import record
from sbf_service.store.created_vlans import replace_created
from sbf_service.store.foreign_vlans import forget_foreign
from sbf_service.store.losses import refuse_loss
from sbf_service.store.ports import describe_ports, leave_switch
from sbf_service.store.reading import TOPOLOGY, read_topology
from sbf_service.store.revisions import grow
from sbf_service.store.session import Unit
from sbf_service.store.sharing import refuse_unshareable
from sbf_service.store.standing import live_clusters
from sbf_service.store.tables import ElementRow, PlacementRow, SiteRow, TopologyRow
from sbf_service.wanted import LiveCluster, elements_of, ports_for, wanted
from virtcloud.model.element import Device, Element, Switch, kind_of
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet


def put_topology(unit: Unit, topology: Topology) -> None:
    """Replace the topology; may be repeated.

    Raises Conflict when an element or a port that a cluster uses, or may still use, would vanish. What stays reachable
    by another way is moved there: elements get their part of it, and others lose it, by the one mechanism.
    """
    row = unit.session.scalars(select(TopologyRow)).one()
    document = topology.model_dump_json()
    if row.document == document:
        return
    former = None if row.document is None else read_topology(unit)
    live = live_clusters(unit)
    if former is not None:
        refuse_loss(unit, former, topology, live)
        refuse_unshareable(unit, former, topology)
    row.document, row.version = document, row.version + 1
    unit.changed.add(TOPOLOGY)
    record(unit, "topology_put", why=f"version {row.version}")
    _keep_sites(unit, topology)
    _keep_elements(unit, former, topology)
    if former is not None:
        _move_parts(unit, former, topology, live)


def _keep_sites(unit: Unit, topology: Topology) -> None:
    rows = {row.name: row for row in unit.session.scalars(select(SiteRow))}
    names = {site.name for site in topology.sites}
    for name in names - rows.keys():
        unit.session.add(SiteRow(name=name, present=True, pool=VlanSet()))
    for row in rows.values():
        row.present = row.name in names
    unit.session.flush()


def _keep_elements(unit: Unit, former: Topology | None, topology: Topology) -> None:
    """Let a new element start at revision 1, confirmed 0: it is read, and what it must not carry is taken off it.

    So does one that was described anew, since another device may stand behind its name.
    """
    rows = {row.name: row for row in unit.session.scalars(select(ElementRow))}
    before = former.elements if former else {}
    for name, element in topology.elements.items():
        row = rows.get(name) or _new_row(unit, element, topology)
        row.site, row.kind = topology.site_of[name].name, kind_of(element)
        if isinstance(element, Switch):
            describe_ports(unit, element, before.get(name), is_other=is_other_device(before.get(name), element))
        if is_other_device(before.get(name), element):
            forget_foreign(unit, name)
            replace_created(unit, name, VlanSet())
        if before.get(name) != element:
            row.wanted_revision, row.confirmed_revision = row.wanted_revision + 1, 0
            row.unsaved_since = row.unsaved_since or (unit.now if row.carried is not None else None)
            unit.changed.add(f"element:{name}")
    unit.session.flush()
    for row in unit.session.scalars(select(ElementRow)):
        left = before.get(Name(row.name)) if row.present and row.name not in topology.elements else None
        row.present = row.name in topology.elements
        if not row.present:
            forget_foreign(unit, row.name)
            replace_created(unit, row.name, VlanSet())
        row.leaving = None if row.present else row.leaving
        if isinstance(left, Switch):
            leave_switch(unit, row, left)


def is_other_device(former: Element | None, element: Element) -> bool:
    """Return whether another device may stand behind an element's name: nothing on it is known to be SBF's then."""
    if not isinstance(former, Device) or not isinstance(element, Device):
        return former is not None and kind_of(former) != kind_of(element)
    return (former.address, former.platform) != (element.address, element.platform)


def _new_row(unit: Unit, element: Element, topology: Topology) -> ElementRow:
    site, kind = topology.site_of[element.name].name, kind_of(element)
    row = ElementRow(name=element.name, site=site, kind=kind, present=True, reachable=True, fence=0)
    row.wanted_revision = row.confirmed_revision = row.highest_confirmed = 0
    unit.session.add(row)
    return row


def _move_parts(unit: Unit, former: Topology, topology: Topology, live: list[LiveCluster]) -> None:
    """Give elements whose part changed a new revision, and clusters parts on the elements they go over now."""
    before, after = ({one.id: _elements(version, one) for one in live} for version in (former, topology))
    over: dict[Name, list[LiveCluster]] = defaultdict(list)
    for cluster in live:
        for name in before[cluster.id] | after[cluster.id]:
            over[name].append(cluster)
    both = former.elements.keys() & topology.elements.keys()
    grow(unit, [name for name in both if _is_to_do(name, former, over[name]) != _is_to_do(name, topology, over[name])])
    unit.session.flush()
    for cluster in live:
        _move_cluster(unit, cluster, after[cluster.id])


def _elements(topology: Topology, cluster: LiveCluster) -> frozenset[Name]:
    return elements_of(ports_for(topology, cluster))


def _is_to_do(name: Name, topology: Topology, live: list[LiveCluster]) -> object:
    """Say what an element must carry, and of an edge also what it must know of the others to carry it."""
    transports = transports_at(topology, name)
    return wanted(name, topology, live), transports, peers_of(topology, name, transports)


def _move_cluster(unit: Unit, cluster: LiveCluster, elements: frozenset[Name]) -> None:
    found = unit.session.scalars(select(PlacementRow).where(PlacementRow.cluster_id == cluster.id))
    parts = {part.element: part for part in found}
    for name in sorted(elements):
        part = parts.get(name)
        if part is None:
            add_part(unit, cluster.id, name)
        elif part.removed_revision is not None:
            part.added_revision, part.removed_revision = _wanted_revision(unit, name), None
    for gone in sorted(parts.keys() - elements):
        if parts[gone].removed_revision is None:
            parts[gone].removed_revision = _wanted_revision(unit, gone)
    unit.changed.add(f"cluster:{cluster.key}")


def add_part(unit: Unit, cluster_id: str, element: str) -> None:
    """Put a cluster on an element, from the element's wanted revision on: let that grow first."""
    revision = _wanted_revision(unit, element)
    unit.session.add(PlacementRow(cluster_id=cluster_id, element=element, added_revision=revision))


def _wanted_revision(unit: Unit, element: str) -> int:
    return unit.session.get_one(ElementRow, element).wanted_revision
