"""The deadline sweep: applies due transitions of clusters, and records stale agents.

A cluster has a due transition when it must change its state, for example because its lease has ended. A stale agent has
sent no heartbeat for too long.
"""

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
    """The queries and changes of the deadline sweep. Each method runs one database transaction."""

    def find_overdue(self, silence: timedelta) -> tuple[bool, list[Name]]:
        """Return whether any cluster has a due transition, and the elements whose agent is stale.

        An agent is stale if it sent no heartbeat for ``silence``. Elements that are already recorded as unreachable are
        omitted.
        """

    def apply_transitions(self) -> None:
        """Apply all due transitions of clusters. Idempotent."""

    def record_stale_agent(self, name: Name, silence: timedelta, message: str) -> None:
        """Record element ``name`` as unreachable, unless its agent has sent a heartbeat since ``find_overdue``."""


@dataclass(frozen=True, slots=True)
class StoreDeadlineTransactions:
    """The transactions of the deadline sweep on the database."""

    store: Store
    timing: ServiceTiming

    def find_overdue(self, silence: timedelta) -> tuple[bool, list[Name]]:
        """Return whether any cluster has a due transition, and the elements whose agent is stale."""
        with self.store.read() as unit:
            return bool(find_due_transitions(unit, self.timing.drain)), find_stale_agents(unit, silence)

    def apply_transitions(self) -> None:
        """Apply all due transitions of clusters. Idempotent."""
        with self.store.change() as unit:
            apply_due_transitions(unit, self.timing.drain)

    def record_stale_agent(self, name: Name, silence: timedelta, message: str) -> None:
        """Record element ``name`` as unreachable, unless its agent has sent a heartbeat since ``find_overdue``."""
        with self.store.change() as unit:
            if name in find_stale_agents(unit, silence):
                record_error(unit, name, message, self.timing.drain, reachable=False)


@dataclass
class DeadlineSweep:
    """Checks clusters and agents for passed deadlines. Writes to the database only if a deadline has passed."""

    transactions: DeadlineTransactions
    timing: ServiceTiming
    clock: Callable[[], float] = time.monotonic
    _started: float | None = field(default=None)

    def run(self) -> None:
        """Apply the due transitions and record stale agents. Idempotent."""
        silence = timedelta(seconds=self.timing.agent_silence)
        due, silent = self.transactions.find_overdue(silence)
        for name in silent if self._has_run_long_enough() else ():
            message = f"its agent has sent no heartbeat for {self.timing.agent_silence:g} s: check that the agent runs"
            self.transactions.record_stale_agent(name, silence, message)
        if due:
            self.transactions.apply_transitions()

    def _has_run_long_enough(self) -> bool:
        """Return whether this service has run for ``agent_silence``.

        Agents could not send heartbeats while the service was stopped. Before the service has run for
        ``agent_silence``, a missing heartbeat therefore does not make an agent stale.
        """
        if self._started is None:
            self._started = self.clock()
        return self.clock() - self._started >= self.timing.agent_silence
