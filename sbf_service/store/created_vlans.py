"""Which VLANs SBF created on which element, so that it deletes these and no others (docs/decisions/0038).

A row is written in the transaction that announces a change, before the device receives it: after a crash in between
there is a row without a VLAN, never a VLAN of SBF's without its row. It goes once the device was read without the VLAN.
"""

from collections.abc import Iterable

from sqlalchemy import delete, insert, select

from sbf_service.store.session import Unit
from sbf_service.store.tables import Base, CreatedVlanRow
from virtcloud.model.vlans import VlanSet

_CREATED = Base.metadata.tables[CreatedVlanRow.__tablename__]


def created_on(unit: Unit, element: str) -> VlanSet:
    """Return the VLAN IDs that SBF recorded as its own on an element."""
    return VlanSet(unit.connection.execute(select(_CREATED.c.vlan).where(_CREATED.c.element == element)).scalars())


def record_created(unit: Unit, element: str, vlans: Iterable[int]) -> None:
    """Record VLAN IDs as SBF's own on an element; idempotent."""
    new = VlanSet(vlans) - created_on(unit, element)
    if new:
        rows = [{"element": element, "vlan": vlan, "created_at": unit.now} for vlan in new]
        unit.connection.execute(insert(_CREATED), rows)


def replace_created(unit: Unit, element: str, vlans: VlanSet) -> None:
    """Make ``vlans`` the VLAN IDs that are SBF's own on an element; idempotent."""
    if gone := created_on(unit, element) - vlans:
        unit.connection.execute(
            delete(_CREATED).where(_CREATED.c.element == element, _CREATED.c.vlan.in_(sorted(gone)))
        )
    record_created(unit, element, vlans)
