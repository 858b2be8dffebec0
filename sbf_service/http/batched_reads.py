"""Reads that simultaneous calls share: the next query answers all calls that arrived while a query ran."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from virtcloud.model.errors import VirtcloudError

MAX_BATCH = 500
"""The largest number of names in one query."""
V = TypeVar("V")


@dataclass
class BatchedReads(Generic[V]):
    """Reads the values of names, in one thread. Used by one event loop only.

    ``read_many`` returns the value of each name, or the error that concerns only this name. A value is always read
    after the call for it has begun.
    """

    read_many: Callable[[Collection[str]], Mapping[str, V | VirtcloudError]]
    _queued: dict[str, list["asyncio.Future[V]"]] = field(default_factory=dict)
    _task: "asyncio.Task[None] | None" = None
    _thread: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))

    async def read(self, name: str) -> V:
        """Return the value of a name. Raise the error of the name, or the error of the query."""
        answer: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self._queued.setdefault(name, []).append(answer)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read_queued())
        return await answer

    async def _read_queued(self) -> None:
        while self._queued:
            names = list(self._queued)[:MAX_BATCH]
            batch = {name: self._queued.pop(name) for name in names}
            found: Mapping[str, V | Exception]
            try:
                found = await run_sync(self.read_many, names, limiter=self._thread)
            except Exception as error:  # noqa: BLE001 - each call of the batch raises it
                found = dict.fromkeys(names, error)
            for name, answers in batch.items():
                for answer in answers:
                    _resolve(answer, found[name])


def _resolve(answer: "asyncio.Future[V]", found: V | Exception) -> None:
    if answer.done():  # the call was cancelled
        return
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)
