"""Yield points: places in a long computation where the computing thread may pause, so that other threads run. Pure.

Python runs one thread at a time. A thread that computes for seconds delays other threads each time they request the
interpreter, for example after each row that they read from SQLite. SBF therefore sets a function that pauses the
computing thread (``sbf_service/large_documents.py``).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any, Self, TypeVar, overload

T = TypeVar("T")
MANY = 100
"""The number of items between two yield points in loops whose single items take microseconds."""

_PAUSE: ContextVar[Callable[[], None] | None] = ContextVar("virtcloud_pause", default=None)


@contextmanager
def pausing_with(pause: Callable[[], None]) -> Iterator[None]:
    """Call ``pause`` at each yield point of the current thread, until the end of the context."""
    token = _PAUSE.set(pause)
    try:
        yield
    finally:
        _PAUSE.reset(token)


def yield_point() -> None:
    """Pause the current thread, if necessary."""
    pause = _PAUSE.get()
    if pause is not None:
        pause()


def with_yield_points(items: Iterable[T], *, every: int = 1) -> Iterable[T]:
    """Return ``items``, with a yield point before the first item and then before each group of ``every`` items."""
    pause = _PAUSE.get()
    return items if pause is None else _pause_between(items, pause, every)


class pausable_property(cached_property[T]):  # noqa: N801 - named like cached_property
    """A cached property whose computation contains yield points.

    Python 3.11 computes a cached property with a lock that all instances of the class share. During a pause, other
    threads would wait for this lock, possibly in a transaction. Without the lock, two threads may both compute a value.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self | T:
        """Compute and cache the value. Later uses of the property find the value in the object's ``__dict__``."""
        if instance is None:
            return self
        value = self.func(instance)
        vars(instance)[self.attrname or ""] = value
        return value


def _pause_between(items: Iterable[T], pause: Callable[[], None], every: int) -> Iterator[T]:
    for number, item in enumerate(items):
        if not number % every:
            pause()
        yield item
