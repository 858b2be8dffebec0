"""The times of the last events of the whole service, such as the last backup. The metrics show them."""

from datetime import datetime

from sbf_service.store.service_tables import ServiceTimeRow
from sbf_service.store.unit_of_work import Unit

BACKUP_TIME = "backup"


def read_service_time(unit: Unit, name: str) -> datetime | None:
    """Return the time of the last event ``name``, or None if it never happened."""
    row = unit.session.get(ServiceTimeRow, name)
    return None if row is None else row.at


def record_service_time(unit: Unit, name: str, at: datetime) -> None:
    """Record the time of an event. An earlier time than the recorded time has no effect."""
    row = unit.session.get(ServiceTimeRow, name)
    if row is None:
        unit.session.add(ServiceTimeRow(name=name, at=at))
    else:
        row.at = max(row.at, at)
