"""Control of the devices at one OpenVPN server: admits and refuses devices, and ends connections without a grant.

A connection ends with its grant, by the agent's clock.  Without a wanted document, the agent only permits the
connections of an earlier agent process to renew their keys.

The agent ends a connection with two commands: a notice with the reason, and, `NOTICE_S` seconds after the answer to the
notice, the end. After a notice alone, OpenVPN would accept the device's frames for another 5 s. Without the pause, a
busy OpenVPN would read both commands together and send no notice.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

from virtcloud.agent import log
from virtcloud.agent.gateway.admission import (
    REPLACED,
    DeviceGrants,
    DeviceRequest,
    DeviceSession,
    EndedSession,
    admit,
    decide,
    find_ended_sessions,
    is_renewal,
    list_options,
)
from virtcloud.agent.gateway.management_messages import (
    KILL,
    NOTICE_S,
    ClientRow,
    CommandDone,
    DeviceGone,
    ManagementEvent,
    ServerFailed,
    ServerReady,
    StatusDone,
    render_admission,
    render_end,
    render_notice,
    render_refusal,
)
from virtcloud.agent.gateway.management_socket import ANSWER_S, ManagementSocket, wait_for_event
from virtcloud.agent.gateway.openvpn_config import DEVICE_WAITS_S
from virtcloud.agent.gateway.server_takeover import take_over_server
from virtcloud.agent.gateway.session_records import SessionRecords, describe_connection
from virtcloud.agent.gateway.shared_grants import SharedGrants
from virtcloud.model.errors import Forbidden, Unreachable
from virtcloud.model.vpn import VpnConnection, VpnProtocol

TICK_S: Final = 0.5
"""Longest time in seconds between two checks of the connections."""
STATUS_S: Final = 20.0
"""Seconds between two readings of the connections' counters."""
MAX_IDLE_S: Final = 30.0
"""Longest time in seconds since the last check. After this time, `DeviceControl.fault` reports a fault."""


class DeviceControl:
    """Admits devices at one server. Call `start` or `take_over` first; then call `run` in a thread."""

    def __init__(
        self,
        protocol: VpnProtocol,
        connection: ManagementSocket,
        shared: SharedGrants,
        records: SessionRecords,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        """Create the control of the server at ``connection``.

        ``changed`` is called after each change of the admitted connections.
        """
        self._protocol = protocol
        self._connection = connection
        self._shared = shared
        self._records = records
        self._changed = changed
        self._sessions: dict[int, DeviceSession] = {}
        self._counters: dict[int, ClientRow] = {}
        self._waiting: dict[int, tuple[DeviceRequest, float]] = {}
        """The requests without a decision, each with the time of its arrival."""
        self._ending: set[int] = set()
        self._notices: deque[int | None] = deque()
        """For each notice that OpenVPN has not answered: the client, or None if the agent sends no second command."""
        self._due: dict[int, float] = {}
        self._asked: tuple[float, frozenset[int]] | None = None
        self._next_status, self._is_changed, self._is_unrecorded = 0.0, False, False
        self._stopping = threading.Event()
        self._ended: str | None = None
        self._last_check = time.monotonic()

    @property
    def fault(self) -> str | None:
        """The reason why the agent does not control the server, or None."""
        if self._ended is None and time.monotonic() - self._last_check > MAX_IDLE_S:
            return f"the devices were not checked for {MAX_IDLE_S:.0f} s"
        return self._ended

    @property
    def sessions(self) -> tuple[DeviceSession, ...]:
        """The admitted connections."""
        return tuple(self._sessions.values())

    @property
    def connections(self) -> tuple[VpnConnection, ...]:
        """The admitted connections, as the agent reports them to SBF."""
        return tuple(
            describe_connection(session, self._protocol, self._counters.get(session.client))
            for session in self.sessions
        )

    def start(self) -> None:
        """Make a new server accept devices.

        Raise Unreachable with OpenVPN's reason if OpenVPN ends or does not answer.
        """
        self._records.write(())
        for command in ("state on", "hold release"):
            self._connection.send(command)
        self._handle(wait_for_event(self._connection, ServerReady))

    def take_over(self) -> None:
        """Take over a running server that an earlier agent process started; see `take_over_server`.

        Raise Unreachable if the server does not answer.
        """
        taken = take_over_server(self._connection, self._records.read(), self._shared.clock())
        self._sessions, self._counters = dict(taken.sessions), dict(taken.counters)
        for session in self.sessions:
            self._shared.note_former(self._protocol, session)
        self._handle(taken.events)
        log.info("vpn_server_taken_over", protocol=self._protocol, sessions=len(self._sessions))

    def wake(self) -> None:
        """Make `run` check the connections at once. Thread-safe."""
        self._connection.wake()

    def stop(self) -> None:
        """Request the end of the thread. The server and its connections continue."""
        self._stopping.set()
        self.wake()

    def run(self) -> None:
        """Control the devices until `stop` is called, the server ends, or an error occurs."""
        try:
            while not self._stopping.is_set():
                self._last_check = time.monotonic()
                self._enforce()
                self._record_changes()
                self._ask_for_status()
                self._handle(self._connection.receive(self._pause()))
        except Unreachable as error:
            self._lose(str(error))
        except Exception as error:  # noqa: BLE001 - the reconciler starts the server again
            self._lose(str(log.internal_error(error, protocol=self._protocol)))
        finally:
            self._connection.close()
            self._record_changes()

    def _lose(self, reason: str) -> None:
        self._ended = reason
        self._sessions, self._is_changed = {}, True
        log.warning("vpn_server_lost", protocol=self._protocol, reason=reason)

    def _pause(self) -> float:
        return min([TICK_S, *(moment - time.monotonic() for moment in self._due.values())])

    def _handle(self, events: Iterable[ManagementEvent]) -> None:
        for event in events:
            match event:
                case DeviceRequest():
                    self._waiting[event.client] = event, time.monotonic()
                case DeviceGone(client):
                    self._waiting.pop(client, None)
                    self._forget((client,))
                case StatusDone(clients):
                    self._update_counters(clients)
                case CommandDone(_, text) if text.startswith(KILL) and self._notices:
                    self._schedule_end(self._notices.popleft())
                case ServerFailed(text):
                    raise Unreachable(f"OpenVPN ended: {text}")

    def _enforce(self) -> None:
        grants, now = self._shared.grants, self._shared.clock()
        self._update_ends(grants or {})
        for request, arrived in tuple(self._waiting.values()):
            if not request.renews and time.monotonic() - arrived >= DEVICE_WAITS_S:
                del self._waiting[request.client]  # the device has connected again
            elif grants is not None:
                del self._waiting[request.client]
                self._decide(request, grants, now)
            elif is_renewal(request, self._sessions.get(request.client), now):
                del self._waiting[request.client]
                self._permit(request, ())
        for ended in find_ended_sessions(self.sessions, grants, now):
            self._end(ended)
        for session in self.sessions:
            if not self._shared.is_latest(self._protocol, session):
                self._end(EndedSession(session, REPLACED))
        self._end_due()

    def _update_ends(self, grants: DeviceGrants) -> None:
        """Store the present end of each lease for a later agent process without a wanted document."""
        for session in self.sessions:
            granted = grants.get(session.fingerprint)
            if granted is not None and granted.grant.expires_at != session.expires_at:
                new = session.model_copy(update={"expires_at": granted.grant.expires_at})
                self._sessions[session.client], self._is_unrecorded = new, True

    def _decide(self, request: DeviceRequest, grants: DeviceGrants, now: datetime) -> None:
        session = self._sessions.get(request.client)
        try:
            granted = decide(request, grants, now, session)
        except Forbidden as error:
            self._connection.send(render_refusal(request, str(error)))
            log.warning("vpn_device_refused", remote=request.remote, name=request.common_name, reason=error)
            return
        if session is None:
            session = admit(request, granted, now)
            self._sessions[request.client] = session
            self._shared.note(self._protocol, session)
            self._is_changed = True
            log.info("vpn_device_admitted", profile=session.profile, vlan=session.vlan, remote=session.remote)
        self._permit(request, list_options(granted))

    def _permit(self, request: DeviceRequest, options: Iterable[str]) -> None:
        self._connection.send(render_admission(request, options))
        session = self._sessions[request.client]
        if session.key != request.key:
            self._sessions[request.client] = session.model_copy(update={"key": request.key})
            self._is_unrecorded = True

    def _end(self, ended: EndedSession) -> None:
        """Send a notice to the device of a connection. `_end_due` later closes the connection.

        After the notice REPLACED, OpenVPN closes the connection itself. A command of `_end_due` would also close the
        profile's new connection.
        """
        session = ended.session
        if session.client in self._ending:
            return
        self._connection.send(render_notice(session.client, ended.reason, connects_again=ended.connects_again))
        self._ending.add(session.client)
        self._notices.append(None if ended.reason == REPLACED else session.client)
        log.info("vpn_device_disconnected", profile=session.profile, vlan=session.vlan, reason=ended.reason)

    def _schedule_end(self, client: int | None) -> None:
        if client in self._ending:
            self._due[client] = time.monotonic() + NOTICE_S

    def _end_due(self) -> None:
        now = time.monotonic()
        for client in [client for client, moment in self._due.items() if moment <= now]:
            del self._due[client]
            command = render_end(self._sessions[client].common_name)
            if command is not None:
                self._connection.send(command)

    def _forget(self, clients: Iterable[int]) -> None:
        for client in clients:
            self._ending.discard(client)
            self._due.pop(client, None)
            self._counters.pop(client, None)
            if self._sessions.pop(client, None) is not None:
                self._is_changed = True

    def _record_changes(self) -> None:
        is_changed = self._is_changed
        if is_changed or self._is_unrecorded:
            self._is_changed = self._is_unrecorded = False
            self._records.write(self.sessions)
        if is_changed:
            self._changed()

    def _ask_for_status(self) -> None:
        now = time.monotonic()
        if self._asked is not None and now - self._asked[0] > ANSWER_S:
            raise Unreachable(f"OpenVPN did not answer within {ANSWER_S:.0f} s")
        if self._asked is None and now >= self._next_status:
            self._connection.send("status 3")
            self._asked, self._next_status = (now, frozenset(self._sessions)), now + STATUS_S

    def _update_counters(self, rows: Iterable[ClientRow]) -> None:
        asked, self._asked = self._asked, None
        self._counters = {row.client: row for row in rows if row.client in self._sessions}
        if asked is not None:
            self._forget(asked[1] - self._counters.keys())
