"""Answers from memory to the most frequent call: an agent that has confirmed a revision polls for a newer revision.

No query is needed if the caller's token is cached and the agent is settled
(:mod:`sbf_service.store.elements.settled_agents`). Such an answer takes about a ninth of the processor time of
FastAPI's answer. FastAPI answers all other calls, and a poll whose element changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self
from uuid import uuid4

from starlette.types import ASGIApp, Receive, Scope, Send

from sbf_service.bootstrap import SbfService
from sbf_service.change_reader import SLOW_POLL_S
from sbf_service.domain.authentication import Principal, Token
from sbf_service.http.auth.authentication import bearer_token
from sbf_service.http.entity_tags import make_wanted_etag
from sbf_service.http.long_polls import PollAdmission
from sbf_service.http.operations import MAX_WAIT_S
from sbf_service.http.problems import error_response
from sbf_service.store.elements.confirmations import confirmation_topic
from sbf_service.store.users.tokens import token_topic
from virtcloud.model.access import Role
from virtcloud.model.call_context import REQUEST_ID_HEADER, TRACE_HEADER, RequestId
from virtcloud.model.errors import TooManyRequests

PREFIX: Final = "/v1/elements/"
SUFFIX: Final = "/wanted"
MIN_SILENCE_S: Final = 6 * SLOW_POLL_S
"""The shortest ``agent_silence`` with which this middleware answers polls.

The change reader writes the heartbeats of settled agents to the database only every 15 s (:data:`SLOW_POLL_S`). With a
shorter ``agent_silence``, SBF could regard a running agent as unreachable.
"""
_REQUEST_ID: Final = REQUEST_ID_HEADER.lower().encode()
_TRACE: Final = TRACE_HEADER.encode()


@dataclass(frozen=True, slots=True)
class SettledPoll:
    """A poll of an agent that has the document of ``revision``, and waits for a newer revision."""

    element: str
    revision: int
    wait: float
    headers: Mapping[bytes, bytes]

    @classmethod
    def parse(cls, scope: Scope) -> Self | None:
        """Return the parameters of a poll for a newer revision.

        Return None for any other call. Also return None for a poll that has other parameters or a trace context, or
        whose ``If-None-Match`` does not name the revision.
        """
        path = scope["path"]
        if scope["method"] != "GET" or not path.startswith(PREFIX) or not path.endswith(SUFFIX):
            return None
        query = dict(part.partition(b"=")[::2] for part in scope["query_string"].split(b"&"))
        headers, after = dict(scope["headers"]), query.get(b"after", b"")
        if len(query) != 2 or _TRACE in headers:  # noqa: PLR2004
            return None
        try:
            revision, wait = int(after), float(query[b"wait"])
        except (KeyError, ValueError):
            return None
        if headers.get(b"if-none-match") != make_wanted_etag(revision).encode():
            return None
        return cls(path[len(PREFIX) : -len(SUFFIX)], revision, wait, headers) if 0 <= wait <= MAX_WAIT_S else None


@dataclass(frozen=True, slots=True)
class SettledPollMiddleware:
    """Answers the polls of settled agents from memory."""

    app: ASGIApp
    service: SbfService
    polls: PollAdmission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a poll of a settled agent. Pass other calls to the application."""
        poll = SettledPoll.parse(scope) if scope["type"] == "http" else None
        principal = self._find_principal(scope, poll.element) if poll is not None else None
        if poll is None or principal is None:
            await self.app(scope, receive, send)
            return
        seconds_left = await self._wait(poll, principal)
        if seconds_left is None:
            await _answer_unchanged(poll, send)
        elif self.service.change_feed.closed:
            await error_response(self.polls.make_stop_error())(scope, receive, send)
        else:
            query = b"after=%d&wait=%.3f" % (poll.revision, max(seconds_left, 0.0))
            await self.app({**scope, "query_string": query}, receive, send)

    def _find_principal(self, scope: Scope, element: str) -> Principal | None:
        if self.service.settings.timing.agent_silence < MIN_SILENCE_S:
            return None
        token: Token | None = bearer_token(scope)
        principal = None if token is None else self.service.token_cache.find(token)
        is_own = principal is not None and principal.role is Role.AGENT and principal.name == element
        return principal if is_own else None

    async def _wait(self, poll: SettledPoll, principal: Principal) -> float | None:
        """Wait until the element may have changed. Return the seconds that remain of the poll's wait.

        If the agent is not settled at the poll's revision, or has polled too often, do not wait, and return all seconds
        of the poll's wait. Return None if the wait ended without a change.
        """
        service, topic = self.service, f"element:{poll.element}"
        wait = min(poll.wait, service.heartbeats.max_wait)
        others = (confirmation_topic(poll.element), token_topic(str(principal.token)))
        with service.change_feed.watch(topic, uncompared=others) as waiter:
            if service.settled_agents.find(poll.element) != poll.revision or not self._count(poll, principal, topic):
                return wait
            service.heartbeats.receive_settled(poll.element, service.settled_agents.estimate_time())
            waiter.versions[topic] = poll.revision
            began = self.polls.pace.clock()
            if service.change_feed.closed or (wait > 0 and await waiter.wait(wait)):
                return wait - (self.polls.pace.clock() - began)
        return None

    def _count(self, poll: SettledPoll, principal: Principal, topic: str) -> bool:
        key, rate, pace = (principal.who, topic), self.service.settings.rates.polls, self.polls.pace
        try:
            pace.check(key, rate)
        except TooManyRequests:
            return False
        pace.count(key, poll.revision, rate)
        return True


async def _answer_unchanged(poll: SettledPoll, send: Send) -> None:
    given = poll.headers.get(_REQUEST_ID, b"")
    request_id = given if RequestId.matches(given.decode("latin-1")) else uuid4().hex.encode()
    headers = [(b"etag", poll.headers[b"if-none-match"]), (_REQUEST_ID, request_id)]
    await send({"type": "http.response.start", "status": 304, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
