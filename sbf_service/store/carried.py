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


def saved_items(row: ElementRow) -> frozenset[object]:
    """Return what a device's startup configuration was last verified to have, as :func:`carried_items` does."""
    return _items(ports_carried(row) or {}) | frozenset(circuits_carried(row) or ())


def carried_items(carried: DeviceCarried) -> frozenset[object]:
    """Return what a device carries, comparable with what it carried before: circuits, or pairs of port and VLAN ID."""
    return frozenset(carried.circuits) if isinstance(carried, EdgeCarried) else _items(carried.ports)


def _items(ports: PortVlans) -> frozenset[object]:
    return frozenset((port, vlan) for port, vlans in ports.items() for vlan in vlans)


def keep_carried(row: ElementRow, carried: DeviceCarried) -> None:
    """Keep it. An edge that is confirmed has no circuit that is not whole."""
    if isinstance(carried, EdgeCarried):
        row.carried = _CIRCUITS.dump_json(carried.circuits).decode()
    else:
        row.carried = _PORTS.dump_json(carried.ports).decode()
