"""Sessions with guests: the WebSockets of users and agents, and the agents' long poll (decision 56)."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Annotated, NoReturn

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from starlette.websockets import WebSocket

from sbf_service.bootstrap import SbfService
from sbf_service.change_feed import Waiter
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CALLER_KEY, CurrentCaller, CurrentService, authorize_element
from sbf_service.http.auth.caller import Caller
from sbf_service.http.long_polls import CurrentPoll, PollAdmission
from sbf_service.http.operations import Operation, Wait, parse_cluster_id
from sbf_service.http.problems import error_response, problem_responses
from sbf_service.http.routes.clones import check_clone
from sbf_service.http.routes.guests import authorize_guest
from sbf_service.http.session_relay import CloneOrder, SessionRelay, UserLeftError, WaitingSession
from sbf_service.log import get_log
from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.clusters.guest_sessions import delete_session, insert_session, list_sessions, session_topic
from sbf_service.store.users.tokens import token_topic
from virtcloud.model.access import Role
from virtcloud.model.errors import BadInput, Conflict, ServiceUnreachable, Unauthenticated, VirtcloudError
from virtcloud.model.guest_sessions import FIRST_KINDS, USER_KINDS, GuestSession, SessionKind, SessionRequest
from virtcloud.model.guests import GuestPower, GuestView
from virtcloud.model.values import ClusterKey, Name

AfterSession = Annotated[int, Query(ge=0, lt=2**31, description="Only sessions with a number above this number.")]
KindsQuery = Annotated[
    str | None,
    Query(
        pattern="^[a-z,-]{1,200}$",
        description="The kinds of sessions that the agent supports, separated by commas; by default `log`, `console` "
        "and `port`.",
    ),
]

PORT = "[0-9]{1,5}"
TOKEN_CHECK_S = 15.0
"""The longest time between two checks of an open session's token. A notice of a revocation causes a check at once."""
HANDSHAKES_TOPIC = "session-handshakes"
"""The topic for which each user's call waits until SBF has accepted or refused the call.

A stopping service counts its waiters.
"""

log = get_log(__name__)
router = APIRouter(tags=["elements"], route_class=Operation)


@router.get("/v1/elements/{name}/sessions", responses=problem_responses(404, 422))
async def list_waiting_sessions(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    name: Name,
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    poll: CurrentPoll,
    after: AfterSession = 0,
    wait: Wait = 0,
    kinds: KindsQuery = None,
) -> list[GuestSession]:
    """List the sessions that wait for the agent of a host; if no session waits, wait at most `wait` seconds."""
    known = FIRST_KINDS if kinds is None else frozenset(SessionKind) & frozenset(kinds.split(","))

    def read() -> list[GuestSession]:
        with service.store.read() as unit:
            return list_sessions(unit, name, after, known)

    await run_in_threadpool(authorize_element, service.store, caller, Action.REPORT_FOR_ELEMENT, name)
    if caller.principal.role is Role.AGENT:
        _relay_of(request).record_poll(name, known)
    if not wait or await poll.wait_until_newer(
        session_topic(name), poll.in_thread(lambda: len(read())), 0, wait, is_exact=False
    ):
        return await poll.read(read)
    return []


@router.websocket("/v1/elements/{name}/sessions/{session}")
async def connect_agent(websocket: WebSocket, name: str, session: str) -> None:
    """Connect the agent of a host with the user of a session."""
    service, caller, relay = _parts(websocket)
    try:
        element = Name(name)
        await run_in_threadpool(authorize_element, service.store, caller, Action.REPORT_FOR_ELEMENT, element)
        waiting = relay.find(element, session)
    except VirtcloudError as error:
        await websocket.send_denial_response(error_response(error))
        return
    await websocket.accept()
    if waiting.agent.done():
        return
    waiting.agent.set_result(websocket)
    await waiting.ended.wait()


@router.websocket("/v1/clusters/{key}/guests/{guest}/session")
async def open_session(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    websocket: WebSocket,
    key: str,
    guest: str,
    kind: str,
    port: str | None = None,
    follow: bool = False,
    image: str | None = None,
    id: str | None = None,  # noqa: A002 - the word of the API
) -> None:
    """Connect a user with a guest, through the agent of the guest's host."""
    service, caller, relay = _parts(websocket)
    agent: WebSocket | None = None
    with suppress(UserLeftError), ExitStack() as registration:
        async with _handshake(websocket, registration) as waiter:
            request = _parse_request(kind, port, image, follow=follow)
            found, cluster_id = await run_in_threadpool(
                _authorize, service, caller, ClusterKey(key), Name(guest), request, parse_cluster_id(id)
            )
            session = registration.enter_context(relay.register(caller.who, found.host))
            session.clone = None if request.image is None else CloneOrder(request.image, caller)
            insert = partial(_insert, service, caller, found, cluster_id, request, session.id)
            agent = await _find_agent(websocket, session, insert, waiter)
            await websocket.accept()
        if agent is not None:
            await relay.join(websocket, agent, _wait_until_refused(service, caller))


@asynccontextmanager
async def _handshake(user: WebSocket, registration: ExitStack) -> AsyncIterator[Waiter]:
    """Yield a waiter that a stop of the service wakes. The block must accept the user's call.

    If the block raises VirtcloudError, close ``registration`` before the call is answered with the error.
    """
    service, _, _ = _parts(user)
    with service.change_feed.watch(uncompared=(HANDSHAKES_TOPIC,)) as waiter:
        try:
            yield waiter
        except VirtcloudError as error:
            registration.close()
            await user.send_denial_response(error_response(error))


async def _find_agent(
    user: WebSocket, session: WaitingSession, insert: Callable[[], None], waiter: Waiter
) -> WebSocket:
    service, _, relay = _parts(user)
    await user.receive()  # the message websocket.connect
    await run_in_threadpool(insert)
    try:
        stop = _raise_when_stopped(service, waiter, user.app.state.polls)
        return await relay.wait_for_agent(session, user, service.settings.relay.agent_wait, stop)
    finally:
        await run_in_threadpool(_delete, service, session.id)


async def _raise_when_stopped(service: SbfService, waiter: Waiter, polls: PollAdmission) -> NoReturn:
    while not service.change_feed.closed:
        await waiter.wait(TOKEN_CHECK_S)
    raise polls.make_stop_error()


async def _wait_until_refused(service: SbfService, caller: Caller) -> None:
    """Return when the caller's token is revoked or has expired. Never return for a caller without a token."""
    cache, token = service.token_cache, caller.token
    topics = () if token is None else (token_topic(token.id),)
    with service.change_feed.watch(uncompared=topics) as waiter:
        while True:
            if token is not None and cache.find(token) is None:
                try:
                    await run_in_threadpool(cache.authenticate, token)
                except Unauthenticated:
                    return
                except ServiceUnreachable as error:
                    log.warning("token_not_checked", who=caller.who, why=error)
            await waiter.wait(TOKEN_CHECK_S)


def _relay_of(request: Request) -> SessionRelay:
    relay: SessionRelay = request.app.state.sessions
    return relay


def _parts(websocket: WebSocket) -> tuple[SbfService, Caller, SessionRelay]:
    state = websocket.app.state
    return state.service, websocket.scope[CALLER_KEY], state.sessions


def _parse_request(kind: str, port: str | None, image: str | None, *, follow: bool) -> SessionRequest:
    if kind not in USER_KINDS:
        raise BadInput(f"kind: expected {', '.join(sorted(USER_KINDS))}, got {kind!r}")
    if port is not None and not re.fullmatch(PORT, port):
        raise BadInput(f"port: expected a TCP port from 1 to 65535, got {port!r:.80}")
    return SessionRequest(
        kind=SessionKind(kind),
        port=None if port is None else int(port),
        follow=follow,
        image=None if image is None else Name(image),
    )


def _authorize(  # noqa: PLR0913, PLR0917 - the call
    service: SbfService, caller: Caller, key: ClusterKey, guest: Name, request: SessionRequest, cluster_id: str | None
) -> tuple[GuestView, str]:
    action = Action.CONTROL_GUEST if request.kind is SessionKind.LOG else Action.REACH_GUEST
    with service.store.read() as unit:
        view = authorize_guest(unit, caller, action, key, guest, cluster_id)
        found_id = require_cluster(unit, key, cluster_id).id
        if request.image is not None:
            check_clone(unit, service, caller, view, request.image)
            return view, found_id
    if view.power is GuestPower.OFF and request.kind is not SessionKind.LOG:
        raise Conflict(f"guest {guest} of cluster {key} is stopped: start it (virtcloud guest start {key} {guest})")
    return view, found_id


def _insert(  # noqa: PLR0913, PLR0917 - the session
    service: SbfService, caller: Caller, guest: GuestView, cluster_id: str, request: SessionRequest, session_id: str
) -> None:
    relay = service.settings.relay
    with service.store.change(who=caller.who) as unit:
        insert_session(unit, session_id, guest, cluster_id, request, relay.address, timedelta(seconds=relay.agent_wait))


def _delete(service: SbfService, session_id: str) -> None:
    with service.store.change_row() as unit:
        delete_session(unit, session_id)
