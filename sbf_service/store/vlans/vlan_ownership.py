"""VLAN ownership: VLANs that SBF created (docs/decisions/0038), and VLAN IDs in use for something other than clusters.

SBF deletes only VLANs that it created. A VLAN's name shows that SBF created the VLAN only if SBF has managed the VLAN
ID on the device before (*known* VLAN ID, docs/decisions/0097). Before a device receives a change, SBF commits a row for
each VLAN that the change creates. SBF deletes the row when a later reading does not contain the VLAN.

A VLAN ID is *in other use* at a site if a device of the site uses the VLAN ID for something other than clusters. The
VLAN ID becomes free when the latest readings of all devices of the site show no other use.
"""

import json
from collections.abc import Iterable, Mapping

from sqlalchemy import bindparam, delete, insert, select

from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.tables import Base, ElementRow
from sbf_service.store.tables.vlan_tables import ClaimRow, CreatedVlanRow, ForeignVlanRow
from sbf_service.store.unit_of_work import Unit, record_audit
from sbf_service.store.vlans.claims import exclude_vlans, include_vlans, read_foreign_vlans
from virtcloud.model.element_views import VlanInOtherUse
from virtcloud.model.switch_state import ForeignVlan
from virtcloud.model.values import ClusterKey, Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet

_CREATED = Base.metadata.tables[CreatedVlanRow.__tablename__]
_READ_CREATED = select(_CREATED.c.vlan).where(_CREATED.c.element == bindparam("on"))
_READ_FOREIGN = select(ForeignVlanRow).where(ForeignVlanRow.element == bindparam("on"))


def read_created_vlans(unit: Unit, element: str) -> VlanSet:
    """Return the IDs of the VLANs that SBF created on an element."""
    return VlanSet(unit.connection.execute(_READ_CREATED, {"on": element}).scalars())


def record_created_vlans(unit: Unit, element: str, vlans: Iterable[int]) -> None:
    """Record that SBF created the VLANs with these IDs on an element; idempotent."""
    _insert_created_vlans(unit, element, VlanSet(vlans) - read_created_vlans(unit, element))


def _insert_created_vlans(unit: Unit, element: str, new: VlanSet) -> None:
    if new:
        rows = [{"element": element, "vlan": vlan, "created_at": unit.now} for vlan in new]
        unit.connection.execute(insert(_CREATED), rows)


def replace_created_vlans(unit: Unit, element: str, vlans: VlanSet) -> None:
    """Record that SBF created exactly ``vlans`` on an element, and delete the records of other VLANs; idempotent."""
    recorded = read_created_vlans(unit, element)
    if removed := recorded - vlans:
        unit.connection.execute(
            delete(_CREATED).where(_CREATED.c.element == element, _CREATED.c.vlan.in_(sorted(removed)))
        )
    _insert_created_vlans(unit, element, vlans - recorded)


def record_known_vlans(row: ElementRow, managed: VlanSet, foreign: Iterable[ForeignVlan]) -> None:
    """Record the VLAN IDs in ``managed``, except those of ``foreign``, as known on a device. Idempotent."""
    if new := managed - VlanSet(use.vlan for use in foreign) - row.known_vlans:
        row.known_vlans |= new


def keep_claimed_vlans(unit: Unit, row: ElementRow) -> None:
    """Delete the known VLAN IDs of a replaced device, except those that a cluster of the site has claimed.

    SBF has not read the new device, on which a VLAN can be in other use.
    """
    row.known_vlans &= VlanSet(unit.session.scalars(select(ClaimRow.vlan).where(ClaimRow.site == row.site)))


def record_foreign_vlans(unit: Unit, row: ElementRow, was_read: VlanSet, found: Iterable[ForeignVlan]) -> None:
    """Replace the records of VLAN IDs in other use on an element by ``found``. Idempotent.

    ``was_read`` contains the VLAN IDs that the reading covered. The records of other VLAN IDs stay, for example records
    from a dry run with a larger pool. For a removed element, ``found`` counts as empty.
    """
    uses = {use.vlan: use for use in found} if row.present else {}
    known = {record.vlan: record for record in _read_rows(unit, row.name) if record.vlan in was_read}
    for vlan, use in uses.items():
        if vlan in known:
            known[vlan].name, known[vlan].ports = use.name, json.dumps(use.ports)
        else:
            unit.session.add(_make_row(unit, row, use))
            record_audit(unit, "vlan_excluded", element=row.name, why=f"VLAN {vlan} is in other use: {use.use}")
    unit.session.flush()
    exclude_vlans(unit, row.site, VlanSet(uses.keys() - known.keys()))
    _delete_rows(unit, [record for vlan, record in known.items() if vlan not in uses])


def delete_foreign_vlans(unit: Unit, element: str) -> None:
    """Delete the records of VLAN IDs in other use on an element that was removed or replaced. Idempotent."""
    _delete_rows(unit, _read_rows(unit, element))


def make_other_use_views(unit: Unit, site: str, pool: VlanSet) -> tuple[VlanInOtherUse, ...]:
    """Return a site's VLAN IDs in other use, if they are in ``pool`` or claimed by a cluster.

    Each view has one VLAN ID on one device, and the time of the device's last reading.
    """
    clusters = _read_claiming_clusters(unit, site)
    rows = select(ForeignVlanRow, ElementRow.last_seen).join(ElementRow, ElementRow.name == ForeignVlanRow.element)
    found = unit.session.execute(rows.where(ForeignVlanRow.site == site).order_by("vlan", "element"))
    return tuple(
        VlanInOtherUse(
            vlan=VlanId(row.vlan),
            element=Name(row.element),
            name=row.name,
            ports=_parse_ports(row),
            since=row.since,
            read_at=read_at,
            cluster=clusters.get(row.vlan),
        )
        for row, read_at in found
        if row.vlan in pool or row.vlan in clusters
    )


def _read_claiming_clusters(unit: Unit, site: str) -> Mapping[int, ClusterKey]:
    rows = select(ClaimRow.vlan, ClusterRow.key).join(ClusterRow, ClusterRow.id == ClaimRow.cluster_id)
    return {vlan: ClusterKey(key) for vlan, key in unit.session.execute(rows.where(ClaimRow.site == site))}


def _read_rows(unit: Unit, element: str) -> list[ForeignVlanRow]:
    return list(unit.session.scalars(_READ_FOREIGN, {"on": element}))


def _make_row(unit: Unit, row: ElementRow, use: ForeignVlan) -> ForeignVlanRow:
    return ForeignVlanRow(
        element=row.name, vlan=use.vlan, site=row.site, name=use.name, ports=json.dumps(use.ports), since=unit.now
    )


def _delete_rows(unit: Unit, rows: Iterable[ForeignVlanRow]) -> None:
    """Delete rows. A VLAN ID becomes free if no other row of the site contains it."""
    deleted: dict[str, set[int]] = {}
    for row in rows:
        unit.session.execute(
            delete(ForeignVlanRow).where(ForeignVlanRow.element == row.element, ForeignVlanRow.vlan == row.vlan)
        )
        record_audit(unit, "vlan_included", element=row.element, why=f"VLAN {row.vlan} is no longer in other use there")
        deleted.setdefault(row.site, set()).add(row.vlan)
    unit.session.flush()
    for site, vlans in deleted.items():
        include_vlans(unit, site, VlanSet(vlans) - read_foreign_vlans(unit, [site]).get(site, VlanSet()))


def _parse_ports(row: ForeignVlanRow) -> tuple[PortName, ...]:
    return tuple(PortName(port) for port in json.loads(row.ports))
