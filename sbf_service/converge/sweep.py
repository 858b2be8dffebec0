"""What time alone changes: deadlines, leases of clusters, drain deadlines, agents that fell silent."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from sbf_service.settings import Timing
from sbf_service.store.elements import set_trouble
from sbf_service.store.moves import due_moves, settle_clusters
from sbf_service.store.session import Store
from sbf_service.store.silence import silent_agents
from virtcloud.model.values import Name


@dataclass
class Sweep:
    """Looks, and writes only when there is something to change."""

    store: Store
    timing: Timing
    clock: Callable[[], float] = time.monotonic
    _started: float | None = field(default=None)

    def run(self) -> None:
        """Make every move that is due; may be repeated."""
        with self.store.read() as unit:
            due = due_moves(unit, self.timing.drain)
            silent = silent_agents(unit, self._silence) if self._listened() else []
        for name in silent:
            self._say_silent(name)
        if due:
            with self.store.change() as unit:
                settle_clusters(unit, self.timing.drain)

    @property
    def _silence(self) -> timedelta:
        return timedelta(seconds=self.timing.agent_silence)

    def _say_silent(self, name: Name) -> None:
        """Look again, in the unit that says so: it may have asked since."""
        with self.store.change() as unit:
            if name in silent_agents(unit, self._silence):
                text = f"its agent has not asked for {self.timing.agent_silence:g} s: look whether it runs"
                set_trouble(unit, name, text, self.timing.drain, reachable=False)

    def _listened(self) -> bool:
        """Say whether this service has run long enough to call anybody silent: agents may have asked nobody."""
        if self._started is None:
            self._started = self.clock()
        return self.clock() - self._started >= self.timing.agent_silence
