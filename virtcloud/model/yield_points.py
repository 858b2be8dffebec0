"""Yield points: places in a long computation where the computing thread may pause, so that other threads run. Pure.

Python runs one thread at a time. A thread that computes for seconds delays other threads each time they request the
interpreter, for example after each row that they read from SQLite. SBF therefore sets a function that pauses the
computing thread (``sbf_service/large_documents.py``). Without such a function, yield points do nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

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


def with_yield_points(items: Iterable[T]) -> Iterable[T]:
    """Return ``items``, with a yield point before each item."""
    pause = _PAUSE.get()
    return items if pause is None else _pause_before_each(items, pause)


def _pause_before_each(items: Iterable[T], pause: Callable[[], None]) -> Iterator[T]:
    for item in items:
        pause()
        yield item
