"""Managed ports of switches, and the original use of each port.

The original use is the port's configuration before SBF first configured the port.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, bindparam, select

from sbf_service.store.elements.observed_state import parse_observed_ports
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.elements.unchecked_elements import releasing_networks
from sbf_service.store.tables.tables import ElementRow, PortRow
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.element import Element, Switch
from virtcloud.model.errors import BadInput, Conflict, Unsafe
from virtcloud.model.message_text import printable
from virtcloud.model.port_use import PortRelease, PortUse
from virtcloud.model.switch_state import SwitchDifference, SwitchObserved, SwitchWanted
from virtcloud.model.values import PortName

_READ_LEAVING = select(ElementRow.leaving).where(ElementRow.name == bindparam("element"))
_READ_PORTS = select(PortRow).where(PortRow.element == bindparam("element")).order_by(PortRow.port)


@dataclass(frozen=True, slots=True)
class PortRecord:
    """The record of a port; see :class:`~sbf_service.store.tables.tables.PortRow`."""

    port: PortName
    before: PortUse | None
    taken: bool
    shut: bool
    leaving: bool

    def is_returned(self, wanted: SwitchWanted) -> bool:
        """Return whether SBF must restore the original use now: the port was released, and no cluster needs it."""
        return self.leaving and not wanted.ports.get(self.port)


def read_port_records(unit: Unit, element: str) -> Mapping[PortName, PortRecord]:
    """Return the records of a switch's ports, by port name."""
    return {PortName(row.port): _make_record(row) for row in read_port_rows(unit, element)}


def read_port_rows(unit: Unit, element: str) -> list[PortRow]:
    """Return the rows of a switch's ports, sorted by name."""
    return list(unit.session.scalars(_READ_PORTS, {"element": element}))


def record_change(unit: Unit, element: str, adopted: Collection[PortName], difference: SwitchDifference) -> None:
    """Record the effects of a change on ports, before the switch receives the change.

    Record the original uses of newly configured ports, and the access ports that the change may shut down. ``adopted``
    contains the ports that were adopted when the difference was computed. Raise Unsafe if an adopted port was released
    since then.
    """
    rows = {row.port: row for row in read_port_rows(unit, element)}
    for port in difference.take.keys() & set(adopted) - rows.keys():
        raise Unsafe(f"switch {element}, port {port}: an administrator released the port in the meantime")
    for port, use in difference.take.items():
        row = rows[port] = rows.get(port) or add_port_row(unit, element, port)
        row.use_before, row.taken = use.model_dump_json(), True
    for port in {*difference.access, *difference.close} & rows.keys():
        rows[port].shut = rows[port].shut or port in difference.access


def record_reading(unit: Unit, element: str, returned: Collection[PortName], observed: SwitchObserved) -> None:
    """Delete the records of those ports in ``returned`` that have their original use again in ``observed``.

    Record for the other ports with VLANs in ``observed`` that SBF has not shut them down.
    """
    for row in read_port_rows(unit, element):
        port = PortName(row.port)
        if row.leaving and port in returned and port not in observed.astray:
            unit.session.delete(row)
        elif row.shut and observed.ports.get(port):
            row.shut = False
    _clear_removed_switch(unit, element)


def add_port_row(unit: Unit, element: str, port: PortName) -> PortRow:
    """Add a row for a port."""
    row = PortRow(element=element, port=port, taken=False, shut=False, leaving=False)
    unit.session.add(row)
    return row


def _make_record(row: PortRow) -> PortRecord:
    before = None if row.use_before is None else PortUse.model_validate_json(row.use_before)
    return PortRecord(PortName(row.port), before, row.taken, row.shut, row.leaving)


def adopt_ports(unit: Unit, switch: Switch, uses: Mapping[PortName, PortUse]) -> None:
    """Record that SBF may configure the ports in ``uses``, whatever their configuration. Idempotent.

    ``uses`` maps each port to its current use. Raise BadInput for an unmanaged port.
    """
    _check_ports_managed(switch, uses)
    rows = {row.port: row for row in read_port_rows(unit, switch.name)}
    for port, use in uses.items():
        row = rows.get(port) or add_port_row(unit, switch.name, port)
        row.leaving = False
        if not row.taken:
            row.use_before, row.adopted_by, row.adopted_at = use.model_dump_json(), unit.who, unit.now
            record_audit(unit, "port_adopted", element=switch.name, why=printable(f"port {port}: {use}"))
    increment_revisions(unit, [switch.name])


def release_ports(unit: Unit, switch: Switch, wanted: SwitchWanted, release: PortRelease) -> None:
    """Release ports. Idempotent. A worker then restores the original uses, unless ``release.forget``.

    Raise BadInput for an unknown port. Raise Conflict for a port that a cluster needs or that carries a recorded VLAN,
    and, unless ``release.forget``, for an access port.
    """
    rows = {row.port: row for row in read_port_rows(unit, switch.name)}
    _check_ports_managed(switch, set(release.ports) - rows.keys())
    carried = parse_observed_ports(unit.session.get_one(ElementRow, switch.name)) or {}
    for port in release.ports:
        if vlans := wanted.ports.get(port) or carried.get(port):
            raise Conflict(f"port {port} of {switch.name} carries VLAN {vlans} of a cluster: end the cluster first")
        if port in wanted.access and not release.forget:
            raise Conflict(
                f"port {port} of {switch.name} is an access port: remove the port's link from the topology first"
            )
        if row := rows.get(port):
            _release_port(unit, row, forget=release.forget)
    _clear_removed_switch(unit, switch.name)
    increment_revisions(unit, [switch.name])


def update_described_ports(unit: Unit, switch: Switch, former: Element | None, *, is_other: bool) -> None:
    """Release the ports that a switch's new description lacks.

    Cancel the pending release of ports that the new description contains again. If ``is_other``, delete all records:
    the name may now denote another device.
    """
    if former == switch:
        return
    former_ports = () if former is None else former.ports
    for row in read_port_rows(unit, switch.name):
        if is_other:
            unit.session.delete(row)
        elif row.port not in switch.ports:
            _release_port(unit, row)
        elif row.port not in former_ports:
            row.leaving = False


def release_removed_switch(unit: Unit, row: ElementRow, switch: Switch) -> None:
    """Release the ports of a removed switch, and store its description until all original uses are restored."""
    for port in read_port_rows(unit, switch.name):
        _release_port(unit, port)
    unit.session.flush()
    if read_port_rows(unit, switch.name):
        row.leaving = switch.model_dump_json()
        row.wanted_revision += 1
        unit.changed.add(f"element:{switch.name}")


def _clear_removed_switch(unit: Unit, name: str) -> None:
    """Delete the stored description of a removed switch, if all its ports are restored.

    SBF then no longer reconciles the switch. The switch is no longer a reason to hold networks
    (``unchecked_elements.py``).
    """
    unit.session.flush()
    if unit.connection.execute(_READ_LEAVING, {"element": name}).scalar_one() is None:
        return
    if not read_port_rows(unit, name):
        with releasing_networks(unit):
            unit.session.get_one(ElementRow, name).leaving = None


def parse_removed_switch(row: ElementRow | Row[Any]) -> Switch | None:
    """Return the description of a removed switch with ports to restore, or None for any other element."""
    return None if row.leaving is None else Switch.model_validate_json(row.leaving)


def _release_port(unit: Unit, row: PortRow, *, forget: bool = False) -> None:
    """Mark a port as leaving, so that a worker restores its original use.

    Delete the row instead if SBF never configured the port, if no original use is recorded, or if ``forget``.
    """
    before = _make_record(row).before
    if forget or not row.taken or before is None:
        unit.session.delete(row)
        why = f"port {row.port}: the original use is not restored"
    else:
        row.leaving = True
        why = f"port {row.port}: restoring {before}"
    record_audit(unit, "port_released", element=row.element, why=why)


def _check_ports_managed(switch: Switch, ports: Iterable[PortName]) -> None:
    for port in ports:
        if port not in switch.ports:
            known = ", ".join(switch.ports)
            raise BadInput(f"expected a managed port of switch {switch.name} ({known}), got {port}")
