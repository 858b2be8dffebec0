"""Supervision of the agent's threads, systemd's watchdog, and the request to stop.

A supervised thread must run until the agent stops. If the thread ends earlier, or reports no progress for longer than
its limit, the agent ends with exit code 1. Then systemd restarts the agent.

The agent notifies systemd's watchdog (sd_notify(3), sd_watchdog_enabled(3)) each time the reconciler reports progress,
if no other thread has failed. The agent uses no timer for these notifications, because a timer would continue while a
thread hangs.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from virtcloud.agent import log
from virtcloud.model.errors import VirtcloudError

ReportProgress = Callable[[], None]
"""A function that a thread calls regularly to show that it does not hang."""
ThreadWork = Callable[[ReportProgress], None]
StartSupervisedThread = Callable[[str, ThreadWork, float], threading.Thread]
"""A function that starts a thread.

The arguments are the thread's name, its work, and the longest time in seconds between two progress reports.
"""
READY, WATCHDOG, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"


class StopRequested(BaseException):
    """A stop of the agent was requested.

    This class is a BaseException, so handlers of Exception do not catch StopRequested.
    """


class StopSignal:
    """The request to stop the agent.

    The request ends a wait of the main thread at once. If the agent is changing the host, the request ends this change
    as soon as the current step of the change is complete.
    """

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Create the object without a request. ``sleep`` waits a number of seconds."""
        self.requested = False
        self.failure: str | None = None
        self._handles_signals = False
        self._interruptible = False
        self._sleep = sleep

    def handle_signals(self) -> None:
        """Treat SIGTERM and SIGINT as the request to stop. Only the main thread may call this method."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self.request())
        self._handles_signals = True

    def request(self) -> None:
        """Request the stop. Raise StopRequested if the main thread is in a block of `interruptible`."""
        self.requested = True
        if self._interruptible:
            raise StopRequested

    def fail(self, reason: str) -> None:
        """Request the stop because a thread of the agent failed. Store only the first reason. Thread-safe."""
        self.failure = self.failure or reason
        self.requested = True
        main = threading.main_thread().ident
        if self._handles_signals and main is not None:
            signal.pthread_kill(main, signal.SIGTERM)  # the handler interrupts a wait of the main thread

    def check(self) -> None:
        """Raise StopRequested if the stop was requested."""
        if self.requested:
            raise StopRequested

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise StopRequested within the block as soon as a signal requests the stop.

        If the stop was requested before, raise StopRequested instead of running the block.
        """
        self._interruptible = True
        try:
            self.check()
            yield
        finally:
            self._interruptible = False

    def pause(self, seconds: float) -> None:
        """Wait ``seconds``. If the stop is requested, raise StopRequested.

        In the main thread, the request ends the wait. Other threads raise the error after the wait.
        """
        if threading.current_thread() is threading.main_thread():
            with self.interruptible():
                self._sleep(seconds)
        else:
            self._sleep(seconds)  # in another thread, `interruptible` would interrupt the main thread
            self.check()


class AgentFailed(VirtcloudError):
    """A thread of the agent has ended or hangs. The agent ends, and systemd restarts the agent."""

    slug = "agent-failed"


def notify_systemd(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send a state to systemd (sd_notify(3)).

    If NOTIFY_SOCKET is unset, systemd did not start the agent, and this function does nothing.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    path = f"\0{address[1:]}" if address.startswith("@") else address  # an abstract address, unix(7)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto(state.encode(), path)
    except OSError as error:
        log.warning("systemd_not_notified", socket=address, state=state, error=error)


def start_unsupervised(name: str, work: ThreadWork, _max_idle_s: float) -> threading.Thread:
    """Start a thread without supervision. The parameters are those of a `StartSupervisedThread`."""
    thread = threading.Thread(target=work, args=(lambda: None,), name=name, daemon=True)
    thread.start()
    return thread


@dataclass(slots=True)
class _SupervisedThread:
    thread: threading.Thread
    max_idle_s: float
    last_progress: float


class ThreadSupervisor:
    """Supervises the agent's threads, and notifies systemd's watchdog."""

    def __init__(
        self,
        stop: StopSignal,
        notify: Callable[[str], None] = notify_systemd,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the supervisor. ``notify`` sends a state to systemd. ``clock`` returns seconds."""
        self._stop = stop
        self._notify = notify
        self._clock = clock
        self._threads: dict[str, _SupervisedThread] = {}

    def start(self, name: str, work: ThreadWork, max_idle_s: float) -> threading.Thread:
        """Start a supervised thread. The parameters are those of a `StartSupervisedThread`."""
        thread = threading.Thread(target=self._run, args=(name, work), name=name, daemon=True)
        self._threads[name] = _SupervisedThread(thread, max_idle_s, self._clock())
        thread.start()
        return thread

    def report_ready(self) -> None:
        """Report to systemd that the agent is ready."""
        self._notify(READY)

    def report_stopping(self) -> None:
        """Report to systemd that the agent stops. From now on, the end of a thread is no failure."""
        self._threads.clear()
        self._notify(STOPPING)

    def report_progress(self) -> None:
        """Notify the watchdog. If a supervised thread has failed, stop the agent instead."""
        failures = [
            text for name, supervised in self._threads.items() if (text := self._describe_failure(name, supervised))
        ]
        if failures:
            self._stop.fail("; ".join(failures))
        else:
            self._notify(WATCHDOG)

    def _describe_failure(self, name: str, supervised: _SupervisedThread) -> str | None:
        if not supervised.thread.is_alive():
            return f"the thread {name} has ended"
        idle = self._clock() - supervised.last_progress
        return f"the thread {name} has made no progress for {idle:.0f} s" if idle > supervised.max_idle_s else None

    def _record_progress(self, name: str) -> None:
        if name in self._threads:
            self._threads[name].last_progress = self._clock()

    def _run(self, name: str, work: ThreadWork) -> None:
        reason = "ended without a request to stop"
        try:
            work(lambda: self._record_progress(name))
        except BaseException as error:  # noqa: BLE001 - any error that ends a thread ends the agent
            reason = f"ended with {type(error).__name__}: {error}"
            log.exception("thread_ended", thread=name)
        if name in self._threads:
            self._stop.fail(f"the thread {name} {reason}")
