"""Guests of this host that ended by themselves: the time of the next start, and the message for the owner. Pure.

The agent starts a guest again immediately after its first end. After each further end, the agent waits longer than
after the previous end, but at most `MOST_DELAY_S` seconds. The cluster counts as complete again only when the guest has
run for `GuestRuns.trial` seconds. So repeated ends do not change the cluster's state each time. The agent does not
report the end of a guest as drift, because drift would degrade all clusters of the host.

The agent stores no records of ends on disk, so a restarted agent starts an ended guest immediately.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from virtcloud.agent.difference import digest
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.steps import StartGuest, Step
from virtcloud.model.values import ClusterKey

FIRST_DELAY_S: Final = 5.0
MOST_DELAY_S: Final = 300.0
TRIAL_S: Final = 10.0
"""After its end, a guest must run again for at least this number of seconds before its cluster counts as complete."""
RECOVERED_S: Final = 600.0
"""If a guest has run for this number of seconds, its next end counts as its first end."""


class EndCause(Enum):
    """Why a guest ended, according to the kernel's log."""

    UNKNOWN = "unknown"
    MEMORY_LIMIT = "memory limit"
    HOST_MEMORY = "host memory"


@dataclass(frozen=True, slots=True)
class GuestRuns:
    """The ends of one guest with an unchanged wanted state (``digest``). Times are seconds of the agent's clock.

    ``since`` is the time when the agent first saw the guest run, or None if the guest does not run. ``ends`` is the
    number of ends since the guest last ran for `RECOVERED_S` seconds. ``first_end`` and ``last_end`` are the times of
    the first and the last of these ends. ``cause`` is the cause of the last end.
    """

    step: StartGuest
    digest: str
    since: float | None
    ends: int = 0
    first_end: float = 0.0
    last_end: float = 0.0
    cause: EndCause = EndCause.UNKNOWN

    @property
    def delay(self) -> float:
        """Seconds from the last end to the next start."""
        return min(FIRST_DELAY_S * 2.0 ** min(self.ends - 2, 30), MOST_DELAY_S) if self.ends > 1 else 0.0

    @property
    def trial(self) -> float:
        """Seconds for which the guest must run before its cluster counts as complete."""
        return max(self.delay, TRIAL_S)

    @property
    def due(self) -> float:
        """The time of the next start if the guest does not run, or the time when its trial ends."""
        return self.last_end + self.delay if self.since is None else self.since + self.trial

    def end(self, now: float, cause: EndCause) -> "GuestRuns":
        """Return the record after an end of the guest at the time ``now``."""
        has_recovered = self.since is not None and now - self.since >= RECOVERED_S
        ends, first = (1, now) if has_recovered or not self.ends else (self.ends + 1, self.first_end)
        return replace(self, since=None, ends=ends, first_end=first, last_end=now, cause=cause)

    def describe(self, key: ClusterKey | str) -> str:
        """Return a message for the owner: the cause, the remedy, and the time of the next start."""
        guest = self.step.guest
        times = "" if self.ends == 1 else f" {self.ends} times within {self.last_end - self.first_end:.0f} s"
        memory = f"its memory limit of {guest.memory_mb} MiB"
        causes = {
            EndCause.UNKNOWN: "expected an image whose first program continues to run; read the console: virtcloud "
            f"guest log {key} {guest.name}",
            EndCause.MEMORY_LIMIT: f"the kernel ended its programs at {memory} (out of memory): run less in the guest, "
            "or create the cluster again with more memory for the guest (`--memory`, `memory_mb`)",
            EndCause.HOST_MEMORY: "the kernel ended it because the host had no memory left, although the guest did not "
            f"exceed {memory}: ask the site's administrator to move or limit what else runs on the host",
        }
        again = f"the agent starts the guest again {self.delay:.0f} s after its end"
        runs = f"the guest runs again; the cluster is complete when the guest has run for {self.trial:.0f} s"
        return f"guest {guest.name} ended{times}: {causes[self.cause]}; {again if self.since is None else runs}"


FindCause = Callable[[StartGuest, float], EndCause]
"""A function that returns why a guest ended. The first argument is the step that starts the guest again. The second
argument is a number of seconds: the guest ended at most this number of seconds ago.
"""


class GuestEnds:
    """The records of this host's running guests, and of guests that ended by themselves."""

    def __init__(self, clock: Callable[[], float], find_cause: FindCause) -> None:
        """Start without records."""
        self._clock = clock
        self._find_cause = find_cause
        self._observed_at = clock()
        """The time of the last call of `observe` that recorded running guests."""
        self._running: dict[tuple[str, str], tuple[str, float]] = {}
        """The digest of each running guest, and when the agent first saw the guest run, by network ID and name."""
        self._ended: dict[tuple[str, str], GuestRuns] = {}
        """The records of guests that ended at least once, by network ID and name. Some of these guests run again."""

    def observe(self, steps: Iterable[Step], observed: ObservedHost, started: Sequence[StartGuest] = ()) -> None:
        """Record the running guests, and the guests that ended since the previous call.

        ``steps`` are all steps to the wanted state. A guest ended by itself if it ran at the previous call, does not
        run now, and one of ``steps`` starts it. ``started`` are the starts that succeeded since the previous call. If a
        hypervisor does not answer, record nothing: its guests may be running.
        """
        if observed.hypervisor_errors:
            return
        now = self._clock()
        for step in started:
            self._running[_key(step)] = digest(step.segment, step.guest), now
        former, running = (
            self._running,
            {(one.cluster, one.guest): one.digest for one in observed.guests if one.running},
        )
        self._running = {
            key: former[key] if key in former and former[key][0] == found else (found, now)
            for key, found in running.items()
        }
        starts = {_key(step): step for step in steps if isinstance(step, StartGuest)}
        self._ended = dict(self._update(former, starts, now))
        self._observed_at = now

    def _update(
        self,
        former: Mapping[tuple[str, str], tuple[str, float]],
        starts: Mapping[tuple[str, str], StartGuest],
        now: float,
    ) -> Iterator[tuple[tuple[str, str], GuestRuns]]:
        for key, step in starts.items():
            wanted, runs = digest(step.segment, step.guest), self._ended.get(key)
            if key in former and former[key][0] == wanted and key not in self._running:
                known = runs if runs is not None and runs.digest == wanted else GuestRuns(step, wanted, None)
                cause = self._find_cause(step, now - self._observed_at)
                yield key, replace(known, step=step, since=former[key][1]).end(now, cause)
            elif runs is not None and runs.digest == wanted:
                yield key, replace(runs, step=step, since=None)
        for key, runs in self._ended.items():
            found, since = self._running.get(key, ("", now))
            if key not in starts and found == runs.digest and now - since < RECOVERED_S:
                yield key, replace(runs, since=since)

    def select_due(self, steps: Iterable[Step]) -> list[Step]:
        """Return all steps except the starts of ended guests that must still wait."""
        now = self._clock()
        waiting = {key for key, runs in self._ended.items() if runs.since is None and now < runs.due}
        return [step for step in steps if not (isinstance(step, StartGuest) and _key(step) in waiting)]

    def has_ended(self, step: Step) -> bool:
        """Return whether a step starts a guest that ended by itself."""
        return isinstance(step, StartGuest) and _key(step) in self._ended

    def describe(self, keys: Mapping[str, ClusterKey], unstarted: Container[str] = ()) -> dict[str, str]:
        """Return the messages about ended guests by cluster ID. Omit guests whose trial has ended.

        ``keys`` are the keys of clusters by cluster ID. ``unstarted`` are the clusters with a failed start of a guest.
        Of these clusters, also omit guests whose next start was due: the error of the start suffices.
        """
        now, found = self._clock(), dict[str, str]()
        for runs in self._ended.values():
            cluster = runs.step.cluster
            if now < runs.due or (runs.since is None and cluster not in unstarted):
                found[cluster] = "; ".join(
                    filter(None, (found.get(cluster), runs.describe(keys.get(cluster, cluster))))
                )
        return found

    def seconds_until_due(self) -> float | None:
        """Return the seconds until the next start of a guest or the next end of a trial.

        Return None if there is no such event.
        """
        now = self._clock()
        due = [runs.due for runs in self._ended.values() if runs.since is None or now < runs.due]
        return max(0.0, min(due) - now) if due else None


def _key(step: StartGuest) -> tuple[str, str]:
    return step.segment.id, step.guest.name
