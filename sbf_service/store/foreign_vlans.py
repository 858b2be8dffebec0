"""VLAN IDs in other use on devices, as they were last read: such an ID is excluded from what its site gives.

It has no row among the free numbers, so that a claim costs what it did. It comes back when the last device of the site
was read without the other use.
"""

import json
from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import delete, select

from sbf_service.store.audit import record
from sbf_service.store.free_numbers import exclude, include
from sbf_service.store.session import Unit
from sbf_service.store.tables import ClaimRow, ClusterRow, ElementRow, ForeignVlanRow
from virtcloud.model.values import ClusterKey, Name, PortName, VlanId
from virtcloud.model.views import VlanInOtherUse
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import ForeignVlan


def record_foreign(unit: Unit, row: ElementRow, looked_at: VlanSet, found: Iterable[ForeignVlan]) -> None:
    """Record what is in other use on an element among the VLAN IDs that were looked at; idempotent.

    What was recorded of other IDs stays: a dry run may have read more than is managed.
    """
    now = {one.vlan: one for one in found}
    known = {one.vlan: one for one in _rows(unit, row.name) if one.vlan in looked_at}
    for vlan, one in now.items():
        if vlan in known:
            known[vlan].name, known[vlan].ports = one.name, json.dumps(one.ports)
        else:
            unit.session.add(_row(unit, row, one))
            record(unit, "vlan_excluded", element=row.name, why=f"VLAN {vlan} is in other use: {one.use}")
    unit.session.flush()
    exclude(unit, row.site, VlanSet(now.keys() - known.keys()))
    _drop(unit, [one for vlan, one in known.items() if vlan not in now])


def forget_foreign(unit: Unit, element: str) -> None:
    """Forget what was in other use on an element that is no longer there; idempotent."""
    _drop(unit, _rows(unit, element))


def foreign_at(unit: Unit, sites: Collection[str]) -> dict[str, VlanSet]:
    """Return the VLAN IDs in other use at each of these sites that has any."""
    rows = select(ForeignVlanRow.site, ForeignVlanRow.vlan).where(ForeignVlanRow.site.in_(sites))
    found: dict[str, set[int]] = {}
    for site, vlan in unit.session.execute(rows):
        found.setdefault(site, set()).add(vlan)
    return {site: VlanSet(vlans) for site, vlans in found.items()}


def foreign_view(unit: Unit, site: str, pool: VlanSet) -> tuple[VlanInOtherUse, ...]:
    """Return every other use of a site's VLAN IDs, with the device, the evidence and the time of the reading."""
    held = _holders(unit, site)
    rows = select(ForeignVlanRow, ElementRow.last_seen).join(ElementRow, ElementRow.name == ForeignVlanRow.element)
    found = unit.session.execute(rows.where(ForeignVlanRow.site == site).order_by("vlan", "element"))
    return tuple(
        VlanInOtherUse(
            vlan=VlanId(row.vlan),
            element=Name(row.element),
            name=row.name,
            ports=_ports(row),
            since=row.since,
            read_at=seen,
            cluster=held.get(row.vlan),
        )
        for row, seen in found
        if row.vlan in pool or row.vlan in held
    )


def foreign_reason(unit: Unit, site: str, vlan: int) -> str | None:
    """Return who uses a VLAN ID of a site otherwise, in words; None when nobody does."""
    row = unit.session.scalars(
        select(ForeignVlanRow).where(ForeignVlanRow.site == site, ForeignVlanRow.vlan == vlan).limit(1)
    ).first()
    if row is None:
        return None
    return (
        f"it is in other use on {row.element}: {ForeignVlan(vlan=VlanId(vlan), name=row.name, ports=_ports(row)).use}"
    )


def _holders(unit: Unit, site: str) -> Mapping[int, ClusterKey]:
    rows = select(ClaimRow.vlan, ClusterRow.key).join(ClusterRow, ClusterRow.id == ClaimRow.cluster_id)
    return {vlan: ClusterKey(key) for vlan, key in unit.session.execute(rows.where(ClaimRow.site == site))}


def _rows(unit: Unit, element: str) -> list[ForeignVlanRow]:
    return list(unit.session.scalars(select(ForeignVlanRow).where(ForeignVlanRow.element == element)))


def _row(unit: Unit, row: ElementRow, one: ForeignVlan) -> ForeignVlanRow:
    return ForeignVlanRow(
        element=row.name, vlan=one.vlan, site=row.site, name=one.name, ports=json.dumps(one.ports), since=unit.now
    )


def _drop(unit: Unit, rows: Iterable[ForeignVlanRow]) -> None:
    """Delete rows, and give IDs back that nothing at their site uses otherwise any more."""
    gone: dict[str, set[int]] = {}
    for row in rows:
        unit.session.execute(
            delete(ForeignVlanRow).where(ForeignVlanRow.element == row.element, ForeignVlanRow.vlan == row.vlan)
        )
        record(unit, "vlan_included", element=row.element, why=f"VLAN {row.vlan} is in other use there no longer")
        gone.setdefault(row.site, set()).add(row.vlan)
    unit.session.flush()
    for site, vlans in gone.items():
        include(unit, site, VlanSet(vlans) - foreign_at(unit, [site]).get(site, VlanSet()))


def _ports(row: ForeignVlanRow) -> tuple[PortName, ...]:
    return tuple(PortName(port) for port in json.loads(row.ports))
