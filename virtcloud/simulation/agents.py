"""Simulated agents: each fetches its host's wanted document over HTTP, waits, and confirms it. No guest is started."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from virtcloud.client.credentials import FileToken
from virtcloud.client.sbf import SbfClient
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.views import HostCapacity
from virtcloud.simulation.folder import SimulationFolder

log = logging.getLogger(__name__)
POLL_S = 5.0
"""The duration of a long poll. A host that was switched off is silent after this number of seconds."""
PAUSE_S = 1.0
CAPACITY = HostCapacity(cpus=16, memory_mb=65536)


@dataclass
class SimulatedAgents:
    """The agents of all hosts and gateways. Each agent is a thread with its own token."""

    url: str
    folder: SimulationFolder
    change_s: float
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: dict[str, threading.Thread] = field(default_factory=dict)

    def start(self, element: str, *, is_host: bool) -> None:
        """Start the agent of an element, unless it runs. The file of the element's token exists."""
        if element not in self._threads:
            thread = threading.Thread(target=self._run, args=(element, is_host), name=element, daemon=True)
            self._threads[element] = thread
            thread.start()

    def stop(self) -> None:
        """Request the end of all agents. Long polls end with SBF."""
        self._stop.set()

    def _run(self, element: str, is_host: bool) -> None:
        with SbfClient(self.url, token=FileToken(self.folder.token_file(element))) as sbf:
            agent = SimulatedAgent(element, sbf, self._wait, lambda: self.folder.is_off(element))
            is_reported = not is_host
            while not self._stop.is_set():
                if self.folder.is_off(element):
                    self._stop.wait(PAUSE_S)
                    continue
                try:
                    if not is_reported:
                        sbf.report_capacity(element, CAPACITY)
                        is_reported = True
                    agent.reconcile_once()
                except VirtcloudError as error:
                    log.info("agent of %s: %s", element, error)
                    self._stop.wait(PAUSE_S)

    def _wait(self) -> None:
        self._stop.wait(self.change_s)


@dataclass
class SimulatedAgent:
    """The agent of one element. ``change`` takes as long as a change of a real host."""

    element: str
    sbf: SbfClient
    change: Callable[[], None]
    is_off: Callable[[], bool]
    _revision: int | None = None

    def reconcile_once(self) -> None:
        """Wait for a new wanted document, at most ``POLL_S`` seconds, and confirm it. Raise the errors of the calls."""
        document = self.sbf.wanted(self.element, self._revision, POLL_S)
        if document.revision != self._revision or document.confirmed_revision < document.revision:
            self.change()
            if self.is_off():  # the host was switched off during the long poll or the change
                return
            self.sbf.confirm(self.element, document.revision)
            self._revision = document.revision
