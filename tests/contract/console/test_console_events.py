import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from html import unescape
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.responses import StreamingResponse
from support.sbf_fakes.console_browser import logged_in
from support.sbf_fakes.world import World, spec

from sbf_service.change_feed import Waiter
from sbf_service.console import events
from sbf_service.console.events import MAX_STREAMS, LivePage, StreamCounts, stream_events
from sbf_service.console.pages import live
from sbf_service.console.sessions import Browser, find_secret, make_caller, read_session
from sbf_service.http.auth.caller import Caller
from sbf_service.store.clusters import clusters
from virtcloud.model.access import Role
from virtcloud.model.errors import DatabaseUnavailable
from virtcloud.model.values import ClusterKey


def open_browser(world: World, role: Role = Role.USER, name: str = "alice") -> Browser:
    """Log a user in. Return the :class:`Browser` that the console's pages receive as a parameter."""
    from starlette.requests import Request  # noqa: PLC0415

    cookie = "; ".join(f"{key}={value}" for key, value in logged_in(world, role, name).cookies.items())
    headers = [(b"cookie", cookie.encode()), (b"host", b"sbf")]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers, "scheme": "http"}
    request = Request(scope | {"server": ("sbf", 80), "client": ("127.0.0.1", 1)})
    secret = find_secret(request)
    assert secret is not None
    session = read_session(world.service, secret)
    caller: Caller = make_caller(request, world.service, session.principal)
    return Browser(caller, secret, session.expires_at)


def follow(world: World, browser: Browser, counts: StreamCounts) -> AsyncGenerator[str]:

    def read_version() -> int:
        with world.store.read() as unit:
            return clusters.require_cluster(unit, "hers").version

    response = stream_events(world.service, browser, counts, LivePage(("cluster:hers",), read_version))
    iterator: Any = response.body_iterator
    assert isinstance(iterator, AsyncGenerator)
    return iterator


async def next_event(stream: AsyncIterator[str]) -> str:
    """Return the name of the next event. Skip comments in the stream."""
    while True:
        text = await asyncio.wait_for(anext(stream), 20)
        if "event: " in text:
            return text.partition("event: ")[2].partition("\n")[0]


def first_events(world: World, act: Callable[[], object]) -> list[str]:
    world.put("hers", spec("brno-h1", owner="alice"))
    browser = open_browser(world)

    async def run() -> list[str]:
        stream = follow(world, browser, StreamCounts())
        found = [await next_event(stream)]
        await asyncio.to_thread(act)
        found.append(await next_event(stream))
        await stream.aclose()
        return found

    return asyncio.run(run())


def test_a_change_of_the_cluster_is_an_event(world: World) -> None:
    assert first_events(world, lambda: world.delete("hers")) == ["ready", "changed"]


def read_page_and_stream(world: World, path: str, act: Callable[[], object]) -> tuple[str, str]:
    """Read a live page, call ``act``, and return the first two events of the page's stream."""
    opened, browser = open_browser(world), logged_in(world, Role.USER, "alice")  # a login changes the start page
    found = re.search(r'data-events="([^"]+)"', browser.get(path).text)
    assert found
    seen = parse_qs(urlsplit(unescape(found[1])).query)["seen"][0]
    act()
    request: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(console_streams=StreamCounts())))

    async def run() -> tuple[str, str]:
        if path == "/console/":
            response = await live.follow_overview(request, world.service, opened, seen)
        else:
            response = await live.follow_cluster(ClusterKey("hers"), request, world.service, opened, None, seen)
        assert isinstance(response, StreamingResponse)
        stream: Any = response.body_iterator
        found = await next_event(stream), await next_event(stream)
        await stream.aclose()
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("path", ["/console/", "/console/clusters/hers"])
def test_a_change_after_the_page_was_rendered_is_an_event(world: World, path: str) -> None:
    world.put("hers", spec("brno-h1", owner="alice"))
    assert read_page_and_stream(world, path, lambda: world.delete("hers")) == ("ready", "changed")


@pytest.mark.parametrize("path", ["/console/", "/console/clusters/hers"])
def test_an_unchanged_page_gets_no_event_at_once(world: World, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(events, "SIGN_OF_LIFE_S", 0.1)
    world.put("hers", spec("brno-h1", owner="alice"))
    assert read_page_and_stream(world, path, lambda: None) == ("ready", "alive")


def test_the_stream_ends_with_the_session(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SIGN_OF_LIFE_S", 0.1)
    assert first_events(world, lambda: world.clock.advance(28801)) == ["ready", "end"]


def test_the_event_alive_follows_15_seconds_after_the_last_event(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 10 seconds, the change feed announces a change that does not concern the page."""
    world.put("hers", spec("brno-h1", owner="alice"))
    browser, now = open_browser(world), [0.0]

    async def wait(_waiter: Waiter, seconds: float) -> bool:
        now[0] += min(seconds, 10)
        return True

    async def run() -> str:
        stream = follow(world, browser, StreamCounts())
        await next_event(stream)
        found = await next_event(stream)
        await stream.aclose()
        return found

    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Waiter, "wait", wait)
    assert (asyncio.run(run()), now) == ("alive", [15])


def test_a_wait_that_ends_early_needs_no_second_check(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a wait of 15 s can be a fraction of a second early (:mod:`sbf_service.coalesced_timers`)."""
    world.put("hers", spec("brno-h1", owner="alice"))
    browser, now, waits = open_browser(world), [0.0], list[float]()

    async def wait(_waiter: Waiter, seconds: float) -> bool:
        waits.append(seconds)
        now[0] += max(seconds - 0.2, 0.1)
        return False

    async def run() -> list[str]:
        stream = follow(world, browser, StreamCounts())
        found = [await next_event(stream) for _ in range(3)]
        await stream.aclose()
        return found

    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Waiter, "wait", wait)
    assert (asyncio.run(run()), waits) == (["ready", "alive", "alive"], [15, 15])


def test_a_database_that_does_not_answer_ends_no_session(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream ends without the event ``end``, so the page connects again.

    The event ``end`` would replace the page by an error page, which does not connect again.
    """

    def fail(*_arguments: object) -> None:
        raise DatabaseUnavailable("the database does not answer")

    monkeypatch.setattr(events, "read_session", fail)
    with pytest.raises(StopAsyncIteration):
        first_events(world, lambda: world.delete("hers"))


def test_simultaneous_streams_do_not_exceed_the_limit(world: World) -> None:
    world.put("hers", spec("brno-h1", owner="alice"))
    browser, counts = open_browser(world), StreamCounts()

    async def run() -> list[str | None]:
        streams = [follow(world, browser, counts) for _ in range(MAX_STREAMS + 1)]
        started = [await anext(stream, None) for stream in streams]
        for stream in streams:
            await stream.aclose()
        return started

    started = asyncio.run(run())
    assert ["event: full" in str(event) for event in started] == [*[False] * MAX_STREAMS, True]


def test_a_closed_stream_does_not_count(world: World) -> None:
    world.put("hers", spec("brno-h1", owner="alice"))
    browser, counts = open_browser(world), StreamCounts()

    async def run() -> tuple[int, int]:
        stream = follow(world, browser, counts)
        await next_event(stream)
        opened = counts.counts["alice"]
        await stream.aclose()
        return opened, counts.counts["alice"]

    assert asyncio.run(run()) == (1, 0)


def test_the_event_stream_of_another_users_cluster_is_not_found(world: World) -> None:
    world.put("hers", spec("brno-h1", owner="alice"))
    assert logged_in(world, Role.USER, "bob").get("/console/clusters/hers/events").status_code == 404
