"""The rows of sites and elements that a new topology changes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import BindParameter, Executable, Row, bindparam, case, func, insert, null, select, update

from sbf_service.domain.topology_change import TopologyChange
from sbf_service.store.columns import split_ids
from sbf_service.store.ports import parse_removed_switch, release_removed_switch, update_described_ports
from sbf_service.store.revisions import expire_elements
from sbf_service.store.tables import Base, ElementRow, SiteRow
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlan_ownership import delete_foreign_vlans, replace_created_vlans
from virtcloud.model.element import Device, Element, Switch, kind_of
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

_NAMES: BindParameter[Any] = bindparam("names", expanding=True)
_ELEMENTS = Base.metadata.tables[ElementRow.__tablename__]
_READ_SITES = select(SiteRow.name).where(SiteRow.name.in_(_NAMES))
_SELECT_ELEMENTS = select(ElementRow.name, ElementRow.site, ElementRow.kind, ElementRow.present, ElementRow.leaving)
_READ_ELEMENTS = _SELECT_ELEMENTS.where(ElementRow.name.in_(_NAMES))
_READ_AT_SITES = _SELECT_ELEMENTS.where(ElementRow.present, ElementRow.site.in_(_NAMES))
_INSERT_ELEMENTS = insert(_ELEMENTS).values(
    present=True, reachable=True, fence=0, wanted_revision=1, confirmed_revision=0, highest_confirmed=0
)
_DESCRIBE = (
    update(_ELEMENTS)
    .where(_ELEMENTS.c.name == bindparam("element"))
    .values(site=bindparam("new_site"), kind=bindparam("new_kind"), present=True, leaving=None)
)
_REMOVE = update(_ELEMENTS).where(_ELEMENTS.c.name.in_(_NAMES)).values(present=False)
_RESET = (
    update(_ELEMENTS)
    .where(_ELEMENTS.c.name.in_(_NAMES))
    .values(
        wanted_revision=_ELEMENTS.c.wanted_revision + 1,
        confirmed_revision=0,
        unsaved_since=func.coalesce(
            _ELEMENTS.c.unsaved_since, case((_ELEMENTS.c.carried.is_not(None), bindparam("at")), else_=null())
        ),
    )
)
_Rows = Mapping[str, Row[Any]]


def update_sites(unit: Unit, change: TopologyChange) -> None:
    """Insert rows for new sites, and record for each changed site whether the site is in the new topology."""
    known = set(_read_rows(unit, _READ_SITES, change.sites))
    present = change.topology.sites_by_name.keys()
    new = [{"name": name, "present": True, "pool": VlanSet()} for name in sorted(change.sites - known)]
    if new:
        unit.session.execute(insert(SiteRow), new)
    changed = [{"name": name, "present": name in present} for name in sorted(change.sites & known)]
    if changed:
        unit.session.execute(update(SiteRow), changed)


def update_elements(unit: Unit, change: TopologyChange) -> None:
    """Update the rows of elements at sites that change.

    Set the confirmed revision of a changed element to 0, so that its worker or agent reads the element again. If an
    element's name may now denote another device, delete the records of VLANs and ports under this name, because these
    records describe the old device. Mark elements that the new topology lacks as removed, and delete these records of
    removed elements too. Release the ports of a removed switch, so that SBF restores their original uses.
    """
    unit.session.flush()
    topology, before, rows = change.topology, change.former.elements, _read_elements(unit, change)
    after = [topology.elements[name] for name in sorted(change.elements) if name in topology.elements]
    new = [element for element in after if element.name not in rows]
    known = [element for element in after if element.name in rows]
    _insert_elements(unit, topology, new)
    _describe_elements(unit, topology, known, rows)
    _reset_elements(unit, [element.name for element in known if element.name in change.changed_elements])
    lost = [name for name in sorted(rows) if name not in topology.elements]
    for group in split_ids(lost):
        unit.connection.execute(_REMOVE, {"names": group})
    expire_elements(unit)
    _update_devices(
        unit,
        [(before.get(element.name), element) for element in after if element.name in change.changed_elements],
        {name: removed for name, row in rows.items() if (removed := parse_removed_switch(row)) is not None},
    )
    for name in lost:
        _release_records(unit, name)
        left = before.get(Name(name)) if rows[name].present else None
        if isinstance(left, Switch):
            release_removed_switch(unit, unit.session.get_one(ElementRow, name), left)


def _read_elements(unit: Unit, change: TopologyChange) -> _Rows:
    """Return the rows of all elements of a change.

    An element that was removed earlier and is now added again can have a row with another site.
    """
    at_sites = _read_rows(unit, _READ_AT_SITES, change.sites)
    rows = {name: row for name, row in at_sites.items() if name in change.elements}
    return rows | _read_rows(unit, _READ_ELEMENTS, change.elements - rows.keys())


def _read_rows(unit: Unit, statement: Executable, names: Iterable[Name]) -> dict[str, Row[Any]]:
    """Execute a statement for these names. Return the rows, by name."""
    groups = split_ids(sorted(names))
    return {row.name: row for group in groups for row in unit.connection.execute(statement, {"names": group}).all()}


def _describe_elements(unit: Unit, topology: Topology, known: Sequence[Element], rows: _Rows) -> None:
    """Record the kind and site of elements that were removed earlier and are now added again.

    Also record the new kind and site of elements whose kind or site changes.
    """
    described = ((element, (topology.site_of[element.name].name, str(kind_of(element)), True)) for element in known)
    values = [
        {"element": element.name, "new_site": wanted[0], "new_kind": wanted[1]}
        for element, wanted in described
        if tuple(rows[element.name][1:4]) != wanted
    ]
    if values:
        unit.connection.execute(_DESCRIBE, values)


def _reset_elements(unit: Unit, names: Sequence[Name]) -> None:
    """Increment the wanted revisions of elements, and set their confirmed revisions to 0."""
    for group in split_ids(names):
        unit.connection.execute(_RESET, {"names": group, "at": unit.now})
    unit.changed.update(f"element:{name}" for name in names)


def _update_devices(
    unit: Unit, changes: Iterable[tuple[Element | None, Element]], removed: Mapping[str, Switch]
) -> None:
    """Update the records of ports and VLANs of switches and edges. ``changes`` has the new and changed elements.

    ``removed`` contains the switches that were removed earlier and still have ports to restore, by name.
    """
    for former, element in changes:
        is_other = is_other_device(former or removed.get(element.name), element)
        if isinstance(element, Switch):
            update_described_ports(unit, element, former, is_other=is_other)
        if is_other:
            _release_records(unit, element.name)


def _release_records(unit: Unit, name: str) -> None:
    delete_foreign_vlans(unit, name)
    replace_created_vlans(unit, name, VlanSet())


def is_other_device(former: Element | None, element: Element) -> bool:
    """Return whether an element's name may now denote another device.

    If the name denoted a device before and denotes a device now, return whether the address or platform has changed.
    Otherwise return whether the kind of the element has changed. Return False for a new element.
    """
    if not isinstance(former, Device) or not isinstance(element, Device):
        return former is not None and kind_of(former) != kind_of(element)
    return (former.address, former.platform) != (element.address, element.platform)


def _insert_elements(unit: Unit, topology: Topology, new: Sequence[Element]) -> None:
    """Insert rows for new elements with the wanted revision 1, so that workers and agents read these elements."""
    rows = [
        {"name": element.name, "site": topology.site_of[element.name].name, "kind": str(kind_of(element))}
        for element in new
    ]
    if rows:
        unit.connection.execute(_INSERT_ELEMENTS, rows)
    unit.changed.update(f"element:{element.name}" for element in new)
