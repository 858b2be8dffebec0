"""The deadline sweep: applies due transitions of clusters, and records stale agents.

A due transition is a necessary change of state, for example after the end of a lease.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Protocol

from sbf_service.log import get_log
from sbf_service.settings import ServiceTiming
from sbf_service.store.clusters.transitions import BY_IDS, apply_due_transitions, find_due_clusters
from sbf_service.store.elements.error_reports import record_error
from sbf_service.store.elements.leases import find_stale_agents
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.maintenance.outages import record_sweep
from sbf_service.store.store import Store
from sbf_service.store.tables.tables import ElementRow
from virtcloud.model.errors import DatabaseUnavailable
from virtcloud.model.values import Name

MAX_GROUP = 50
"""The maximum number of clusters whose transitions SBF applies in one transaction (about 40 ms).

A changed topology can make thousands of clusters incomplete at once, and other writers wait during a transaction.
"""

SUSPENDED_AFTER_S = 30.0
"""If more than this time passes between two deadline sweeps, the service was suspended.

Causes are SIGSTOP, a frozen control group, or a disk that does not answer. With an ``agent_silence`` of 60 s or more, a
shorter suspension does not make a running agent stale.
"""

log = get_log(__name__)


def _try_change(change: Callable[[], None], **about: str) -> bool:
    """Call ``change``, and return whether it succeeded.

    Log an error, with ``about``: one unreadable row must not prevent the other changes. Raise only DatabaseUnavailable,
    which concerns every row.
    """
    try:
        change()
    except DatabaseUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - no error of one row may stop the sweep
        log.fault("deadline_fault", error, **about)
        return False
    return True


class DeadlineTransactions(Protocol):
    """The queries and changes of the deadline sweep."""

    def record_sweep(self, longest_gap_s: float) -> None:
        """Record that SBF runs.

        If the last record is older than ``longest_gap_s`` seconds, SBF had an outage, which ends now: postpone leases
        and setup deadlines.
        """

    def find_overdue(self, silence: timedelta) -> tuple[bool, list[Name]]:
        """Return whether any cluster has a due transition, and the elements whose agent is stale.

        An agent is stale if its last heartbeat is older than ``silence``, or missing. Omit elements that are already
        recorded as unreachable.
        """

    def apply_transitions(self) -> None:
        """Apply all due transitions of clusters. Idempotent."""

    def record_stale_agent(self, name: Name, silence: timedelta) -> None:
        """Record element ``name`` as unreachable, unless its agent has sent a heartbeat since ``find_overdue``.

        Apply no transitions: call :meth:`apply_transitions` afterwards.
        """


@dataclass(frozen=True, slots=True)
class StoreDeadlineTransactions:
    """The transactions of the deadline sweep on the database."""

    store: Store
    timing: ServiceTiming

    def record_sweep(self, longest_gap_s: float) -> None:
        """Record that SBF runs. After an outage of more than ``longest_gap_s``, postpone leases and setup deadlines."""
        record_sweep(self.store, longest_gap_s)

    def find_overdue(self, silence: timedelta) -> tuple[bool, list[Name]]:
        """Return whether any cluster has a due transition, and the elements whose agent is stale."""
        with self.store.read() as unit:
            return bool(find_due_clusters(unit, self.timing.drain)), find_stale_agents(unit, silence)

    def apply_transitions(self) -> None:
        """Apply all due transitions, in one database transaction for each group of clusters.

        If the transaction of a group fails, apply the transitions of each cluster separately.
        """
        with self.store.read() as unit:
            due = iter(find_due_clusters(unit, self.timing.drain))
        while group := list(islice(due, MAX_GROUP)):
            if not _try_change(partial(self._apply, group)):
                for cluster_id in group:
                    _try_change(partial(self._apply, [cluster_id]), cluster_id=cluster_id)

    def record_stale_agent(self, name: Name, silence: timedelta) -> None:
        """Record element ``name`` as unreachable, unless its agent has sent a heartbeat since ``find_overdue``."""
        with self.store.change() as unit:
            if name in find_stale_agents(unit, silence):
                message = _describe_silence(require_element(unit, name), silence)
                record_error(unit, name, message, self.timing.drain, reachable=False, with_transitions=False)

    def _apply(self, ids: Sequence[str]) -> None:
        with self.store.change() as unit:
            apply_due_transitions(unit, self.timing.drain, BY_IDS, with_deadlines=True, ids=ids)


def _describe_silence(row: ElementRow, silence: timedelta) -> str:
    if row.last_seen is None:
        return "its agent has sent no heartbeat yet: install and start the agent"
    return f"its agent has sent no heartbeat for {silence.total_seconds():g} s: check that the agent runs"


@dataclass
class DeadlineSweep:
    """Checks the deadlines of clusters and agents.

    Writes to the database only for passed deadlines, and every ten seconds to record that SBF runs.
    """

    transactions: DeadlineTransactions
    timing: ServiceTiming
    clock: Callable[[], float] = time.monotonic
    suspended_after_s: float = SUSPENDED_AFTER_S
    _started: float | None = field(default=None)
    """The time of the first sweep since the start, the last suspension, or the last failure of the database."""
    _last_sweep: float | None = field(default=None)

    def run(self) -> None:
        """Apply the due transitions and record stale agents. Idempotent."""
        try:
            self._run()
        except DatabaseUnavailable:
            self._started = None
            raise

    def _run(self) -> None:
        self.transactions.record_sweep(self.suspended_after_s)
        silence = timedelta(seconds=self.timing.agent_silence)
        due, silent = self.transactions.find_overdue(silence)
        stale = silent if self._has_run_long_enough() else []
        for name in stale:
            self.transactions.record_sweep(self.suspended_after_s)  # recording thousands of agents can take minutes
            _try_change(partial(self.transactions.record_stale_agent, name, silence), element=name)
        if due or stale:
            # SBF or the database may have been suspended since the record at the beginning.
            self.transactions.record_sweep(self.suspended_after_s)
            self.transactions.apply_transitions()

    def _has_run_long_enough(self) -> bool:
        """Return whether the service has run, and the database has answered, for ``agent_silence`` seconds.

        Until then, a missing heartbeat does not make an agent stale: SBF could not record heartbeats while it was
        stopped or suspended, or while the database did not answer.
        """
        now = self.clock()
        was_suspended = self._last_sweep is not None and now - self._last_sweep > self.suspended_after_s
        self._last_sweep = now
        if self._started is None or was_suspended:
            self._started = now
        return now - self._started >= self.timing.agent_silence
