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

from collections.abc import AsyncIterator, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Self

from anyio import CancelScope

from virtcloud.client.api import Client
from virtcloud.client.asynchronous_methods import asynchronous, asynchronous_wrapped, read_property, return_self
from virtcloud.client.call_threads import CallThreads, RepeatedCall
from virtcloud.client.calls import PAGE_SIZE
from virtcloud.client.cluster import Cluster
from virtcloud.client.events import ClusterEvent, find_events
from virtcloud.client.guests import ClusterGuest
from virtcloud.client.session_stream import SessionStream
from virtcloud.client.waiting import POLL_S
from virtcloud.model.views import ClusterView


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

    send = asynchronous(SessionStream.send)
    send_end = asynchronous(SessionStream.send_end)
    close = asynchronous(SessionStream.close)

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
        return read_property(self.sync, name)

    stop = asynchronous_wrapped(ClusterGuest.stop, return_self)
    start = asynchronous_wrapped(ClusterGuest.start, return_self)
    reset = asynchronous_wrapped(ClusterGuest.reset, return_self)
    run = asynchronous(ClusterGuest.run)
    put = asynchronous(ClusterGuest.put)
    get = asynchronous(ClusterGuest.get)
    ssh = asynchronous(ClusterGuest.ssh)
    clone = asynchronous(ClusterGuest.clone)
    wait_confirmed = asynchronous_wrapped(ClusterGuest.wait_confirmed, return_self)
    connect = asynchronous_wrapped(ClusterGuest.connect, _wrap_stream, SessionStream.close)
    console = asynchronous_wrapped(ClusterGuest.console, _wrap_stream, SessionStream.close)
    open_log = asynchronous_wrapped(ClusterGuest.open_log, _wrap_stream, SessionStream.close)

    async def log(self, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Yield the log of the guest's console; see :meth:`ClusterGuest.log`."""
        async with await self.open_log(follow=follow) as stream:
            while data := await stream.receive():
                yield data

    refresh = asynchronous(ClusterGuest.refresh)


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
        return read_property(self.sync, name)

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

    refresh = asynchronous(Cluster.refresh)
    wait_active = asynchronous_wrapped(Cluster.wait_active, return_self)
    wait_ended = asynchronous_wrapped(Cluster.wait_ended, return_self)
    extend = asynchronous_wrapped(Cluster.extend, return_self)
    share = asynchronous_wrapped(Cluster.share, return_self)
    unshare = asynchronous_wrapped(Cluster.unshare, return_self)
    delete = asynchronous_wrapped(Cluster.delete, return_self)
    known_hosts = asynchronous(Cluster.known_hosts)
    verify = asynchronous(Cluster.verify)
    traffic = asynchronous(Cluster.traffic)
    run = asynchronous(Cluster.run)
    put = asynchronous(Cluster.put)
    get = asynchronous(Cluster.get)

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

    create = asynchronous_wrapped(Client.create, _wrap_cluster)
    preview = asynchronous(Client.preview)
    get = asynchronous_wrapped(Client.get, _wrap_cluster)
    list = asynchronous_wrapped(Client.list, _wrap_clusters)
    delete = asynchronous(Client.delete)

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
