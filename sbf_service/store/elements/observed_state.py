"""Pending saves, and the observed state of switches and edges at the last save.

SBF records a pending save before it sends a change to a device, and deletes the record after a successful save. SBF
confirms a revision only after the save.
"""

from datetime import timedelta

from pydantic import TypeAdapter
from sqlalchemy import select

from sbf_service.domain.wanted import find_edge_transports
from sbf_service.store.clusters.cluster_queries import UNSETTLED, is_unsettled_on
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.edge import Circuits, DeviceObserved, EdgeObserved
from virtcloud.model.element import ElementKind
from virtcloud.model.switch_state import PortVlans
from virtcloud.model.topology import Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name

_PORTS = TypeAdapter(PortVlans)
_CIRCUITS = TypeAdapter(Circuits)


def parse_observed_ports(row: ElementRow) -> PortVlans | None:
    """Return the recorded VLANs of a switch's ports, or None if no state is recorded or the element is no switch."""
    if row.carried is None or row.kind != ElementKind.SWITCH:
        return None
    return _PORTS.validate_json(row.carried)


def parse_observed_circuits(row: ElementRow) -> Circuits | None:
    """Return the recorded circuits of an edge, or None if no state is recorded or the element is no edge."""
    if row.carried is None or row.kind != ElementKind.EDGE:
        return None
    return _CIRCUITS.validate_json(row.carried)


def list_saved_items(row: ElementRow) -> frozenset[object]:
    """Return a device's last verified startup configuration as items of :func:`list_observed_items`."""
    return _list_port_vlans(parse_observed_ports(row) or {}) | frozenset(parse_observed_circuits(row) or ())


def list_observed_items(observed: DeviceObserved) -> frozenset[object]:
    """Return an observed state as a set of comparable items.

    The items are an edge's circuits, or a switch's pairs of port and VLAN ID.
    """
    return frozenset(observed.circuits) if isinstance(observed, EdgeObserved) else _list_port_vlans(observed.ports)


def _list_port_vlans(ports: PortVlans) -> frozenset[object]:
    return frozenset((port, vlan) for port, vlans in ports.items() for vlan in vlans)


def record_observed(row: ElementRow, observed: DeviceObserved) -> None:
    """Record the VLANs of a switch's ports, or the complete circuits of an edge.

    SBF confirms no revision while an edge has incomplete circuits.
    """
    if isinstance(observed, EdgeObserved):
        row.carried = _CIRCUITS.dump_json(observed.circuits).decode()
    else:
        row.carried = _PORTS.dump_json(observed.ports).decode()


FIRST_SAVE_PAUSE = timedelta(seconds=5)
MAX_SAVE_PAUSE = timedelta(minutes=5)
"""The maximum pause after a failed save.

The pause doubles with each failure, up to this maximum, because each save wears the device's flash memory.
"""


def record_pending_save(unit: Unit, name: str) -> None:
    """Record a pending save. Call this before the device's running configuration changes."""
    row = require_element(unit, name)
    row.unsaved_since = row.unsaved_since or unit.now


def record_saved(unit: Unit, row: ElementRow, observed: DeviceObserved) -> None:
    """Record that the startup configuration contains the observed state."""
    row.unsaved_since = row.save_after = None
    row.failed_saves = 0
    record_observed(row, observed)
    row.carried_at = unit.now


def record_failed_save(unit: Unit, name: str) -> None:
    """Record a save that failed or was not verified."""
    row = require_element(unit, name)
    row.unsaved_since = row.unsaved_since or unit.now
    row.failed_saves += 1
    row.save_after = unit.now + compute_save_pause(row.failed_saves)
    unit.session.flush()


def is_save_allowed(unit: Unit, row: ElementRow) -> bool:
    """Return whether the pause after a failed save is over."""
    return row.save_after is None or unit.now >= row.save_after


def compute_save_pause(failures: int) -> timedelta:
    """Return the pause after ``failures`` consecutive failed saves."""
    return min(MAX_SAVE_PAUSE, FIRST_SAVE_PAUSE * (1 << min(failures - 1, 20)))


def read_edge_transports(unit: Unit, topology: Topology, edge: Name) -> tuple[Transport, ...]:
    """Return the transports on which an edge can have circuits.

    These are the transports with provider edges of:

    - the edge's attachments in the topology
    - the edge's recorded circuits
    - the clusters on the edge whose state can still change
    """
    attached = {transport.name for transport in find_edge_transports(topology, edge)}
    circuits = parse_observed_circuits(require_element(unit, edge)) or ()
    clusters = select(ClusterRow.transport).where(UNSETTLED, is_unsettled_on(edge))
    names = attached | {circuit.transport for circuit in circuits} | set(unit.session.scalars(clusters))
    return tuple(transport for transport in topology.transports if transport.on_edges and transport.name in names)
