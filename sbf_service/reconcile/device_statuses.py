"""The database queries of the worker scheduler.

Tests can replace the database by another :class:`DeviceStatuses`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import bindparam, or_, select, union

from sbf_service.domain.due_elements import DeviceStatus, DueDevices
from sbf_service.store.elements.leases import release_leases_of
from sbf_service.store.store import Store
from sbf_service.store.tables.columns import NAME_TYPE, equals_any, split_ids
from sbf_service.store.tables.tables import IS_RECONCILED, ElementRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element import Device, Element
from virtcloud.model.values import Name

_IS_DEVICE = equals_any(ElementRow.kind, DEVICE_KINDS)
_DEVICES = select(
    ElementRow.name,
    ElementRow.wanted_revision,
    ElementRow.confirmed_revision,
    ElementRow.checked_at,
    ElementRow.reachable,
    ElementRow.lease_until,
    ElementRow.lease_holder,
).where(IS_RECONCILED, _IS_DEVICE)
"""Selects columns of switches and edges.

The observed state is omitted, because its values are long and the query runs after every change.
"""
_DUE_DEVICES = union(
    _DEVICES.where(or_(ElementRow.confirmed_revision < ElementRow.wanted_revision, ElementRow.reachable.is_(False))),
    _DEVICES.where(ElementRow.checked_at.is_(None)),
    _DEVICES.where(ElementRow.checked_at <= bindparam("oldest")),
    _DEVICES.where(ElementRow.checked_at > bindparam("latest")),
)
"""Selects the switches and edges that may be due.

A device that was last read at ``oldest`` or earlier, or later than ``latest``, is due. Each part of the union uses an
index, so other devices take no time.
"""
_IS_NAMED = ElementRow.name.in_(bindparam("names", type_=NAME_TYPE, expanding=True))
_NAMED_DEVICES = _DEVICES.where(_IS_NAMED)
_FIND_KNOWN = select(ElementRow.name).where(IS_RECONCILED, _IS_DEVICE, _IS_NAMED)


class DeviceStatuses(Protocol):
    """The queries and changes of the worker scheduler."""

    def read(self, holder: str, due: DueDevices) -> tuple[datetime, list[DeviceStatus]]:
        """Return the database's time, and the statuses of the switches and edges that match ``due``.

        The result may contain other devices, too. ``leased``: a replica other than ``holder`` has the lease.
        """

    def find_removed(self, names: Collection[Name]) -> set[Name]:
        """Return the names in ``names`` that do not belong to a switch or edge that SBF reconciles."""

    def release_leases(self, holder: str) -> None:
        """Release all leases of replica ``holder``, which restarted.

        Late writes of its previous process then fail.
        """


@dataclass(frozen=True, slots=True)
class StoreDeviceStatuses:
    """The transactions of the worker scheduler on the database."""

    store: Store

    def read(self, holder: str, due: DueDevices) -> tuple[datetime, list[DeviceStatus]]:
        """Return the database's time, and the statuses of the switches and edges that match ``due``."""
        with self.store.read() as unit:
            return unit.now, read_device_statuses(unit, holder, due)

    def find_removed(self, names: Collection[Name]) -> set[Name]:
        """Return the names in ``names`` that do not belong to a switch or edge that SBF reconciles."""
        if not names:
            return set()
        with self.store.read() as unit:
            known = {
                name
                for group in split_ids(sorted(names))
                for name in unit.connection.execute(_FIND_KNOWN, {"names": group}).scalars()
            }
        return set(names) - known

    def release_leases(self, holder: str) -> None:
        """Release all leases of replica ``holder``, which restarted."""
        with self.store.change() as unit:
            release_leases_of(unit, holder)


def read_device_statuses(unit: Unit, holder: str, due: DueDevices | None = None) -> list[DeviceStatus]:
    """Return the statuses of the switches and edges that match ``due``, or of all, ordered by name.

    ``leased``: a replica other than ``holder`` has the lease.
    """
    rows = _read_devices(unit, due)
    elements = read_topology(unit).elements if rows else {}
    return [
        DeviceStatus(
            name=Name(row.name),
            wanted=row.wanted_revision,
            confirmed=row.confirmed_revision,
            checked_at=row.checked_at,
            leased=row.lease_until is not None and row.lease_until >= unit.now and row.lease_holder != holder,
            platform=_platform_of(elements.get(Name(row.name))),
            reachable=row.reachable,
        )
        for _, row in sorted(rows.items())
    ]


def _read_devices(unit: Unit, due: DueDevices | None) -> dict[str, Any]:
    if due is None:
        return {row.name: row for row in unit.connection.execute(_DEVICES)}
    rows: dict[str, Any] = {}
    if not due.only_names:
        times = {"oldest": due.find_oldest_reading(unit.now), "latest": due.find_latest_reading(unit.now)}
        rows = {row.name: row for row in unit.connection.execute(_DUE_DEVICES, times)}
    for group in split_ids(sorted(due.names - rows.keys())):
        rows |= {row.name: row for row in unit.connection.execute(_NAMED_DEVICES, {"names": group})}
    return rows


def _platform_of(element: Element | None) -> str:
    return element.platform if isinstance(element, Device) else ""
