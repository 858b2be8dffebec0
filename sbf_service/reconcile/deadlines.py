"""What time alone changes: deadlines, leases of clusters, drain deadlines, agents that fell silent."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from sbf_service.settings import ServiceTiming
from sbf_service.store.elements import record_error
from sbf_service.store.leases import find_stale_agents
from sbf_service.store.transitions import apply_due_transitions, find_due_transitions
from sbf_service.store.unit_of_work import Store
from virtcloud.model.values import Name


class DeadlineTransactions(Protocol):
    """What the sweep reads and writes; each method is one transaction."""

    def find_overdue(self, silence: timedelta) -> tuple[bool, list[Name]]:
        """Return whether a cluster's move is due, and the agents that did not ask for ``silence``."""

    def settle(self) -> None:
        """Make every move that is due; may be repeated."""

    def record_silence(self, name: Name, silence: timedelta, message: str) -> None:
        """Record an agent as unreachable, unless it has asked since."""


@dataclass(frozen=True, slots=True)
class StoreDeadlineTransactions:
    """The sweep's transactions on the database."""

    store: Store
    timing: ServiceTiming

    def find_overdue(self, silence: timedelta) -> tuple[bool, list[Name]]:
        """Return whether a cluster's move is due, and the agents that did not ask for ``silence``."""
        with self.store.read() as unit:
            return bool(find_due_transitions(unit, self.timing.drain)), find_stale_agents(unit, silence)

    def settle(self) -> None:
        """Make every move that is due; may be repeated."""
        with self.store.change() as unit:
            apply_due_transitions(unit, self.timing.drain)

    def record_silence(self, name: Name, silence: timedelta, message: str) -> None:
        """Record an agent as unreachable, unless it has asked since."""
        with self.store.change() as unit:
            if name in find_stale_agents(unit, silence):
                record_error(unit, name, message, self.timing.drain, reachable=False)


@dataclass
class DeadlineSweep:
    """Looks, and writes only when there is something to change."""

    deadlines: DeadlineTransactions
    timing: ServiceTiming
    clock: Callable[[], float] = time.monotonic
    _started: float | None = field(default=None)

    def run(self) -> None:
        """Make every move that is due; may be repeated."""
        silence = timedelta(seconds=self.timing.agent_silence)
        due, silent = self.deadlines.find_overdue(silence)
        for name in silent if self._has_listened() else ():
            message = f"its agent has not asked for {self.timing.agent_silence:g} s: look whether it runs"
            self.deadlines.record_silence(name, silence, message)
        if due:
            self.deadlines.settle()

    def _has_listened(self) -> bool:
        """Return whether this service has run for as long as an agent may be silent: agents may have asked nobody."""
        if self._started is None:
            self._started = self.clock()
        return self.clock() - self._started >= self.timing.agent_silence
