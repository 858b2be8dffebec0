"""The Python API for asyncio and trio: the methods of :mod:`virtcloud.client.api` as coroutines.

::

    from virtcloud import AsyncClient

    async with AsyncClient() as client:
        async with await client.create("demo", guests=[...]) as cluster:
            await cluster.wait_active()
            async for event in cluster.events():
                print(event)

Each asynchronous object wraps a synchronous object. An asynchronous method calls the synchronous object's method with
the same name and signature, in a thread. A cancelled task does not wait for the thread of a waiting method, such as
``wait_active``. If SBF answers, this thread ends within two seconds.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from anyio import CancelScope

from virtcloud.client.api import Client
from virtcloud.client.call_threads import CallThreads, RepeatedCall, run_waiting
from virtcloud.client.calls import PAGE_SIZE
from virtcloud.client.cluster import Cluster
from virtcloud.client.events import ClusterEvent, find_events
from virtcloud.client.guests import ClusterGuest
from virtcloud.client.session_stream import SessionStream
from virtcloud.client.waiting import POLL_S
from virtcloud.model.views import ClusterView

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W")


def _asynchronous(
    method: Callable[Concatenate[Any, P], R], dispose: Callable[[R], object] | None = None
) -> Callable[Concatenate[Any, P], Awaitable[R]]:
    signature = inspect.signature(method)

    @wraps(method)
    async def call(wrapper: Any, /, *args: P.args, **keys: P.kwargs) -> R:  # noqa: ANN401 - one of the classes below
        bound, threads = signature.bind(wrapper.sync, *args, **keys), _threads_of(wrapper)
        if "progress" in signature.parameters:
            return await run_waiting(threads, method, bound)
        return await threads.run(partial(method, *bound.args, **bound.kwargs), dispose)

    return call


def _asynchronous_wrapped(
    method: Callable[Concatenate[Any, P], R],
    wrap: Callable[[Any, R], W],
    dispose: Callable[[R], object] | None = None,
) -> Callable[Concatenate[Any, P], Awaitable[W]]:
    """Return a coroutine function that runs ``method`` in a thread, and returns ``wrap(wrapper, result)``.

    ``wrapper`` is the asynchronous object. If the task is cancelled, ``dispose`` is called with the result.
    """
    called = _asynchronous(method, dispose)

    @wraps(method)
    async def call(wrapper: Any, /, *args: P.args, **keys: P.kwargs) -> W:  # noqa: ANN401 - one of the classes below
        return wrap(wrapper, await called(wrapper, *args, **keys))

    return call


def _return_self(wrapper: W, _result: object) -> W:
    return wrapper


def _threads_of(wrapper: Any) -> CallThreads:  # noqa: ANN401 - one of the classes below
    found: CallThreads = wrapper.threads
    return found


class AsyncStream:
    """A session with a guest; see :class:`SessionStream`. The end of an ``async with`` block closes the session."""

    def __init__(self, sync: SessionStream, threads: CallThreads) -> None:
        """Wrap ``sync``."""
        self.sync = sync
        self.threads = threads
        self._reception = RepeatedCall(threads, sync.receive)
        threads.streams.add(sync)

    async def __aenter__(self) -> Self:
        """Return this stream."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close the stream without an await, and wake a thread that receives.

        If a thread is sending, this method can block the event loop for a few seconds.
        """
        self.sync.close()

    send = _asynchronous(SessionStream.send)
    send_end = _asynchronous(SessionStream.send_end)
    close = _asynchronous(SessionStream.close)

    async def receive(self) -> bytes:
        """Return the next bytes; see :meth:`SessionStream.receive`.

        If a call is cancelled, the next call returns the bytes that the cancelled call receives.
        """
        return await self._reception.run()


def _wrap_stream(guest: "AsyncGuest", stream: SessionStream) -> AsyncStream:
    return AsyncStream(stream, guest.threads)


class AsyncGuest:
    """A guest of a cluster; see :class:`ClusterGuest`."""

    def __init__(self, sync: ClusterGuest, threads: CallThreads) -> None:
        """Wrap ``sync``."""
        self.sync = sync
        self.threads = threads

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any property of the synchronous object
        """Return a property of the synchronous guest, such as ``view`` or ``name``."""
        return _read_property(self.sync, name)

    stop = _asynchronous_wrapped(ClusterGuest.stop, _return_self)
    start = _asynchronous_wrapped(ClusterGuest.start, _return_self)
    reset = _asynchronous_wrapped(ClusterGuest.reset, _return_self)
    run = _asynchronous(ClusterGuest.run)
    put = _asynchronous(ClusterGuest.put)
    get = _asynchronous(ClusterGuest.get)
    ssh = _asynchronous(ClusterGuest.ssh)
    clone = _asynchronous(ClusterGuest.clone)
    wait_confirmed = _asynchronous_wrapped(ClusterGuest.wait_confirmed, _return_self)
    connect = _asynchronous_wrapped(ClusterGuest.connect, _wrap_stream, SessionStream.close)
    console = _asynchronous_wrapped(ClusterGuest.console, _wrap_stream, SessionStream.close)
    open_log = _asynchronous_wrapped(ClusterGuest.open_log, _wrap_stream, SessionStream.close)

    async def log(self, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Yield the log of the guest's console; see :meth:`ClusterGuest.log`."""
        async with await self.open_log(follow=follow) as stream:
            while data := await stream.receive():
                yield data

    refresh = _asynchronous(ClusterGuest.refresh)


class AsyncCluster:
    """A cluster; see :class:`Cluster`. The end of an ``async with`` block deletes the cluster."""

    def __init__(self, sync: Cluster, threads: CallThreads) -> None:
        """Wrap ``sync``."""
        self.sync = sync
        self.threads = threads

    def __repr__(self) -> str:
        """Return the text of the synchronous cluster."""
        return repr(self.sync).replace("virtcloud.Cluster", "virtcloud.AsyncCluster")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any property of the synchronous object
        """Return a property of the synchronous cluster, such as ``view``, ``key``, ``state`` or ``vlans``."""
        return _read_property(self.sync, name)

    async def __aenter__(self) -> Self:
        """Return this cluster."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Delete the cluster and wait until it is removed everywhere.

        In a cancelled scope of anyio or trio, send the deletion without waiting for the removal. After
        ``asyncio.Task.cancel``, wait for the removal nevertheless.
        """
        with CancelScope(shield=True):
            await self.delete(wait=False)
        await self.wait_ended()

    refresh = _asynchronous(Cluster.refresh)
    wait_active = _asynchronous_wrapped(Cluster.wait_active, _return_self)
    wait_ended = _asynchronous_wrapped(Cluster.wait_ended, _return_self)
    extend = _asynchronous_wrapped(Cluster.extend, _return_self)
    share = _asynchronous_wrapped(Cluster.share, _return_self)
    unshare = _asynchronous_wrapped(Cluster.unshare, _return_self)
    delete = _asynchronous_wrapped(Cluster.delete, _return_self)
    known_hosts = _asynchronous(Cluster.known_hosts)
    verify = _asynchronous(Cluster.verify)
    traffic = _asynchronous(Cluster.traffic)
    run = _asynchronous(Cluster.run)
    put = _asynchronous(Cluster.put)
    get = _asynchronous(Cluster.get)

    async def guest(self, name: str) -> AsyncGuest:
        """Return a guest. Raise NotFound for an unknown name."""
        return AsyncGuest(await self.threads.run(partial(self.sync.guests.find, name)), self.threads)

    async def poll_views(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - as in the synchronous class
        poll_s: float = POLL_S,
    ) -> AsyncIterator[ClusterView]:
        """Yield the cluster's view after each long poll; see :meth:`Cluster.poll_views`."""
        views: Iterator[ClusterView] = self.sync.poll_views(timeout, poll_s)
        while (view := await self.threads.run(partial(next, views, None))) is not None:
            yield view

    async def events(self, timeout: float | None = None) -> AsyncIterator[ClusterEvent]:  # noqa: ASYNC109 - as in the synchronous class
        """Yield the changes of the cluster; see :meth:`Cluster.events`."""
        before = None
        async for view in self.poll_views(timeout):
            for event in find_events(before, view):
                yield event
            before = view


def _wrap_cluster(client: "AsyncClient", cluster: Cluster) -> AsyncCluster:
    return AsyncCluster(cluster, client.threads)


def _wrap_clusters(client: "AsyncClient", clusters: Any) -> list[AsyncCluster]:  # noqa: ANN401 - a sequence of clusters
    return [AsyncCluster(cluster, client.threads) for cluster in clusters]


class AsyncClient:
    """The virtual clusters of one installation; see :class:`Client`."""

    def __init__(self, sync: Client | None = None) -> None:
        """Wrap ``sync``, by default ``Client()``. No call is sent."""
        self.sync = sync or Client()
        self.threads = CallThreads()

    def __repr__(self) -> str:
        """Return a text with SBF's address, and without the token."""
        return f"<virtcloud.AsyncClient of {self.sync.sbf.url}>"

    async def __aenter__(self) -> Self:
        """Return this client. The end of the context closes the client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the open streams, wait for threads of cancelled calls (usually a second), and close the connections."""
        try:
            with CancelScope(shield=True):
                await self.threads.end_calls()
        finally:
            self.sync.close()

    create = _asynchronous_wrapped(Client.create, _wrap_cluster)
    preview = _asynchronous(Client.preview)
    get = _asynchronous_wrapped(Client.get, _wrap_cluster)
    list = _asynchronous_wrapped(Client.list, _wrap_clusters)
    delete = _asynchronous(Client.delete)

    async def iterate(  # noqa: PLR0913 - callers pass each filter by its name
        self,
        owner: str | None = None,
        *,
        ended: bool = False,
        network: str | None = None,
        state: str | None = None,
        site: str | None = None,
        element: str | None = None,
        newest: bool = False,
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[AsyncCluster]:
        """Yield clusters, read in pages; see :meth:`Client.iterate`."""
        clusters = self.sync.iterate(
            owner,
            ended=ended,
            network=network,
            state=state,
            site=site,
            element=element,
            newest=newest,
            page_size=page_size,
        )
        while (cluster := await self.threads.run(partial(next, clusters, None))) is not None:
            yield AsyncCluster(cluster, self.threads)


def _read_property(sync: object, name: str) -> object:
    """Return a public property of a synchronous object. Raise AttributeError for private names and for methods.

    A call of a synchronous method would block the event loop.
    """
    if name.startswith("_") or callable(getattr(type(sync), name, None)):
        raise AttributeError(name)
    return getattr(sync, name)
