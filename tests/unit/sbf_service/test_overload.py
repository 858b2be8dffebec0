"""Tests that SBF survives a lack of file descriptors, and closes connections whose requests stay incomplete."""

import asyncio
import errno
import gc
import resource
import socket
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from uvicorn.server import ServerState

from sbf_service.http.auth import connections
from sbf_service.http.auth.connections import PeerHttpProtocol
from sbf_service.overload import AcceptFaults
from sbf_service.store.transactions.change_notices import Doorbell

GET = b"GET /slow HTTP/1.1\r\nhost: sbf\r\n\r\n"
POST = b"POST /body HTTP/1.1\r\nhost: sbf\r\ncontent-length: 10\r\n\r\n"
HALF = b"GET /slow HTTP/1.1\r\nhost: "


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Allow fewer descriptors than are open. poll(2) fails for a list of more descriptors than the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_change_reader_waits_without_a_new_descriptor() -> None:
    """If the wait needed a new descriptor, the change reader's thread would end.

    SBF would then record no further heartbeats.
    """
    bell = Doorbell()
    with without_descriptors():
        bell.wait(0.01)
        bell.ring()
        bell.wait(60)
    bell.close()


def test_a_lack_of_descriptors_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    faults, loop = AcceptFaults(lambda: now), asyncio.new_event_loop()
    with socket.socket() as listening:
        context = {
            "message": "socket.accept() out of system resource",
            "exception": OSError(errno.EMFILE, "Too many open files"),
            "socket": listening,
        }
        for _ in range(3):
            faults(loop, context)
        now += 60
        faults(loop, context)
    loop.close()
    assert [line.split(" ")[0] for line in caplog.messages] == ["connections_not_accepted"] * 2
    assert "Too many open files: " in caplog.text
    assert "LimitNOFILE" in caplog.text
    assert "Traceback" not in caplog.text


def test_other_faults_of_the_event_loop_keep_their_traceback(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    AcceptFaults()(loop, {"message": "a callback failed", "exception": OSError(errno.EMFILE, "Too many open files")})
    loop.close()
    assert caplog.messages == ["a callback failed"]


@asynccontextmanager
async def serve(app: FastAPI) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    config, state = uvicorn.Config(app, timeout_keep_alive=60, lifespan="off"), ServerState()
    config.load()
    server = await asyncio.get_running_loop().create_server(lambda: PeerHttpProtocol(config, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    async with server, asyncio.timeout(30):
        yield reader, writer
        writer.close()


async def exchange(app: FastAPI, first: bytes, then: bytes = b"") -> bytes:
    """Send ``first`` to a server. If ``then`` is not empty, wait for the answer, and then send ``then``.

    Return all data that the server sends until the server closes the connection.
    """
    async with serve(app) as (reader, writer):
        writer.write(first)
        received = await reader.readuntil(b"answered") if then else b""
        writer.write(then)
        return received + await reader.read()


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()

    @app.get("/slow")
    async def answer_slowly() -> str:
        await asyncio.sleep(0.3)
        return "answered"

    @app.post("/body")
    async def read_slowly(request: Request) -> str:
        if "expect" in request.headers:
            await asyncio.sleep(0.3)  # the client waits until SBF asks for the body
        return "answered" if await request.body() else ""

    return app


@pytest.mark.parametrize("first", [b"", HALF], ids=["no byte", "half a request"])
def test_a_connection_without_a_request_is_closed(app: FastAPI, monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.05)
    assert asyncio.run(exchange(app, first)) == b""


@pytest.mark.parametrize("body", [b"", b"half "])
def test_a_connection_without_the_rest_of_a_body_is_closed(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """The console's login reads a form before the caller is authenticated."""
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.05)
    assert asyncio.run(exchange(app, POST + body)) == b""


def test_a_slow_body_arrives(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 1.5)

    async def send() -> bytes:
        async with serve(app) as (reader, writer):
            writer.write(POST)
            for _ in range(10):
                await asyncio.sleep(0.35)
                writer.write(b"x")
            return await reader.readuntil(b'"answered"')

    assert asyncio.run(send()).startswith(b"HTTP/1.1 200")


def test_a_client_may_wait_until_sbf_asks_for_the_body(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.1)

    async def send() -> bytes:
        async with serve(app) as (reader, writer):
            writer.write(POST.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n"))
            await reader.readuntil(b"100 Continue\r\n\r\n")
            writer.write(b"0123456789")
            return await reader.readuntil(b'"answered"')

    assert asyncio.run(send()).startswith(b"HTTP/1.1 200")


def test_the_checks_of_many_connections_share_a_timer(app: FastAPI) -> None:
    """With 10,000 connections, SBF checks more than 300 connections in each second."""
    moments: list[float] = []

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def record(when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
            moments.append(when)
            return call_at(when, *arguments, **options)

        async with serve(app) as (first_reader, first), AsyncExitStack() as others:
            first.write(POST + b"0123456789")
            await first_reader.readuntil(b"answered")
            loop.time, loop.call_at = lambda: 100.1, record  # type: ignore[assignment]
            for _ in range(20):
                reader, writer = await asyncio.open_connection(*first.get_extra_info("peername"))
                others.callback(writer.close)
                writer.write(POST + b"0123456789")
                await reader.readuntil(b"answered")

    asyncio.run(connect())
    assert [when for when in moments if when <= 100.1 + connections.REQUEST_TIMEOUT_S] == [130.0]


def test_a_closed_connection_leaves_no_reference_cycle(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's garbage collector seldom runs (decision 93)."""
    lost, found = asyncio.Event(), list[weakref.ref[PeerHttpProtocol]]()

    class Protocol(PeerHttpProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            found.append(weakref.ref(self))
            asyncio.get_running_loop().call_soon(lost.set)

    async def connect() -> None:
        async with serve(app) as (reader, writer):
            writer.write(POST + b"0123456789")
            await reader.readuntil(b"answered")
            writer.close()
            await lost.wait()
            await asyncio.sleep(0)
            assert [one() for one in found] == [None]

    monkeypatch.setitem(globals(), "PeerHttpProtocol", Protocol)
    gc.disable()
    try:
        asyncio.run(connect())
    finally:
        gc.enable()


def test_an_answer_that_takes_longer_than_the_limit_arrives(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.05)
    assert asyncio.run(exchange(app, GET)).endswith(b'"answered"')


def test_a_connection_with_an_incomplete_second_request_is_closed(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.05)
    assert asyncio.run(exchange(app, GET, HALF)).count(b"HTTP/1.1") == 1
