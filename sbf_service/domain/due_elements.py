"""The choice of due devices, and the time of the retry after a failure. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from virtcloud.model.values import Name


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device's revisions and state in the database.

    ``leased``: another replica holds the device's lease. ``reachable`` is false after a failed reading.
    """

    name: Name
    wanted: int
    confirmed: int
    checked_at: datetime | None
    leased: bool = False
    platform: str = ""
    reachable: bool = True


@dataclass(frozen=True, slots=True)
class DueDevices:
    """The devices that the scheduler selects: all devices in ``names`` and, unless ``only_names``, all due devices.

    A device is due if :func:`is_due` returns true, or if the device was last read before ``read_before``. If
    ``read_before`` is None, as in the scheduler's first round, every device is due.
    """

    drift_interval: timedelta
    read_before: datetime | None = None
    names: frozenset[Name] = frozenset()
    only_names: bool = False

    def find_oldest_reading(self, now: datetime) -> datetime:
        """Return the time at or before which the last reading of a device makes the device due."""
        return max(now - self.drift_interval, self.read_before or now)

    def find_latest_reading(self, now: datetime) -> datetime:
        """Return the time in the future after which the last reading of a device makes the device due."""
        return now + self.drift_interval


@dataclass(frozen=True, slots=True)
class RetryState:
    """The retry of a device after ``failures`` consecutive failures to reconcile ``revision``.

    ``not_before`` is the earliest time of the retry, in seconds on the caller's monotonic clock.
    """

    revision: int
    failures: int
    not_before: float


def is_due(device: DeviceStatus, now: datetime, drift_interval: timedelta, since: datetime | None = None) -> bool:
    """Return whether a device must be reconciled.

    A device is due if it was never read, is unreachable, or has not confirmed the wanted revision. A device is also due
    if its last reading is at least ``drift_interval`` old, or was before ``since``. A reading more than
    ``drift_interval`` in the future counts as old, because the clock may have stepped backwards.
    """
    if device.checked_at is None or not device.reachable or device.confirmed < device.wanted:
        return True
    age = now - device.checked_at
    return age >= drift_interval or age < -drift_interval or (since is not None and device.checked_at < since)


def choose_due_devices(  # noqa: PLR0913 - the choice depends on all parameters
    devices: Iterable[DeviceStatus],
    *,
    now: datetime,
    clock: float,
    drift_interval: timedelta,
    busy: Collection[Name],
    retries: Mapping[Name, RetryState],
    since: datetime | None = None,
) -> list[Name]:
    """Choose the devices to reconcile now, the most urgent first.

    A device in ``retries`` must wait until its pause ends. Devices that are ``busy`` or leased by another replica are
    omitted. ``clock`` is the caller's monotonic clock in seconds.
    """
    due = [
        device
        for device in devices
        if (device.name in retries or is_due(device, now, drift_interval, since))
        and not device.leased
        and device.name not in busy
        and not is_backing_off(device, retries.get(device.name), clock)
    ]
    return [device.name for device in sorted(due, key=find_urgency)]


def find_urgency(device: DeviceStatus) -> tuple[bool, Name]:
    """Return the sort key of a device: devices with an unconfirmed revision come first."""
    return device.confirmed >= device.wanted, device.name


def is_backing_off(device: DeviceStatus, retry: RetryState | None, clock: float) -> bool:
    """Return whether a failed device must still wait for its retry. A new revision ends the wait."""
    return retry is not None and retry.revision == device.wanted and clock < retry.not_before


def compute_retry(
    before: RetryState | None, revision: int, clock: float, pause: tuple[float, float], jitter: float
) -> RetryState:
    """Return the retry after one more failure. The pause doubles with each failure.

    ``pause`` contains the first and the longest pause in seconds. ``jitter`` (0 to 1) shortens the pause by up to half,
    so that simultaneous failures are retried at different times.
    """
    first, longest = pause
    failures = 1 + (before.failures if before else 0)
    length = min(longest, first * 2.0 ** min(failures - 1, 30))
    return RetryState(revision, failures, clock + length * (1 - jitter / 2))
