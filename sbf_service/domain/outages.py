"""Outages of SBF, and how an outage postpones the leases and setup deadlines of clusters. Pure.

An *outage* is a time in which no replica ran the deadline sweep: SBF was stopped or suspended, or its database did not
answer (docs/decisions/0098).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

RECORD_INTERVAL: Final = timedelta(seconds=10)
"""The time between two records of the deadline sweep. SBF may have run for this time after its last record."""
LEASE_GRACE: Final = timedelta(seconds=300)
"""Each lease from before an outage lasts at least this time after the outage.

With the default interval, the reconciliation of jobs has ten rounds in this time to extend leases. After a repeated
outage, a lease can end earlier (:meth:`Outage.postpone_lease`).
"""


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage, with the latest possible time of its beginning.

    ``last_sweep`` is the last record before the outage. ``is_repeated``: the previous outage ended less than
    ``LEASE_GRACE`` before ``last_sweep``, so leases that it postponed may not have ended yet.
    """

    last_sweep: datetime
    ended: datetime
    is_repeated: bool

    @property
    def began(self) -> datetime:
        """The latest possible beginning."""
        return self.last_sweep + RECORD_INTERVAL

    def postpone_lease(self, ends: datetime) -> datetime:
        """Return the new end of a lease whose end ``ends`` is later than ``last_sweep``.

        The lease lasts at least ``LEASE_GRACE`` after the outage. After a repeated outage, the minimum is the time that
        remained when the outage began, if this time is shorter. Repeated outages therefore cannot postpone a lease
        without limit.
        """
        remaining = min(ends - self.began, LEASE_GRACE) if self.is_repeated else LEASE_GRACE
        return max(ends, self.ended + remaining)

    def postpone_deadline(self, deadline: datetime) -> datetime:
        """Return the new setup deadline of a cluster: the deadline's remaining time does not change."""
        return deadline + (self.ended - self.began)


def find_outage(
    last_sweep: datetime | None, previous_end: datetime | None, now: datetime, longest_gap_s: float
) -> Outage | None:
    """Return the outage that ends ``now``, or None if the gap since ``last_sweep`` is at most ``longest_gap_s``.

    ``previous_end`` is the end of the previous outage. ``longest_gap_s`` must be longer than ``RECORD_INTERVAL``.
    Without a record (``last_sweep`` is None), there was no outage.
    """
    if last_sweep is None or (now - last_sweep).total_seconds() <= longest_gap_s:
        return None
    is_repeated = previous_end is not None and timedelta() <= last_sweep - previous_end < LEASE_GRACE
    return Outage(last_sweep, now, is_repeated)
