"""Tests of cancelled calls of the asynchronous client, with sessions in memory."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from queue import Queue
from threading import Event
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, ConnectionClosedOK

from virtcloud import AsyncClient
from virtcloud.client.api import Client
from virtcloud.client.asynchronous import AsyncGuest, AsyncStream
from virtcloud.client.call_threads import CallThreads, _Delivery
from virtcloud.client.guests import ClusterGuest
from virtcloud.client.session_stream import SessionStream
from virtcloud.model.errors import ServiceUnreachable

LIMIT_S = 20
backends = pytest.mark.parametrize("backend", ["asyncio", *(["trio"] if find_spec("trio") else [])])


class ConnectionInMemory(AbstractContextManager[Any]):
    """A WebSocket on which the guest sends the messages of a queue. Fails if two threads receive."""

    def __init__(self) -> None:
        self.sent = Queue[bytes | ConnectionClosed]()
        self.receives = Event()
        self.is_closed = Event()

    def __exit__(self, *_error: object) -> None:
        self.is_closed.set()
        self.sent.put(ConnectionClosedOK(None, None))

    def recv(self) -> bytes:
        assert not self.receives.is_set()
        self.receives.set()
        message = self.sent.get(timeout=LIMIT_S)
        self.receives.clear()
        if isinstance(message, ConnectionClosed):
            raise message
        return message


class SlowSbf:
    """An SBF that opens a session when ``answers`` is set."""

    def __init__(self) -> None:
        self.connection = ConnectionInMemory()
        self.asked, self.answers = Event(), Event()

    def open_session(self, *_arguments: object) -> SessionStream:
        self.asked.set()
        assert self.answers.wait(LIMIT_S)
        return SessionStream(self.connection)


async def cancel(call: Callable[[], Awaitable[object]], when: Event) -> None:
    """Start ``call`` in a task, and cancel the task after ``when`` is set."""

    async def wait() -> None:
        await call()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        assert await to_thread.run_sync(when.wait, LIMIT_S)
        await checkpoint()
        group.cancel_scope.cancel()


@backends
def test_a_cancelled_receive_loses_no_bytes(backend: str) -> None:
    async def work() -> list[bytes]:
        fake = ConnectionInMemory()
        stream = AsyncStream(SessionStream(fake), CallThreads())
        for _ in range(3):
            await cancel(stream.receive, fake.receives)
        for data in (b"first", b"second"):
            fake.sent.put(data)
        return [await stream.receive(), await stream.receive()]

    assert anyio.run(work, backend=backend) == [b"first", b"second"]


@backends
def test_a_cancelled_receive_occupies_one_thread(backend: str) -> None:
    async def work() -> bool:
        fake, threads = ConnectionInMemory(), CallThreads()
        stream = AsyncStream(SessionStream(fake), threads)
        for _ in range(3):
            await cancel(stream.receive, fake.receives)
        with threads._changed:
            has_ended = threads._changed.wait_for(lambda: threads.running == 1, LIMIT_S)
        await threads.end_calls()
        return has_ended

    assert anyio.run(work, backend=backend)


@backends
def test_the_next_receive_raises_the_error_of_a_cancelled_receive(backend: str) -> None:
    async def work() -> bytes:
        fake = ConnectionInMemory()
        stream = AsyncStream(SessionStream(fake), CallThreads())
        await cancel(stream.receive, fake.receives)
        fake.sent.put(ConnectionClosedError(None, None))
        with pytest.raises(ServiceUnreachable):
            await stream.receive()
        fake.sent.put(b"next")
        return await stream.receive()

    assert anyio.run(work, backend=backend) == b"next"


@backends
def test_the_end_of_the_client_ends_a_cancelled_receive(backend: str) -> None:
    async def work() -> bool:
        fake = ConnectionInMemory()
        async with AsyncClient(Client("http://127.0.0.1:1")) as client:
            stream = AsyncStream(SessionStream(fake), client.threads)
            await cancel(stream.receive, fake.receives)
        return fake.is_closed.is_set() and not client.threads.running

    assert anyio.run(work, backend=backend)


@backends
@pytest.mark.parametrize("method", ["connect", "console", "open_log"])
def test_a_cancelled_opening_closes_its_session(backend: str, method: str) -> None:
    async def work() -> bool:
        sbf: Any = SlowSbf()
        view: Any = SimpleNamespace(cluster="demo", name="g1")
        guest = AsyncGuest(ClusterGuest(sbf, "c1", view), CallThreads())
        await cancel(lambda: getattr(guest, method)(*([22] if method == "connect" else [])), sbf.asked)
        assert not sbf.connection.is_closed.is_set()
        sbf.answers.set()
        await guest.threads.end_calls()
        return bool(sbf.connection.is_closed.is_set())

    assert anyio.run(work, backend=backend)


def test_a_session_that_opened_before_the_cancellation_is_closed() -> None:
    fake = ConnectionInMemory()
    delivery = _Delivery(lambda: SessionStream(fake), SessionStream.close)
    delivery.run()
    assert not fake.is_closed.is_set()
    for dispose in delivery.abandon():
        dispose()
    assert fake.is_closed.is_set()
