"""Batched reads: one query answers all calls that arrived while the previous query ran."""

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from virtcloud.model.errors import VirtcloudError

MAX_BATCH = 500
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass
class BatchedReads(Generic[K, V]):
    """Reads the values of keys, in one thread.

    ``read_many`` returns the value of each key, or the error that concerns only this key. A call of :meth:`read` is
    never answered by a query that began before the call.
    """

    read_many: Callable[[Collection[K]], Mapping[K, V | VirtcloudError]]
    _queued: dict[K, list["asyncio.Future[V]"]] = field(default_factory=dict)
    _task: "asyncio.Task[None] | None" = None
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: CapacityLimiter = field(init=False)

    @property
    def is_reading(self) -> bool:
        """Whether a query runs, or a call waits for a query."""
        return self._task is not None and not self._task.done()

    async def read(self, key: K) -> V:
        """Return the value of a key. Raise the error of the key, or the error of the query."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # futures and anyio's limiters belong to an event loop
            self._loop, self._task, self._thread = loop, None, CapacityLimiter(1)
            self._queued.clear()
        answer: asyncio.Future[V] = loop.create_future()
        self._queued.setdefault(key, []).append(answer)
        if not self.is_reading:
            self._task = asyncio.create_task(self._read_queued())
        return await answer

    async def _read_queued(self) -> None:
        while self._queued:
            keys = list(self._queued)[:MAX_BATCH]
            batch = {key: self._queued.pop(key) for key in keys}
            found: Mapping[K, V | Exception]
            try:
                found = await run_sync(self.read_many, keys, limiter=self._thread)
            except Exception as error:  # noqa: BLE001 - each call of the batch raises it
                found = dict.fromkeys(keys, error)
            for key, answers in batch.items():
                for answer in answers:
                    _resolve(answer, found[key])


def _resolve(answer: "asyncio.Future[V]", found: V | Exception) -> None:
    if answer.done():  # the call was cancelled
        return
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)
