"""The rows of sites and elements that a new topology changes."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import BindParameter, Executable, Row, Text, bindparam, case, func, insert, null, select, update

from sbf_service.domain.topology_change import TopologyChange
from sbf_service.store.elements.revisions import expire_elements
from sbf_service.store.tables.columns import select_texts, split_ids
from sbf_service.store.tables.tables import Base, ElementRow, SiteRow
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlans.ports import parse_removed_switch, release_removed_switch, update_described_ports
from sbf_service.store.vlans.vlan_ownership import delete_foreign_vlans, keep_claimed_vlans, replace_created_vlans
from virtcloud.model.element import Device, Element, Switch, kind_of
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

_NAMES: BindParameter[Any] = bindparam("names", expanding=True)
_ELEMENTS = Base.metadata.tables[ElementRow.__tablename__]
_READ_SITES = select(SiteRow.name, SiteRow.present).where(SiteRow.name.in_(_NAMES))
_SITES = Base.metadata.tables[SiteRow.__tablename__]
_UPDATE_SITE = update(_SITES).where(_SITES.c.name == bindparam("site")).values(present=bindparam("is_present"))
_SELECT_ELEMENTS = select(ElementRow.name, ElementRow.site, ElementRow.kind, ElementRow.present)
_READ_ELEMENTS = _SELECT_ELEMENTS.where(ElementRow.name.in_(_NAMES))
_READ_LEAVING = select(ElementRow.name, ElementRow.leaving).where(ElementRow.name.in_(_NAMES))
_READ_AT_SITES = _SELECT_ELEMENTS.where(ElementRow.present, ElementRow.site.in_(_NAMES))
_INSERT_ELEMENTS = insert(_ELEMENTS).values(
    present=True, reachable=True, fence=0, wanted_revision=1, confirmed_revision=0, highest_confirmed=0
)
_HAS_KIND = _ELEMENTS.c.kind == bindparam("new_kind")
_DESCRIBE = (
    update(_ELEMENTS)
    .where(_ELEMENTS.c.name == bindparam("element"))
    .values(
        site=bindparam("new_site"),
        kind=bindparam("new_kind"),
        present=True,
        leaving=None,
        # if the kind changes, delete the observed state, because its format depends on the kind
        carried=case((_HAS_KIND, _ELEMENTS.c.carried), else_=null()),
        carried_at=case((_HAS_KIND, _ELEMENTS.c.carried_at), else_=null()),
        # if the kind changes, delete the pending save: a host or gateway would never complete it
        unsaved_since=case((_HAS_KIND, _ELEMENTS.c.unsaved_since), else_=null()),
        save_after=case((_HAS_KIND, _ELEMENTS.c.save_after), else_=null()),
    )
)
_REMOVE = update(_ELEMENTS).where(_ELEMENTS.c.name.in_(_NAMES)).values(present=False)
_RESET = (
    update(_ELEMENTS)
    .where(_ELEMENTS.c.name.in_(select_texts(bindparam("names", type_=Text))))
    .values(
        wanted_revision=_ELEMENTS.c.wanted_revision + 1,
        confirmed_revision=0,
        unsaved_since=func.coalesce(
            _ELEMENTS.c.unsaved_since, case((_ELEMENTS.c.carried.is_not(None), bindparam("at")), else_=null())
        ),
    )
)
_Rows = Mapping[str, Row[Any]]


@dataclass(frozen=True, slots=True)
class ElementChanges:
    """The changes of the rows of sites and elements.

    The rows can be compared with the new topology before the transaction that stores it, because only such transactions
    write the compared columns.

    - ``new_sites``: the sites without a row. ``sites``: the known sites that enter or leave the topology.
    - ``new``: the elements without a row. ``described``: the values of known elements whose kind or site changes, or
      that were removed earlier.
    - ``moved``: the known elements whose site changes.
    - ``reset``: the known elements in :attr:`.TopologyChange.changed_elements`.
    - ``devices``: the former and the new description of each new or changed element whose records of ports or VLANs may
      have to change.
    - ``lost``: the removed elements; the value is the former description if the element is a switch, otherwise None.
    - ``topics``: the topics that the store publishes after the commit: one for each new or changed element.
    """

    new_sites: Sequence[Mapping[str, object]] = ()
    sites: Sequence[Mapping[str, object]] = ()
    new: Sequence[Mapping[str, object]] = ()
    described: Sequence[Mapping[str, object]] = ()
    moved: Sequence[str] = ()
    reset: str = ""
    devices: Sequence[tuple[Element | None, Element]] = ()
    lost: Mapping[str, Switch | None] = field(default_factory=dict)
    topics: frozenset[str] = frozenset()


def prepare_elements(unit: Unit, change: TopologyChange) -> ElementChanges:
    """Return the changes of the rows of sites and elements for a new topology.

    A change that keeps all paths changes no row, because it keeps the names, kinds and sites of all elements.
    """
    if change.keeps_paths:
        return ElementChanges()
    unit.session.flush()
    topology, former, rows = change.topology, change.former.elements, _read_elements(unit, change)
    sites, present = _read_rows(unit, _READ_SITES, change.sites), topology.sites_by_name.keys()
    after = [topology.elements[name] for name in sorted(change.elements, key=str) if name in topology.elements]
    new = [element for element in after if element.name not in rows]
    changed = [element for element in after if element.name in change.changed_elements]
    reset = [element.name for element in changed if element.name in rows]
    lost = [Name(name) for name in sorted(rows.keys() - topology.elements.keys())]
    left = {name: former.get(name) if rows[name].present else None for name in lost}
    described = list(_list_described(topology, after, rows))
    return ElementChanges(
        new_sites=[{"name": name, "present": True, "pool": VlanSet()} for name in sorted(change.sites - sites.keys())],
        sites=[
            {"site": name, "is_present": name in present}
            for name, row in sites.items()
            if row.present != (name in present)
        ],
        new=[{"name": one.name, "site": topology.site_of[one.name].name, "kind": str(kind_of(one))} for one in new],
        described=described,
        moved=[one["element"] for one in described if one["new_site"] != rows[one["element"]].site],
        reset=json.dumps(reset) if reset else "",
        devices=[(former.get(one.name), one) for one in changed if _has_records(former.get(one.name), one, rows)],
        lost={name: element if isinstance(element, Switch) else None for name, element in left.items()},
        topics=frozenset(f"element:{name}" for name in (*reset, *(one.name for one in new))),
    )


def update_sites(unit: Unit, changes: ElementChanges) -> None:
    """Insert rows for new sites, and record which known sites enter or leave the topology."""
    if changes.new_sites:
        unit.session.execute(insert(SiteRow), changes.new_sites)
    if changes.sites:
        unit.connection.execute(_UPDATE_SITE, changes.sites)


def update_elements(unit: Unit, changes: ElementChanges) -> None:
    """Update the rows of new, changed and removed elements.

    The confirmed revision of a changed element becomes 0, so that its worker or agent reads the element again. Records
    of VLANs and ports are deleted if the name may now denote another device. Records of VLAN IDs in other use are
    deleted if the site changes: the next reading records them for the new site. Lost elements are marked as removed,
    without records of VLANs. The ports of a removed switch are released, so that SBF restores their original uses.
    """
    unit.session.flush()
    removed = _read_removed_switches(unit, [element.name for former, element in changes.devices if former is None])
    for statement, rows in ((_INSERT_ELEMENTS, changes.new), (_DESCRIBE, changes.described)):
        if rows:
            unit.connection.execute(statement, rows)
    if changes.reset:
        unit.connection.execute(_RESET, {"names": changes.reset, "at": unit.now})
    for group in split_ids(changes.lost):
        unit.connection.execute(_REMOVE, {"names": group})
    unit.changed |= changes.topics
    expire_elements(unit)
    _update_devices(unit, changes.devices, removed)
    for name in changes.moved:
        delete_foreign_vlans(unit, name)
    for name, switch in changes.lost.items():
        _release_records(unit, name)
        if switch is not None:
            release_removed_switch(unit, unit.session.get_one(ElementRow, name), switch)


def _read_elements(unit: Unit, change: TopologyChange) -> _Rows:
    """Return the rows of all elements of a change.

    An element that was removed earlier may return at another site, so rows are read by site and by name.
    """
    at_sites = _read_rows(unit, _READ_AT_SITES, change.sites)
    rows = {name: row for name, row in at_sites.items() if name in change.elements}
    return rows | _read_rows(unit, _READ_ELEMENTS, change.elements - rows.keys())


def _read_rows(unit: Unit, statement: Executable, names: Iterable[Name]) -> dict[str, Row[Any]]:
    groups = split_ids(sorted(names))
    return {row.name: row for group in groups for row in unit.connection.execute(statement, {"names": group}).all()}


def _list_described(topology: Topology, after: Iterable[Element], rows: _Rows) -> Iterator[dict[str, str]]:
    """Yield the new values of known elements whose kind or site changes, or that were removed earlier."""
    site_of = topology.site_of
    for element in after:
        row, name = rows.get(element.name), element.name
        if row is None:
            continue
        site, kind = site_of[name].name, kind_of(element)
        if tuple(row) != (name, site, kind, True):
            yield {"element": name, "new_site": site, "new_kind": str(kind)}


def _has_records(former: Element | None, element: Element, rows: _Rows) -> bool:
    returns = former is None and element.name in rows
    return returns or isinstance(element, Switch) or is_other_device(former, element)


def _read_removed_switches(unit: Unit, names: Iterable[Name]) -> dict[str, Switch]:
    rows = _read_rows(unit, _READ_LEAVING, names)
    return {name: removed for name, row in rows.items() if (removed := parse_removed_switch(row)) is not None}


def _update_devices(
    unit: Unit, changes: Iterable[tuple[Element | None, Element]], removed: Mapping[str, Switch]
) -> None:
    for former, element in changes:
        is_other = is_other_device(former or removed.get(element.name), element)
        if isinstance(element, Switch):
            update_described_ports(unit, element, former, is_other=is_other)
        if is_other:
            _release_records(unit, element.name)
            keep_claimed_vlans(unit, unit.session.get_one(ElementRow, element.name))


def _release_records(unit: Unit, name: str) -> None:
    delete_foreign_vlans(unit, name)
    replace_created_vlans(unit, name, VlanSet())


def is_other_device(former: Element | None, element: Element) -> bool:
    """Return whether an element's name may now denote another device.

    Return False for a new element (``former`` is None). Two devices differ by address or platform. In all other cases,
    the kinds decide.
    """
    if not isinstance(former, Device) or not isinstance(element, Device):
        return former is not None and kind_of(former) != kind_of(element)
    return (former.address, former.platform) != (element.address, element.platform)
