"""Which devices may have an unsaved running configuration (DESIGN.md §3: persistence is part of confirmation).

A pending save is recorded in the transaction that announces a change, before the device receives it. It stays recorded
until the device printed that it saved, whatever happens to the service, the session or the device meanwhile.
"""

from datetime import timedelta

from sbf_service.store.carried import keep_carried
from sbf_service.store.revisions import element_row
from sbf_service.store.session import Unit
from sbf_service.store.tables import ElementRow
from virtcloud.model.device import DeviceCarried

FIRST_PAUSE = timedelta(seconds=5)
LONGEST_PAUSE = timedelta(minutes=5)
"""A failed save may have written the flash: flash wears out, and whatever is in the way often stays there."""


def expect_save(unit: Unit, name: str) -> None:
    """Record that a device is about to be changed, so that its running configuration must be saved."""
    row = element_row(unit, name)
    row.unsaved_since = row.unsaved_since or unit.now


def record_saved(unit: Unit, row: ElementRow, carried: DeviceCarried) -> None:
    """Record that the startup configuration has what was read."""
    row.unsaved_since = row.save_after = None
    row.failed_saves = 0
    keep_carried(row, carried)
    row.carried_at = unit.now
    unit.session.flush()


def record_failed_save(unit: Unit, name: str) -> None:
    """Record a save that failed or was not confirmed; the next one waits, twice as long after each failure."""
    row = element_row(unit, name)
    row.unsaved_since = row.unsaved_since or unit.now
    row.failed_saves += 1
    row.save_after = unit.now + pause_after(row.failed_saves)
    unit.session.flush()


def may_save(unit: Unit, row: ElementRow) -> bool:
    """Return whether no failed save asks for a pause now."""
    return row.save_after is None or unit.now >= row.save_after


def pause_after(failures: int) -> timedelta:
    """Return how long to wait after so many failed saves in a row."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * (1 << min(failures - 1, 20)))
