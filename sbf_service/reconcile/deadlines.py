"""The deadline sweep: applies the transitions of clusters whose deadline has passed, and records stale agents."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from sbf_service.settings import ServiceTiming
from sbf_service.store.error_reports import record_error
from sbf_service.store.leases import find_stale_agents
from sbf_service.store.transitions import apply_due_transitions, find_due_transitions
from sbf_service.store.unit_of_work import Store
from virtcloud.model.values import Name


class DeadlineTransactions(Protocol):
    """The sweep's queries and changes; each method is one transaction."""

    def find_overdue(self, silence: timedelta) -> tuple[bool, list[Name]]:
        """Return whether a transition of a cluster is due, and the agents that sent no heartbeat for ``silence``."""

    def apply_transitions(self) -> None:
        """Apply all due transitions; idempotent."""

    def record_stale_agent(self, name: Name, silence: timedelta, message: str) -> None:
        """Record an agent as unreachable, unless the agent has sent a heartbeat in the meantime."""


@dataclass(frozen=True, slots=True)
class StoreDeadlineTransactions:
    """The sweep's transactions on the database."""

    store: Store
    timing: ServiceTiming

    def find_overdue(self, silence: timedelta) -> tuple[bool, list[Name]]:
        """Return whether a transition is due, and the stale agents, in one read transaction."""
        with self.store.read() as unit:
            return bool(find_due_transitions(unit, self.timing.drain)), find_stale_agents(unit, silence)

    def apply_transitions(self) -> None:
        """Apply all due transitions in one transaction; idempotent."""
        with self.store.change() as unit:
            apply_due_transitions(unit, self.timing.drain)

    def record_stale_agent(self, name: Name, silence: timedelta, message: str) -> None:
        """Record an agent as unreachable, unless the agent has sent a heartbeat in the meantime."""
        with self.store.change() as unit:
            if name in find_stale_agents(unit, silence):
                record_error(unit, name, message, self.timing.drain, reachable=False)


@dataclass
class DeadlineSweep:
    """Checks the deadlines. Writes to the database only if a deadline has passed."""

    transactions: DeadlineTransactions
    timing: ServiceTiming
    clock: Callable[[], float] = time.monotonic
    _started: float | None = field(default=None)

    def run(self) -> None:
        """Apply the due transitions and record stale agents; idempotent."""
        silence = timedelta(seconds=self.timing.agent_silence)
        due, silent = self.transactions.find_overdue(silence)
        for name in silent if self._has_run_long_enough() else ():
            message = f"its agent has sent no heartbeat for {self.timing.agent_silence:g} s: check that the agent runs"
            self.transactions.record_stale_agent(name, silence, message)
        if due:
            self.transactions.apply_transitions()

    def _has_run_long_enough(self) -> bool:
        """Return whether this service has run for ``agent_silence``, so that every agent could send a heartbeat."""
        if self._started is None:
            self._started = self.clock()
        return self.clock() - self._started >= self.timing.agent_silence
