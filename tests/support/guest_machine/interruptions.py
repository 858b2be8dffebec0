"""Kills of an agent, and faults of its disk, at any change of the host.

The agent's threads run one at a time. A thread that waits for its turn is *parked*.
"""

import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from virtcloud.agent import files
from virtcloud.agent.guests import partial_files

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CALLS = ("mkdir", "rename", "unlink", "rmdir", "chmod", "chown", "fsync", "utime", "truncate", "symlink")
GROWING = ("mkdir", "symlink")


class Killed(BaseException):
    """The agent is killed. No code of the agent runs afterwards, except code without an effect on the host."""


class Interruptions:
    """Counts the agent's changes of the host, and interrupts the agent at a certain change."""

    def __init__(self) -> None:
        self.is_running = self.is_dead = self.is_full = self.stays_full = False
        self.left = 0

    def plan(self, left: int, *, full: bool = False, stays_full: bool = False) -> None:
        self.left, self.is_full, self.stays_full = left, full, stays_full

    def tick(self, *, grows: bool = False) -> None:
        if not self.is_running:
            return
        if self.is_dead:
            raise Killed
        if not self.left:
            return
        self.left -= 1
        if self.left:
            return
        if not self.is_full:
            self.is_dead = True
            raise Killed
        self.left = int(self.stays_full or not grows)
        if grows:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def paused(self) -> Iterator[None]:
        former, self.is_running = self.is_running, False
        try:
            yield
        finally:
            self.is_running = former

    def guard_files(self, patch: pytest.MonkeyPatch) -> None:
        """Count the calls of the functions that change files. Do not sync files: no test simulates a power loss."""
        for name in CALLS:
            patch.setattr(os, name, self._guard(getattr(os, name), name))
        patch.setattr(os, "sync", lambda: None)
        real_open, real_io_open = os.open, io.open

        def open_descriptor(path: Any, flags: int, *arguments: Any, **options: Any) -> Any:
            if not flags & WRITES:
                return real_open(path, flags, *arguments, **options)
            self.tick(grows=bool(flags & os.O_CREAT))
            descriptor = real_open(path, flags, *arguments, **options)
            return self._after(descriptor, lambda: os.close(descriptor))

        def open_file(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+"):
                return real_io_open(file, mode, *arguments, **options)
            self.tick(grows="r" not in mode)
            opened = real_io_open(file, mode, *arguments, **options)
            return self._after(opened, opened.close)

        patch.setattr(os, "open", open_descriptor)
        patch.setattr(io, "open", open_file)

        def write_all(file: Any, data: bytes) -> None:
            self.tick(grows=True)
            files.write_all(file, data)

        patch.setattr(partial_files, "write_all", write_all)

    def _after(self, opened: Any, close: Callable[[], object]) -> Any:
        try:
            self.tick()
        except Killed:
            close()
            raise
        return opened

    def _guard(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            # Nothing is synced. A kill here takes effect at the next change, so that the agent closes the file.
            if name == "fsync":
                with suppress(Killed):
                    self.tick(grows=True)
                return None
            self.tick(grows=name in GROWING)
            return real(*arguments, **options)

        return call


class Turns:
    """The threads of fetches. One thread at a time runs, and only while the test waits in `settle` or `resume`."""

    def __init__(self, interruptions: Interruptions) -> None:
        self._interruptions = interruptions
        self.parked: list[tuple[threading.Thread, str]] = []
        self._signals: dict[threading.Thread, threading.Semaphore] = {}
        self._back = threading.Semaphore(0)

    def make_thread(self, target: Callable[..., object], args: tuple[object, ...], name: str, daemon: bool) -> Any:
        def run() -> None:
            try:
                with suppress(Killed):
                    self._wait(thread)
                    target(*args)
            finally:
                self._back.release()

        thread = threading.Thread(target=run, name=name, daemon=daemon)
        self._signals[thread] = threading.Semaphore(0)

        def start() -> None:
            self.parked.append((thread, "start"))
            thread.start()

        return SimpleNamespace(start=start)

    def make_semaphore(self, count: int) -> "TurnSemaphore":
        return TurnSemaphore(self, count)

    def park(self, place: str) -> None:
        thread = threading.current_thread()
        self.parked.append((thread, place))
        self._back.release()
        self._wait(thread)

    def _wait(self, thread: threading.Thread) -> None:
        self._signals[thread].acquire()
        if self._interruptions.is_dead:
            raise Killed

    def resume(self, *places: str) -> bool:
        """Run each thread that is parked at one of these places until it ends or parks. Return whether one ran."""
        found = [one for one in self.parked if one[1] in places]
        for thread, place in found:
            self.parked.remove((thread, place))
            self._signals[thread].release()
            self._back.acquire()
        return bool(found)

    def settle(self) -> None:
        for _ in range(6):
            self.resume("start", "slot")


class TurnSemaphore:
    """A semaphore at which the threads of `Turns` park."""

    def __init__(self, turns: Turns, count: int) -> None:
        self._turns, self._count = turns, count

    def acquire(self) -> None:
        while not self._count:
            self._turns.park("slot")
        self._count -= 1

    def release(self) -> None:
        self._count += 1
