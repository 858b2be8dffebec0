"""Tests of the asynchronous twins of the Python API, with a real SBF."""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import anyio
import pytest

from virtcloud import AsyncClient
from virtcloud.client.api import Client
from virtcloud.client.asynchronous import AsyncCluster, AsyncGuest
from virtcloud.client.cluster import Cluster
from virtcloud.client.guests import ClusterGuest
from virtcloud.client.sbf import SbfClient
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.element_views import Pool
from virtcloud.model.errors import BadInput, NotFound, TimedOut
from virtcloud.model.topology import Topology
from virtcloud.model.views import ClusterView, Confirmation
from virtcloud.model.vlans import VlanSet

T = TypeVar("T")
SITE = {
    "name": "brno",
    "switches": [{"name": "sw", "ports": ["p1"], "platform": "linux_bridge", "address": "127.0.0.1:1"}],
    "hosts": [{"name": "h1", "ports": ["eth0"]}],
}
TOPOLOGY = {"name": "small", "sites": [SITE], "links": [{"a": "sw:p1", "b": "h1:eth0"}]}
SPEC = ClusterSpec.model_validate({"owner": "eva", "hosts": ["h1"], "deadline_s": 600})


@pytest.fixture(scope="module")
def service(sbf: str) -> Iterator[SbfClient]:
    with SbfClient(sbf) as connected:
        connected.put_topology(Topology.model_validate(TOPOLOGY))
        connected.put_pool("brno", Pool(vlans=VlanSet.parse("100-199")))
        yield connected


def run(sbf: str, work: Callable[[AsyncClient], Awaitable[T]]) -> T:

    async def with_client() -> T:
        async with AsyncClient(Client(sbf)) as client:
            return await work(client)

    return asyncio.run(with_client())


def public_methods(kind: type) -> dict[str, list[inspect.Parameter]]:
    methods = {name: one for name, one in vars(kind).items() if inspect.isfunction(one) and not name.startswith("_")}
    return {name: list(inspect.signature(one).parameters.values())[1:] for name, one in methods.items()}


@pytest.mark.parametrize(("kind", "twin"), [(Client, AsyncClient), (Cluster, AsyncCluster), (ClusterGuest, AsyncGuest)])
def test_every_method_has_a_twin_with_the_same_parameters(kind: type, twin: type) -> None:
    """After you add a method to a class, add one line for the method to the asynchronous twin of the class."""
    twins = public_methods(twin)
    assert {name: twins.get(name) for name in public_methods(kind)} == public_methods(kind)


def test_a_cluster_is_created_read_listed_and_deleted(sbf: str, service: SbfClient) -> None:
    async def work(client: AsyncClient) -> tuple[object, ...]:
        cluster = await client.create("one", SPEC)
        same = await client.get("one")
        listed = [one.key for one in await client.list()]
        return cluster.state, same.view.id == cluster.view.id, listed, (await cluster.delete()).state

    assert run(sbf, work) == (ClusterState.CONFIGURING, True, ["one"], ClusterState.DRAINING)


def test_errors_are_those_of_the_synchronous_calls(sbf: str, service: SbfClient) -> None:
    async def work(client: AsyncClient) -> None:
        with pytest.raises(NotFound):
            await client.get("unknown")
        cluster = await client.create("late", SPEC)
        with pytest.raises(TimedOut, match="cluster late is configuring after 0 s, not active"):
            await cluster.wait_active(timeout=0)

    run(sbf, work)


def test_progress_is_called_in_the_thread_of_the_loop(sbf: str, service: SbfClient) -> None:
    called_in: set[int] = set()

    async def work(client: AsyncClient) -> None:
        def progress(_view: ClusterView) -> None:
            called_in.add(threading.get_ident())

        cluster = await client.create("shown", SPEC)
        with pytest.raises(TimedOut):
            await cluster.wait_active(progress, timeout=0.1)

    run(sbf, work)
    assert called_in == {threading.get_ident()}


def test_a_cancelled_wait_ends_at_once_and_its_thread_soon(sbf: str, service: SbfClient) -> None:
    async def work(client: AsyncClient) -> float:
        cluster = await client.create("cancelled", SPEC)
        waiting = asyncio.Event()
        wait = asyncio.ensure_future(cluster.wait_active(lambda _view: waiting.set()))
        await asyncio.wait_for(waiting.wait(), 10)
        started = time.monotonic()
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        ended = time.monotonic() - started
        await asyncio.wait_for(asyncio.to_thread(client.threads.wait_idle), 10)
        return ended

    assert run(sbf, work) < 1.5


def test_a_confirmation_of_an_element_is_yielded_as_an_event(sbf: str, service: SbfClient) -> None:
    async def work(client: AsyncClient) -> list[str]:
        cluster, found = await client.create("watched", SPEC), []
        async for event in cluster.events(timeout=20):
            found += [str(event)] if event.element == "h1" else []
            if event.after == "confirmed":
                break
            service.confirm("h1", Confirmation(revision=service.wanted("h1").revision))
        return found

    assert run(sbf, work) == ["watched, h1: adding", "watched, h1: confirmed"]


def test_a_blocking_method_cannot_be_called_by_mistake(sbf: str, service: SbfClient) -> None:
    async def work(client: AsyncClient) -> None:
        cluster = await client.create("strict", SPEC)
        assert (cluster.key, cluster.view.key) == ("strict", "strict")
        with pytest.raises(AttributeError):
            _ = cluster._wait

    run(sbf, work)


def test_a_cancelled_block_deletes_its_cluster_and_closes_the_client(sbf: str, service: SbfClient) -> None:
    """In a cancelled scope of anyio or trio, each unshielded await raises at once."""
    sync = Client(sbf)

    async def work() -> None:
        with anyio.move_on_after(0.5):
            async with AsyncClient(sync) as client, await client.create("left", SPEC):
                await anyio.sleep_forever()

    asyncio.run(work())
    assert service.cluster("left").state in {ClusterState.DRAINING, ClusterState.RELEASED}
    with pytest.raises(BadInput, match="this client is closed"):
        sync.list()
