"""Which devices are busy, which wait after a failure, and which are next. No I/O; the converger locks it."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sbf_service.converge.choose import Candidate, Retry, after_failure, choose
from sbf_service.converge.worker import Outcome
from sbf_service.settings import Settings
from virtcloud.model.values import Name


@dataclass
class Backlog:
    """One replica's work. ``clock`` is monotonic, in seconds; ``jitter`` is a random number from 0 to 1.

    ``since`` is the database's time of the first look: whatever was read before that is read again, since a device may
    have restarted while no replica had a session with it.
    """

    settings: Settings
    clock: Callable[[], float]
    jitter: Callable[[], float]
    busy: set[Name] = field(default_factory=set)
    retries: dict[Name, Retry] = field(default_factory=dict)
    since: datetime | None = None

    def take(self, found: Iterable[Candidate], now: datetime, lost: Collection[Name]) -> list[Candidate]:
        """Choose the devices to converge now and mark them busy; those that ended their session are due at once."""
        known = {one.name: one for one in found}
        self.since = self.since or now
        chosen = choose(
            [replace(one, checked_at=None) if one.name in lost else one for one in known.values()],
            now=now,
            clock=self.clock(),
            drift_interval=timedelta(seconds=self.settings.timing.drift_interval),
            busy=self.busy,
            retries=self.retries,
            room=self.settings.workers - len(self.busy),
            since=self.since,
        )
        self.busy.update(chosen)
        return [known[name] for name in chosen]

    def remember(self, one: Candidate, outcome: Outcome) -> None:
        """Record what came of a try; a device that failed waits before the next one."""
        before = self.retries.pop(one.name, None)
        if outcome is Outcome.FAILED:
            pause = (self.settings.timing.retry_first, self.settings.timing.retry_most)
            self.retries[one.name] = after_failure(before, one.wanted, self.clock(), pause, self.jitter())

    def waits(self) -> list[float]:
        """Return in how many seconds each device that waits is due."""
        waits = [retry.not_before - self.clock() for name, retry in self.retries.items() if name not in self.busy]
        return [wait for wait in waits if wait > 0]
