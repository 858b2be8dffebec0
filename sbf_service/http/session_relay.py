"""The relay of sessions: forwards messages between the WebSockets of a user and of the agent on the guest's host.

1. The user's call inserts a row into the table ``guest_sessions``, and waits for the agent (:class:`SessionRelay`).
2. The agent's long poll returns the row. The agent connects to the guest and to this replica.
3. The agent's first message is an error, or states that the guest is connected. If the guest is connected, SBF accepts
   the user's call.
4. SBF forwards the messages of each side to the other side. SBF reads a message only after it has sent the previous
   message, so a slow receiver slows the sender down. The session ends when a side closes its WebSocket, when no side
   sends for a long time, when the user's token becomes invalid, or when the service stops.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from starlette.websockets import WebSocket, WebSocketDisconnect

from sbf_service.http.auth.caller import Caller
from sbf_service.log import get_log
from virtcloud.model.errors import NotFound, Refused, TooManyRequests, Unreachable
from virtcloud.model.guest_sessions import SessionAnswer, SessionKind
from virtcloud.model.values import Name

NORMAL, GOING_AWAY, BROKEN = 1000, 1001, 1011
"""Status codes of WebSockets (RFC 6455, 7.4.1)."""
MAX_REASON = 120
"""The longest reason of a closed WebSocket, in bytes (RFC 6455, 5.5)."""
RETRY_AFTER_S = 5
CHECKS_PER_USER = 5
"""The maximum number of concurrent path checks of one user, each of which sends up to 10 MB/s."""
log = get_log(__name__)


class UserLeftError(Exception):
    """The user ended the call before the agent reached the guest."""


@dataclass(frozen=True, slots=True)
class CloneOrder:
    """The image that a session of kind ``clone`` makes, and the image's future owner."""

    image: Name
    caller: Caller


@dataclass(slots=True)
class WaitingSession:
    """A session that waits for an agent, or that is open. ``ended`` is set when the session ends."""

    element: Name
    id: str
    agent: "asyncio.Future[WebSocket]"
    clone: CloneOrder | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class SessionRelay:
    """The sessions of this replica. Only the event loop of the service uses this object."""

    sessions_per_user: int
    idle_s: float
    _waiting: dict[str, WaitingSession] = field(default_factory=dict)
    _open: Counter[str] = field(default_factory=Counter)
    _checks: Counter[str] = field(default_factory=Counter)
    _known_kinds: dict[Name, frozenset[SessionKind]] = field(default_factory=dict)

    def record_poll(self, element: Name, kinds: frozenset[SessionKind]) -> None:
        """Record the kinds of sessions that the agent of ``element`` supports, according to its long poll."""
        self._known_kinds[element] = kinds

    def knows(self, element: Name, kind: SessionKind) -> bool:
        """Return whether the agent of ``element`` supports a kind; True if the agent has not polled at this replica."""
        return kind in self._known_kinds.get(element, {kind})

    @property
    def open_sessions(self) -> int:
        """The number of users' sessions (`register`), also of those that wait for an agent."""
        return self._open.total()

    @contextmanager
    def register(self, who: str, element: Name) -> Iterator[WaitingSession]:
        """Register a user's session for the duration of the block. Raise TooManyRequests above the user's limit."""
        if self._open[who] >= self.sessions_per_user:
            raise TooManyRequests(
                f"{who} has {self._open[who]} sessions with guests, and the limit is {self.sessions_per_user}: end a "
                "session first",
                RETRY_AFTER_S,
            )
        self._open[who] += 1
        try:
            with self.expect(element) as session:
                yield session
        finally:
            self._open -= Counter([who])

    @contextmanager
    def count_check(self, who: str) -> Iterator[None]:
        """Count a user's path check for the duration of the block. Raise TooManyRequests above `CHECKS_PER_USER`."""
        if self._checks[who] >= CHECKS_PER_USER:
            raise TooManyRequests(
                f"{who} verifies {self._checks[who]} clusters, and the limit is {CHECKS_PER_USER}: wait for a result",
                RETRY_AFTER_S,
            )
        self._checks[who] += 1
        try:
            yield
        finally:
            self._checks -= Counter([who])

    @contextmanager
    def expect(self, element: Name) -> Iterator[WaitingSession]:
        """Yield a new session that waits for the agent of ``element``. End the session after the block."""
        session = WaitingSession(element, secrets.token_hex(16), asyncio.get_running_loop().create_future())
        self._waiting[session.id] = session
        try:
            yield session
        finally:
            self._waiting.pop(session.id, None)
            session.agent.cancel()
            session.ended.set()

    def find(self, element: Name, session_id: str) -> WaitingSession:
        """Return a session. Raise NotFound if no session with this ID waits for the agent of ``element``."""
        session = self._waiting.get(session_id)
        if session is None or session.element != element or session.agent.done():
            raise NotFound(
                f"session {session_id} does not wait for {element} at this replica: the user has left, or the session "
                "belongs to another replica (set relay.address for each replica)"
            )
        return session

    def find_clone(self, element: Name, session_id: str) -> CloneOrder:
        """Return the order of an open clone session of ``element``, or raise NotFound."""
        session = self._waiting.get(session_id)
        if session is None or session.element != element or session.clone is None:
            raise NotFound(f"session {session_id} of {element} has ended, or clones no guest: no image was stored")
        return session.clone

    async def wait_for_agent(
        self, session: WaitingSession, user: WebSocket, seconds: float, stop: Awaitable[NoReturn]
    ) -> WebSocket:
        """Return the agent's WebSocket.

        Raise Unreachable if the agent needs more than ``seconds`` to connect, or then more than ``seconds`` to reach
        the guest. Raise UserLeftError if the user leaves. Raise the errors of ``stop`` (when the service stops) and of
        :func:`check_answer`.
        """
        ends = asyncio.ensure_future(_raise_when_left(user)), asyncio.ensure_future(stop)
        tasks: list[asyncio.Future[Any]] = [*ends]
        try:
            if not await _is_done_in_time(session.agent, ends, seconds):
                raise Unreachable(
                    f"host {session.element}: expected its agent to connect within {seconds:g} s, it did not: check "
                    f"that the agent runs (virtcloud element show {session.element}), and upgrade an agent of an "
                    "earlier version"
                )
            agent = session.agent.result()
            tasks.append(answer := asyncio.ensure_future(check_answer(session.element, agent)))
            if not await _is_done_in_time(answer, ends, seconds):
                raise Unreachable(
                    f"host {session.element}: expected its agent to reach the guest within {seconds:g} s, it did not: "
                    "try again, and read the agent's log"
                )
            answer.result()
            return agent
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def join(self, user: WebSocket, agent: WebSocket, refusal: Awaitable[None]) -> None:
        """Forward messages until a side ends the session, and close both sides.

        End the session also after ``idle_s`` seconds without a message, and when ``refusal`` returns: the user's token
        is then invalid.
        """
        activity = _Activity()
        tasks: dict[str, asyncio.Future[Any]] = {
            "user": asyncio.ensure_future(_copy(user, agent, activity)),
            "agent": asyncio.ensure_future(_copy(agent, user, activity)),
            "idle": asyncio.ensure_future(activity.wait_idle(self.idle_s)),
            "refusal": asyncio.ensure_future(refusal),
        }
        try:
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        code, reason = NORMAL, ""
        if _is_complete(tasks["idle"]):
            code, reason = BROKEN, f"no byte was sent for {self.idle_s:g} s (setting relay.idle)"
        elif _is_complete(tasks["refusal"]):
            code, reason = BROKEN, "your token was revoked or has expired"
        elif _is_complete(tasks["agent"]):
            code, reason = tasks["agent"].result()
        for side in (user, agent):
            await close(side, code, reason)


@dataclass(slots=True)
class _Activity:
    last: float = field(default_factory=time.monotonic)

    def touch(self) -> None:
        self.last = time.monotonic()

    async def wait_idle(self, seconds: float) -> None:
        while (remaining := self.last + seconds - time.monotonic()) > 0:  # noqa: ASYNC110 - messages delay the end
            await asyncio.sleep(remaining)


def _is_complete(task: "asyncio.Future[Any]") -> bool:
    return not task.cancelled() and task.exception() is None


async def close(side: WebSocket, code: int, reason: str) -> None:
    """Close a WebSocket, even if its other end is closed already."""
    with suppress(RuntimeError, WebSocketDisconnect):
        await side.close(code, reason.encode()[:MAX_REASON].decode(errors="ignore"))


async def _is_done_in_time(
    step: "asyncio.Future[Any]", ends: Iterable["asyncio.Future[NoReturn]"], seconds: float
) -> bool:
    """Wait at most ``seconds`` for a step. Return whether the step is done.

    If a future in ``ends`` fails during the wait, raise its error.
    """
    await asyncio.wait({step, *ends}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        if end.done():
            end.result()
    return step.done()


async def _raise_when_left(user: WebSocket) -> NoReturn:
    while (await user.receive())["type"] != "websocket.disconnect":
        pass
    raise UserLeftError


async def check_answer(element: Name, agent: WebSocket) -> None:
    """Read the agent's first message. Raise Refused if it is an error.

    Raise Unreachable if the agent ended the session or sent an invalid message.
    """
    try:
        answer = SessionAnswer.model_validate_json(await agent.receive_text())
    except (WebSocketDisconnect, ValueError, KeyError) as error:
        raise Unreachable(f"host {element}: its agent ended the session: try again") from error
    if answer.error is not None:
        raise Refused(f"host {element}: {answer.error}")


async def _copy(source: WebSocket, target: WebSocket, activity: _Activity) -> tuple[int, str]:
    """Send the messages of ``source`` to ``target`` until ``source`` ends, and return its code and reason.

    If ``target`` has ended, wait for the cancellation: the other direction first sends the last messages of ``target``.
    """
    while True:
        message = await source.receive()
        if message["type"] == "websocket.disconnect":
            code = message.get("code", BROKEN)
            normal = code in {NORMAL, GOING_AWAY}
            return (NORMAL, "") if normal else (BROKEN, message.get("reason") or "the connection was lost")
        activity.touch()
        try:
            if message.get("bytes") is not None:
                await target.send_bytes(message["bytes"])
            else:
                await target.send_text(message["text"])
        except (RuntimeError, WebSocketDisconnect):
            await asyncio.Event().wait()
