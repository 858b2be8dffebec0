"""Which elements to converge now, and when to try again. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from virtcloud.model.values import Name


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device as the database shows it. ``leased`` says that another replica's lease on it runs.

    ``platform`` is what the topology says of it. ``reachable``: the last try to read it did not fail.
    """

    name: Name
    wanted: int
    confirmed: int
    checked_at: datetime | None
    leased: bool = False
    platform: str = ""
    reachable: bool = True


@dataclass(frozen=True, slots=True)
class RetryState:
    """A device that failed: for which revision, how often in a row, and before which moment it is left in peace.

    ``not_before`` is on the caller's clock, in seconds.
    """

    revision: int
    failures: int
    not_before: float


def is_due(one: DeviceStatus, now: datetime, drift_interval: timedelta, since: datetime | None = None) -> bool:
    """Return whether a device is behind, or must be read: it could not be, or was not within the drift interval.

    Nor is a reading from before ``since`` believed.
    """
    if one.checked_at is None or not one.reachable or one.confirmed < one.wanted:
        return True
    return now - one.checked_at >= drift_interval or (since is not None and one.checked_at < since)


def choose_due_devices(  # noqa: PLR0913 - all that the choice depends on
    candidates: Iterable[DeviceStatus],
    *,
    now: datetime,
    clock: float,
    drift_interval: timedelta,
    busy: Collection[Name],
    retries: Mapping[Name, RetryState],
    room: int,
    since: datetime | None = None,
) -> list[Name]:
    """Choose at most ``room`` devices to converge now, those behind first. A device that failed stays due."""
    due = [
        one
        for one in candidates
        if (one.name in retries or is_due(one, now, drift_interval, since))
        and not one.leased
        and one.name not in busy
        and not is_backing_off(one, retries.get(one.name), clock)
    ]
    return [one.name for one in sorted(due, key=lambda one: (one.confirmed >= one.wanted, one.name))[: max(room, 0)]]


def is_backing_off(one: DeviceStatus, retry: RetryState | None, clock: float) -> bool:
    """Say whether a device that failed is still left in peace; a new revision ends that at once."""
    return retry is not None and retry.revision == one.wanted and clock < retry.not_before


def compute_retry(
    before: RetryState | None, revision: int, clock: float, pause: tuple[float, float], jitter: float
) -> RetryState:
    """Say when to try again: twice as long after each failure, from the first of ``pause`` to the most (seconds).

    ``jitter`` from 0 to 1 takes up to half of it off, so that devices that failed together do not come back together.
    """
    first, most = pause
    failures = 1 + (before.failures if before else 0)
    length = min(most, first * 2.0 ** min(failures - 1, 30))
    return RetryState(revision, failures, clock + length * (1 - jitter / 2))
