"""Fan-out: the same work with many guests at the same time, such as a command over ssh.

Each guest's work runs in a thread of a pool. The calling thread enforces the time limits, and kills processes that do
not end.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar

from virtcloud.client.ssh_arguments import SshArguments, require_ssh
from virtcloud.model.errors import BadInput, TimedOut

DEFAULT_JOBS = 32
"""Default number of guests with which the work runs at the same time.

By default, SBF allows each user 100 sessions (``relay.sessions_per_user``).
"""
TICK_S = 0.1
"""Pause in seconds between two checks of the time limits."""
GRACE_S = 2.0
"""Time in seconds from SIGTERM to SIGKILL."""
R = TypeVar("R")


class FanOutProgress(NamedTuple):
    """The number of guests with which the work has ended, and the number of all guests."""

    ended: int
    total: int


ShowFanOut = Callable[[FanOutProgress], None]
"""A function that is called at least every second until the work with all guests has ended."""


class GuestTask:
    """The work with one guest: its processes and its time limit. Thread-safe."""

    def __init__(self, timeout: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """``timeout`` is the time limit in seconds, which begins with the call of `begin`."""
        self._timeout = timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._began: float | None = None
        self._ended_at: float | None = None
        self._ended = threading.Event()
        self.is_late = False

    def begin(self) -> None:
        """Start to measure the time of the work."""
        self._began = self._clock()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning of the work; 0 if the work has not begun."""
        return 0.0 if self._began is None else self._clock() - self._began

    def pause(self, seconds: float) -> bool:
        """Wait ``seconds`` and return True. Return False at once if the work is ended.

        :meth:`end` can end the work before or during the wait.
        """
        return not self._ended.wait(seconds)

    @contextmanager
    def run(self, arguments: SshArguments, stdin: int, stdout: int) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program with these standard streams within the block. The program's stderr is a pipe.

        The program runs in its own process session (setsid(2)), so Ctrl-C at the terminal does not end the program. An
        exception in the block ends the work. If the work has already ended, raise TimedOut. Raise BadInput if the
        program cannot be started.
        """
        with self._lock:
            if self._ended_at is not None:
                raise TimedOut("the work was interrupted")
            process = _start(arguments, stdin, stdout)
            self._processes.append(process)
        try:
            with process:
                try:
                    yield process
                except BaseException:
                    self.end()
                    raise
        finally:
            with self._lock:
                self._processes.remove(process)

    def check_time(self) -> None:
        """End the work if its time limit has passed. Kill processes that do not end within the grace period."""
        if self._timeout is not None and self.seconds > self._timeout and self._ended_at is None:
            self.is_late = True
            self.end()
        elif self._ended_at is not None and self._clock() - self._ended_at > GRACE_S:
            self._signal(signal.SIGKILL)

    def end(self) -> None:
        """End the work: send SIGTERM to its processes, and start no further process. Idempotent."""
        if self._ended_at is None:
            self._ended_at = self._clock()
            self._ended.set()
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        with self._lock:
            for process in self._processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)


def _start(arguments: SshArguments, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    try:
        with require_ssh():
            return subprocess.Popen(  # noqa: S603 - no shell
                arguments, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, start_new_session=True
            )
    except OSError as error:
        raise BadInput(f"{arguments[0]} cannot be started: {error.strerror}") from error


def fan_out(
    names: Iterable[str],
    work: Callable[[str, GuestTask], R],
    jobs: int = DEFAULT_JOBS,
    timeout: float | None = None,
    progress: ShowFanOut | None = None,
) -> dict[str, R]:
    """Return the result of ``work`` for each name, in the order of the names. At most ``jobs`` calls run at once.

    After Ctrl-C, or an exception of ``work`` or ``progress``, end the work with all guests and raise the exception.
    """
    tasks = {name: GuestTask(timeout) for name in names}
    threads = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="guest")
    futures = {name: threads.submit(_work, work, name, task) for name, task in tasks.items()}
    ended = 0
    try:
        for done in _watch(futures.values(), tasks.values()):
            ended += len(done)
            if progress:
                progress(FanOutProgress(ended, len(futures)))
            for future in done:
                future.result()
        return {name: future.result() for name, future in futures.items()}
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for task in tasks.values():
            task.end()
        for _ in _watch([future for future in futures.values() if not future.cancelled()], tasks.values()):
            pass


def _work(work: Callable[[str, GuestTask], R], name: str, task: GuestTask) -> R:
    task.begin()
    return work(name, task)


def _watch(futures: Collection[Future[R]], tasks: Collection[GuestTask]) -> Iterator[set[Future[R]]]:
    waiting = set(futures)
    while True:
        done, waiting = wait(waiting, TICK_S, FIRST_COMPLETED)
        yield done
        if not waiting:
            return
        for task in tasks:
            task.check_time()
