"""Due devices: the choice of the devices to reconcile now, and the time of the retry after a failure. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from virtcloud.model.values import Name


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device's revisions and state in the database.

    ``leased`` is true while another replica holds the device's lease. ``reachable`` is false after a failed reading.
    ``platform`` comes from the topology.
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
    """The retry of a device that failed: the revision, the number of consecutive failures, and the earliest time.

    ``not_before`` is in seconds on the caller's monotonic clock.
    """

    revision: int
    failures: int
    not_before: float


def is_due(one: DeviceStatus, now: datetime, drift_interval: timedelta, since: datetime | None = None) -> bool:
    """Return whether a device must be reconciled.

    A device is due when it was never read, when it is unreachable, when it has not confirmed the wanted revision, or
    when its last reading is as old as the drift interval or older than ``since``.
    """
    if one.checked_at is None or not one.reachable or one.confirmed < one.wanted:
        return True
    return now - one.checked_at >= drift_interval or (since is not None and one.checked_at < since)


def choose_due_devices(  # noqa: PLR0913 - the choice depends on all of them
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
    """Choose at most ``room`` devices to reconcile now. A device that failed stays due.

    Devices that have not confirmed their wanted revision come first.
    """
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
    """Return whether a device that failed must still wait for its retry. A new revision ends the wait."""
    return retry is not None and retry.revision == one.wanted and clock < retry.not_before


def compute_retry(
    before: RetryState | None, revision: int, clock: float, pause: tuple[float, float], jitter: float
) -> RetryState:
    """Return the time of the next retry. The pause doubles with each failure, within the limits ``pause`` (seconds).

    ``jitter`` from 0 to 1 shortens the pause by up to half, so that devices that failed at the same time are not all
    retried at the same time.
    """
    first, most = pause
    failures = 1 + (before.failures if before else 0)
    length = min(most, first * 2.0 ** min(failures - 1, 30))
    return RetryState(revision, failures, clock + length * (1 - jitter / 2))
