"""When a start may be interrupted: at any time, but for the moments in which something would be lost sight of."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

ENDS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Treat a request to end (SIGTERM) like an interrupt."""

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    _set(signal.SIGTERM, interrupted)
    try:
        yield
    finally:
        _set(signal.SIGTERM, before)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold interrupts and requests to end back until the body is through.

    Python's handlers change, not the mask of signals: a process that the body starts has the usual ones.
    """
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in ENDS}
    for number in ENDS:
        _set(number, lambda which, _: came.append(which))
    try:
        yield
    finally:
        for number, handler in before.items():
            _set(number, handler)
        for first in came[:1]:
            signal.raise_signal(first)


def _set(number: int, handler: Any) -> None:  # noqa: ANN401 - whatever the signal module gave us
    try:
        signal.signal(number, handler)
    except ValueError:  # not in the main thread: then nobody interrupts us either
        return
