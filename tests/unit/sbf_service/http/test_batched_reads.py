"""Tests of reads that simultaneous calls share."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import pytest

from sbf_service.http.batched_reads import MAX_BATCH, BatchedReads
from virtcloud.model.errors import DatabaseUnavailable, NotFound, VirtcloudError


@dataclass
class Database:
    """A database whose queries wait until ``is_open`` is set."""

    queries: list[list[str]] = field(default_factory=list)
    is_open: threading.Event = field(default_factory=threading.Event)
    error: VirtcloudError | None = None

    def read_many(self, names: Collection[str]) -> dict[str, int | VirtcloudError]:
        self.queries.append(list(names))
        assert self.is_open.wait(30)
        if self.error is not None:
            raise self.error
        return {name: NotFound(name) if name == "missing" else len(name) for name in names}


def run(act: Callable[[Database, BatchedReads[str, int]], Awaitable[None]]) -> Database:
    database = Database()

    async def with_reads() -> None:
        await act(database, BatchedReads(database.read_many))

    asyncio.run(with_reads())
    return database


async def start(reads: BatchedReads[str, int], *names: str) -> list["asyncio.Task[int]"]:
    tasks = [asyncio.create_task(reads.read(name)) for name in names]
    await asyncio.sleep(0)
    return tasks


async def await_query(database: Database) -> None:
    while not database.queries:  # noqa: ASYNC110 - the query runs in another thread
        await asyncio.sleep(0.001)


def test_calls_during_a_query_share_the_next_query() -> None:
    async def act(database: Database, reads: BatchedReads[str, int]) -> None:
        first = await start(reads, "a")
        await await_query(database)
        others = await start(reads, "bb", "ccc", "bb", "a")
        database.is_open.set()
        assert await asyncio.gather(*first, *others) == [1, 2, 3, 2, 1]

    assert run(act).queries == [["a"], ["bb", "ccc", "a"]]


def test_an_unknown_name_fails_only_its_own_call() -> None:
    async def act(database: Database, reads: BatchedReads[str, int]) -> None:
        database.is_open.set()
        found = await asyncio.gather(*await start(reads, "a", "missing"), return_exceptions=True)
        assert found[0] == 1
        assert isinstance(found[1], NotFound)

    run(act)


def test_a_failed_query_fails_its_calls_only() -> None:
    async def act(database: Database, reads: BatchedReads[str, int]) -> None:
        database.is_open.set()
        database.error = DatabaseUnavailable("gone")
        found = await asyncio.gather(*await start(reads, "a", "bb"), return_exceptions=True)
        assert [type(one) for one in found] == [DatabaseUnavailable] * 2
        database.error = None
        assert await reads.read("a") == 1

    run(act)


def test_a_cancelled_call_does_not_disturb_the_others() -> None:
    async def act(database: Database, reads: BatchedReads[str, int]) -> None:
        cancelled, other = await start(reads, "a", "bb")
        await await_query(database)
        cancelled.cancel()
        await asyncio.sleep(0)
        database.is_open.set()
        assert await other == 2
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    run(act)


def test_a_query_has_a_limited_number_of_names() -> None:
    async def act(database: Database, reads: BatchedReads[str, int]) -> None:
        database.is_open.set()
        await asyncio.gather(*await start(reads, *(f"h{number}" for number in range(MAX_BATCH + 1))))

    assert [len(names) for names in run(act).queries] == [MAX_BATCH, 1]
