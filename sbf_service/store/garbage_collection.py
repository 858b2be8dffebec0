"""Python's garbage collection while a large document is parsed.

The parser creates millions of objects without cycles. Collections during the parsing take two thirds of its time, and
each later full collection would visit these objects again, which delays calls by up to half a second.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

LARGE = 1 << 20
"""The size in bytes from which a document is large."""
_lock = Lock()
_users: set[object] = set()


@contextmanager
def collect_later(size: int) -> Iterator[None]:
    """Disable collections during the context if a document of ``size`` bytes is large. Thread-safe.

    Afterwards, collections no longer visit the objects that exist then. Objects without cycles are still freed.
    """
    if size < LARGE:
        yield
        return
    user = object()
    with _lock:
        _users.add(user)
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _users.remove(user)
            if not _users:
                gc.freeze()
                gc.enable()
