"""Sends long polls to an SBF in this process, as agents do, and lists the SQL statements that SBF executes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import httpx
from anyio.to_thread import current_default_thread_limiter
from sqlalchemy import event

from sbf_service.bootstrap import SbfService
from sbf_service.http.app import answer_settled_polls
from sbf_service.http.long_polls import PollAdmission
from sbf_service.store.users.tokens import revoke_token
from support.sbf_fakes.http_calls import ROOT, app_of, from_peer
from support.sbf_fakes.world import World
from virtcloud.client.connection import USER_AGENT
from virtcloud.model.access import Role, TokenId


class Caller(httpx.AsyncClient):
    """A client of an application. ``polls`` is the application's object that admits long polls."""

    polls: PollAdmission


STILL_ITERATIONS = 20
"""The number of successive iterations of the event loop after which :func:`start_polls` assumes that all polls wait.

In each of these iterations, all polls are registered as waiters, and no thread executes a call. A single iteration is
not sufficient: a poll that was woken is still registered while it checks whether its caller is connected. This check
takes some iterations, and uses no thread.
"""
Calls = Callable[[Caller], Awaitable[None]]


def run(world: World, calls: Calls, token: str | None = None) -> None:

    async def with_client() -> None:
        app = app_of(world.service)
        target = answer_settled_polls(app)
        transport = httpx.ASGITransport(target if token else from_peer(target, ROOT), raise_app_exceptions=False)
        headers = {"user-agent": USER_AGENT} | ({"authorization": f"Bearer {token}"} if token else {})
        async with Caller(transport=transport, base_url="http://sbf", headers=headers) as http:
            http.polls = app.state.polls
            await calls(http)

    asyncio.run(with_client())


def wanted(element: str, after: int = 1, wait: int = 30) -> str:
    return f"/v1/elements/{element}/wanted?after={after}&wait={wait}"


async def start_polls(world: World, http: Caller, *paths: str) -> list["asyncio.Task[httpx.Response]"]:
    feed = world.service.change_feed
    before = feed.count_waiters()
    polls = [asyncio.create_task(http.get(path)) for path in paths]
    still = 0
    async with asyncio.timeout(60):
        while still < STILL_ITERATIONS:
            waits = feed.count_waiters() == before + len(paths) and not busy_threads(http)
            still = still + 1 if waits else 0
            await asyncio.sleep(0 if waits else 0.01)
    return polls


def busy_threads(http: Caller) -> int:
    agents = http.polls._find_threads().borrowed_tokens + http.polls._elements.is_reading
    return int(agents + current_default_thread_limiter().borrowed_tokens)


async def await_true(reached: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not reached():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.01)


@contextmanager
def counted_statements(service: SbfService) -> Iterator[list[str]]:
    found: list[str] = []

    def count(_connection: object, _cursor: object, statement: str, *_others: object) -> None:
        found.append(statement)

    event.listen(service.store.engine, "before_cursor_execute", count)
    try:
        yield found
    finally:
        event.remove(service.store.engine, "before_cursor_execute", count)


def agent(world: World, host: str = "brno-h1") -> str:
    return world.token(Role.AGENT, host)


def revoke(world: World, token: str) -> None:
    with world.store.change() as unit:
        revoke_token(unit, TokenId(token.split("_")[1]))


def set_rate(world: World, rate: str) -> None:
    world.service.settings.__dict__["rates"] = world.service.settings.rates.model_copy(update={"polls": rate})
