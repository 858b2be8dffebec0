"""The host's side of sessions between users and guests, and of SBF's checks of paths.

The agent makes only outbound connections to SBF. One thread uses long polls to wait for new sessions. Each session has
a separate thread, which copies data in both directions until one side ends.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from virtcloud.agent import log
from virtcloud.agent.guest_access.guest_channels import GuestChannel
from virtcloud.agent.network.frame_exchange import BridgeSocket
from virtcloud.agent.supervision import ReportProgress, StartSupervisedThread
from virtcloud.client.http_errors import compute_retry_pause
from virtcloud.client.session_stream import SessionStream
from virtcloud.model.errors import Refused, VirtcloudError
from virtcloud.model.guest_sessions import GuestSession, SessionAnswer, SessionKind
from virtcloud.model.path_check import FrameExchange, FrameReport
from virtcloud.model.values import Name
from virtcloud.model.wanted import HostWanted, Segment, WantedDocument

WAIT_S = 30.0
"""Longest time in seconds of one long poll."""
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 60.0
"""In seconds: the first and the longest pause after a failed long poll, without the added random time. Each further
failure doubles the pause.
"""
MAX_IDLE_S = 300.0
"""Longest time in seconds between two polls. After this time, the agent counts as hanging."""
END_S = 10.0
"""Longest wait in seconds for SBF to end the session after a failed exchange of frames."""
MAX_SESSIONS = 500
"""Limit of concurrent sessions on this host."""
MAX_REFUSALS = 20
"""Limit of simultaneous refusals of sessions beyond `MAX_SESSIONS`. The agent sends SBF no answer about further
sessions, and SBF refuses these sessions because the agent has not joined them in time.
"""


class SessionApi(Protocol):
    """The calls of SBF that sessions need."""

    def waiting_sessions(self, element: str, after: int = 0, wait: float = 0) -> list[GuestSession]:
        """Return the sessions that wait for this host and have a number above ``after``.

        If there is no such session, wait at most ``wait`` seconds.
        """

    def join_session(self, element: str, session: GuestSession) -> SessionStream:
        """Connect to SBF as the host's side of a session."""

    def wanted(self, element: str) -> WantedDocument:
        """Return the wanted document of this host."""


ConnectGuest = Callable[[GuestSession, Segment], AbstractContextManager[GuestChannel]]
"""Function that opens the guest's side of a session. Raises Refused if the connection to the guest fails."""


OpenBridge = Callable[[Segment], AbstractContextManager[BridgeSocket]]
"""Function that opens a socket on the bridge of a segment. Raises Refused if the host lacks the bridge."""

AnswerSession = Callable[[GuestSession, SessionStream], None]
"""Function that serves or refuses a session whose stream to SBF is open. Raises VirtcloudError if the stream breaks."""


class SessionListener:
    """Serves the sessions of this host's guests, and SBF's checks of paths."""

    def __init__(self, element: Name, sbf: SessionApi, connect: ConnectGuest, open_bridge: OpenBridge) -> None:
        """Create a listener for the sessions of the host ``element``."""
        self._element = element
        self._sbf = sbf
        self._connect = connect
        self._open_bridge = open_bridge
        self._stopping = threading.Event()
        self._free = threading.BoundedSemaphore(MAX_SESSIONS)
        self._refusals = threading.BoundedSemaphore(MAX_REFUSALS)

    def start(self, start: StartSupervisedThread) -> None:
        """Start the thread that waits for sessions."""
        start("guest sessions", self._run, MAX_IDLE_S)

    def stop(self) -> None:
        """Request the end of the thread. Open sessions continue until the process ends."""
        self._stopping.set()

    def _run(self, progress: ReportProgress) -> None:
        after, pause = 0, FIRST_RETRY_S
        while not self._stopping.is_set():
            progress()
            try:
                for session in self._sbf.waiting_sessions(self._element, after, WAIT_S):
                    after = max(after, session.number)
                    self._start(session)
                pause = FIRST_RETRY_S
            except VirtcloudError as error:
                log.warning("sessions_not_read", element=self._element, error=error)
                self._stopping.wait(compute_retry_pause(error, pause))
                after, pause = 0, min(2 * pause, MAX_RETRY_S)  # with a restored database, SBF may count from 0 again

    def _start(self, session: GuestSession) -> None:
        """Serve or refuse a session in a new thread, because SBF may answer slowly."""
        if self._free.acquire(blocking=False):
            self._start_thread(session, self._relay, self._free)
            return
        log.warning("session_refused", guest=session.guest, limit=MAX_SESSIONS)
        if self._refusals.acquire(blocking=False):
            self._start_thread(session, _refuse, self._refusals)

    def _start_thread(self, session: GuestSession, answer: AnswerSession, places: threading.Semaphore) -> None:
        """Start a thread that occupies one of ``places``, which the caller has acquired."""
        try:
            name = f"session {session.number}"
            threading.Thread(target=self._serve, args=(session, answer, places), name=name, daemon=True).start()
        except RuntimeError as error:
            places.release()
            log.warning("session_refused", guest=session.guest, error=error)

    def _serve(self, session: GuestSession, answer: AnswerSession, places: threading.Semaphore) -> None:
        try:
            with self._sbf.join_session(self._element, session) as stream:
                answer(session, stream)
        except VirtcloudError as error:
            log.warning("session_ended", guest=session.guest, session_kind=session.kind, error=error)
        except Exception as error:  # noqa: BLE001 - one session must not end the agent
            log.internal_error(error, element=self._element, guest=session.guest)
        finally:
            places.release()

    def _relay(self, session: GuestSession, stream: SessionStream) -> None:
        try:
            segment = find_segment(self._sbf.wanted(self._element).wanted, session)
            if session.kind is SessionKind.FRAMES:
                with self._open_bridge(segment) as bridge:
                    exchange_frames(stream, bridge)
                return
            with self._connect(session, segment) as channel:
                stream.send_text(SessionAnswer().model_dump_json())
                log.info("session_connected", cluster=segment.key, guest=session.guest, session_kind=session.kind)
                copy_both(stream, channel)
        except Refused as error:
            with suppress(VirtcloudError):
                stream.send_text(SessionAnswer(error=str(error)).model_dump_json())


def _refuse(_session: GuestSession, stream: SessionStream) -> None:
    error = f"this host has {MAX_SESSIONS} sessions with guests, its limit: try again later"
    stream.send_text(SessionAnswer(error=error).model_dump_json())


def find_segment(wanted: HostWanted, session: GuestSession) -> Segment:
    """Return the segment of a session. Pure.

    Raise Refused if the segment or, for a session with a guest, the guest is not wanted on this host.
    """
    for segment in wanted.segments:
        if segment.id == session.network and (
            session.kind is SessionKind.FRAMES or session.guest in {guest.name for guest in segment.guests}
        ):
            return segment
    if session.kind is SessionKind.FRAMES:
        raise Refused("the cluster is not wanted on this host")
    raise Refused(f"guest {session.guest} is not wanted on this host")


def exchange_frames(stream: SessionStream, bridge: BridgeSocket) -> None:
    """Report the bridge to SBF, receive the description of the exchange, and report the frames that arrived.

    Return when SBF ends the session.
    """
    stream.send_text(SessionAnswer().model_dump_json())
    stream.send(bridge.end.model_dump_json().encode())
    request = stream.receive()
    if not request:
        return  # SBF ended the session: fewer than two hosts take part in the check
    exchange = FrameExchange.model_validate_json(request, extra="ignore")
    log.info("check_started", check=exchange.check, hosts=len(exchange.peers) + 1, mtu=exchange.mtu)
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(stream, ended), name="check's end", daemon=True).start()
    try:
        bridge.exchange(exchange, lambda report: stream.send(report.model_dump_json().encode()), ended)
    except Refused as error:
        stream.send(FrameReport(error=str(error)).model_dump_json().encode())
        ended.wait(END_S)


def _wait_for_end(stream: SessionStream, ended: threading.Event) -> None:
    try:
        stream.receive()
    except VirtcloudError as error:
        log.info("check_interrupted", error=error)
    finally:
        ended.set()


def copy_both(stream: SessionStream, channel: GuestChannel) -> None:
    """Copy in both directions until one side ends."""
    to_guest = threading.Thread(target=_copy_to_guest, args=(stream, channel), name="session input", daemon=True)
    to_guest.start()
    try:
        while data := channel.receive():
            stream.send(data)
    finally:
        channel.close()
        stream.close()
        to_guest.join()


def _copy_to_guest(stream: SessionStream, channel: GuestChannel) -> None:
    try:
        while data := stream.receive():
            channel.send(data)
        channel.send_end()
        while stream.receive():
            pass
    except VirtcloudError as error:
        log.info("session_input_ended", error=error)  # closing the channel ends the other direction too
    finally:
        channel.close()
