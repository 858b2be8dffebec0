"""Tests of the lock that queues SQLite's writers."""

import os
from threading import Thread

from sbf_service.store.fair_lock import FairLock


def start_waiting(lock: FairLock, order: list[str], name: str) -> Thread:
    """Start a thread that acquires the lock and appends its name. Return when the thread waits."""

    def acquire() -> None:
        with lock:
            order.append(name)

    thread, before = Thread(target=acquire), lock.waiting
    thread.start()
    while lock.waiting == before:
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


def test_an_error_releases_the_lock() -> None:
    lock = FairLock()
    try:
        with lock:
            raise ValueError  # noqa: TRY301 - an error of a transaction
    except ValueError:
        pass
    with lock:
        assert lock.waiting == 0
