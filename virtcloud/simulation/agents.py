"""Simulated agents. Each agent fetches its host's wanted document over HTTP, waits, and confirms the revision."""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from virtcloud.client.credentials import FileToken
from virtcloud.client.http_errors import compute_retry_pause
from virtcloud.client.sbf import SbfClient
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.guest_sessions import SessionAnswer
from virtcloud.model.traffic import SegmentCounters, TrafficReport
from virtcloud.model.views import Confirmation, HostCapacity
from virtcloud.model.wanted import WantedDocument
from virtcloud.simulation.folder import SimulationFolder

log = logging.getLogger(__name__)
POLL_S = 5.0
"""Duration of a long poll in seconds. After a host is switched off, its agent still waits for the end of the poll."""
PAUSE_S = 1.0
TRAFFIC_S = 15.0
"""Seconds between two reports of traffic. The simulated rates vary slowly between 0 and `PEAK` bytes per second."""
PEAK, PERIOD_S, FRAME = 2_000_000.0, 600.0, 900
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
        """Start the agent of an element, unless the agent runs. The file with the element's token must exist."""
        if element not in self._threads:
            thread = threading.Thread(target=self._run, args=(element, is_host), name=element, daemon=True)
            self._threads[element] = thread
            thread.start()

    def stop(self) -> None:
        """Request the end of all agents. An agent in a long poll ends when the poll ends or SBF stops."""
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
                    if is_host:
                        agent.refuse_sessions()
                except VirtcloudError as error:
                    log.info("agent of %s: %s", element, error)
                    self._stop.wait(compute_retry_pause(error, PAUSE_S))

    def _wait(self) -> None:
        self._stop.wait(self.change_s)


@dataclass
class SimulatedAgent:
    """The agent of one element. ``change`` waits for the time that a change takes."""

    element: str
    sbf: SbfClient
    change: Callable[[], None]
    is_off: Callable[[], bool]
    _revision: int | None = None
    _session: int = 0
    _next_traffic_s: float = 0

    def reconcile_once(self) -> None:
        """Wait at most ``POLL_S`` seconds for a new wanted document, and confirm the document.

        Then report traffic if a report is due. Do neither if the element was switched off. Raise the errors of the
        calls to SBF.
        """
        document = self.sbf.wanted(self.element, self._revision, POLL_S)
        if document.revision != self._revision or document.confirmed_revision < document.revision:
            self.change()
            if self.is_off():  # the host was switched off during the long poll or the change
                return
            self.sbf.confirm(self.element, Confirmation(revision=document.revision))
            self._revision = document.revision
        self._report_traffic(document)

    def refuse_sessions(self) -> None:
        """Refuse all waiting sessions, because a simulated host runs no guest. Raise the errors of the calls to SBF."""
        error = "the host is simulated and runs no guest: use a lab (virtcloud lab up) or real hosts"
        for session in self.sbf.waiting_sessions(self.element, self._session):
            self._session = max(self._session, session.number)
            with self.sbf.join_session(self.element, session) as stream:
                stream.send_text(SessionAnswer(error=error).model_dump_json())

    def _report_traffic(self, document: WantedDocument) -> None:
        now = time.time()
        if now >= self._next_traffic_s:
            self._next_traffic_s = now + TRAFFIC_S
            segments = tuple(simulate_counters(segment.id, self.element, now) for segment in document.wanted.segments)
            self.sbf.report_traffic(self.element, TrafficReport(segments=segments))


def simulate_counters(network: str, element: str, now: float) -> SegmentCounters:
    """Return the counters of a segment whose traffic is a wave. ``now`` is Unix time in seconds. Pure.

    The counters are the integral of the wave since 1970, so a restart of the simulation does not reset them.
    """
    phase = sum(f"{network}{element}".encode()) % 100 / 100
    received, sent = (_integrate_wave(now, phase + shift) for shift in (0.0, 0.3))
    return SegmentCounters(
        network=network,
        port="simulated",
        received_bytes=received,
        sent_bytes=sent,
        received_frames=received // FRAME,
        sent_frames=sent // FRAME,
    )


def _integrate_wave(now: float, phase: float) -> int:
    angle = 2 * math.pi * (now / PERIOD_S + phase)
    return int(PEAK / 2 * (now + PERIOD_S / (2 * math.pi) * math.sin(angle)) + PEAK * PERIOD_S)
