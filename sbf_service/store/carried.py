"""What a device was last seen to carry, as the database keeps it."""

from pydantic import TypeAdapter

from sbf_service.store.tables import ElementRow
from virtcloud.model.device import DeviceCarried
from virtcloud.model.edge import Circuits, EdgeCarried
from virtcloud.model.element import ElementKind
from virtcloud.model.wanted import PortVlans

_PORTS = TypeAdapter(PortVlans)
_CIRCUITS = TypeAdapter(Circuits)


def ports_carried(row: ElementRow) -> PortVlans | None:
    """Read what a switch's ports carry; nothing when it was never read, and for other elements."""
    if row.carried is None or row.kind != ElementKind.SWITCH:
        return None
    return _PORTS.validate_json(row.carried)


def circuits_carried(row: ElementRow) -> Circuits | None:
    """Read an edge's circuits; nothing when it was never read, and for other elements."""
    if row.carried is None or row.kind != ElementKind.EDGE:
        return None
    return _CIRCUITS.validate_json(row.carried)


def keep_carried(row: ElementRow, carried: DeviceCarried) -> None:
    """Keep it. An edge that is confirmed has no circuit that is not whole."""
    if isinstance(carried, EdgeCarried):
        row.carried = _CIRCUITS.dump_json(carried.circuits).decode()
    else:
        row.carried = _PORTS.dump_json(carried.ports).decode()
