import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock, Thread, get_ident
from time import monotonic

import pytest

from sbf_service.store.connections.database import make_engine
from sbf_service.store.store import Store
from sbf_service.store.transactions.fair_lock import FairLock


def start_waiting(
    lock: FairLock, order: list[str], name: str, acquired: Callable[[], AbstractContextManager[object]] | None = None
) -> Thread:
    """Start a thread that acquires the lock and appends ``name`` to ``order``. Return when the thread waits.

    ``acquired`` returns the context in which the thread holds the lock. The default is the context of the lock itself.
    """

    def acquire() -> None:
        with acquired() if acquired else lock:
            order.append(name)

    thread, before, deadline = Thread(target=acquire), lock.waiting, monotonic() + 60
    thread.start()
    while lock.waiting == before:
        assert monotonic() < deadline, f"{name} does not wait for the lock"
        os.sched_yield()
    return thread


def test_a_writer_does_not_overtake_those_who_wait() -> None:
    lock, order = FairLock(), list[str]()
    with lock:
        threads = [start_waiting(lock, order, name) for name in ("first", "second", "third")]
    with lock:
        order.append("again")
    for thread in threads:
        thread.join()
    assert order == ["first", "second", "third", "again"]


def test_writers_of_sqlite_queue_in_the_order_of_arrival(tmp_path: Path) -> None:
    store, order = Store(make_engine(f"sqlite:///{tmp_path}/sbf.db")), list[str]()
    with store.change_row():
        threads = [
            start_waiting(store._sqlite_writer, order, name, store.change_row) for name in ("first", "second", "third")
        ]
    with store.change_row():
        order.append("again")
    for thread in threads:
        thread.join()
    store.close()
    assert order == ["first", "second", "third", "again"]


def test_an_error_releases_the_lock() -> None:
    lock = FairLock()
    try:
        with lock:
            raise ValueError  # noqa: TRY301 - an error of a transaction
    except ValueError:
        pass
    with lock:
        assert lock.waiting == 0


def test_an_interrupted_thread_leaves_the_queue() -> None:
    lock, waiting = FairLock(), get_ident()

    def interrupt() -> None:
        while lock.waiting == 0:
            os.sched_yield()
        signal.pthread_kill(waiting, signal.SIGINT)

    interrupting = Thread(target=interrupt)
    with lock:
        interrupting.start()
        with pytest.raises(KeyboardInterrupt), lock:
            pass
        assert lock.waiting == 0
    interrupting.join()
    with lock:
        assert lock.waiting == 0


class InterruptedGuard:
    """A lock that raises KeyboardInterrupt after its first release, as if the thread received a signal."""

    def __init__(self) -> None:
        self._lock, self._is_interrupted = Lock(), False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()
        if not self._is_interrupted:
            self._is_interrupted = True
            raise KeyboardInterrupt


def test_a_thread_interrupted_after_the_acquisition_releases_the_lock() -> None:
    lock, order = FairLock(_guard=InterruptedGuard()), list[str]()  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt), lock:
        pass

    def acquire() -> None:
        with lock:
            order.append("next")

    thread = Thread(target=acquire, daemon=True)
    thread.start()
    thread.join(5)
    assert order == ["next"]
