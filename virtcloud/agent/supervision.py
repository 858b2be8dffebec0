"""Whether the agent still works: its long-lived threads, systemd's watchdog, and an end with an error.

A thread ends only when it is told to. One that ends otherwise, or completes no work for longer than its patience, ends
the agent with exit code 1, so that systemd starts it again. systemd's watchdog (sd_notify(3), sd_watchdog_enabled(3))
is fed when the converger has completed a piece of work, and only while every other thread does: a timer that feeds it
would hide a loop that hangs.

Stopping promptly: a signal ends a wait at once, and a change between two steps.
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


class StopRequested(BaseException):
    """The agent was asked to stop. No Exception: nothing that handles errors is to catch it."""


class StopSignal:
    """Whether the agent was asked to stop. Waits are interrupted; what changes something is not."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Not asked yet; ``sleep`` waits some seconds."""
        self.requested = False
        self.failure: str | None = None
        self._on_signals = False
        self._interruptible = False
        self._sleep = sleep

    def on_signals(self) -> None:
        """Take SIGTERM and SIGINT as the request; only the main thread may call this."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self.request())
        self._on_signals = True

    def request(self) -> None:
        """Ask the agent to stop."""
        self.requested = True
        if self._interruptible:
            raise StopRequested

    def fail(self, reason: str) -> None:
        """Ask the agent to stop, from any thread, because a part of it does not work; the first reason is kept."""
        self.failure = self.failure or reason
        self.requested = True
        main = threading.main_thread().ident
        if self._on_signals and main is not None:
            signal.pthread_kill(main, signal.SIGTERM)  # interrupts the main thread's wait

    def check(self) -> None:
        """Raise :class:`Stopped` if asked to stop."""
        if self.requested:
            raise StopRequested

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the signal end what is done here, wherever it is."""
        self._interruptible = True
        try:
            self.check()
            yield
        finally:
            self._interruptible = False

    def pause(self, seconds: float) -> None:
        """Wait, unless asked to stop: then raise :class:`Stopped`."""
        with self.interruptible():
            self._sleep(seconds)


ReportProgress = Callable[[], None]
"""To be called by a thread after each completed piece of work."""
ThreadWork = Callable[[ReportProgress], None]
StartSupervisedThread = Callable[[str, ThreadWork, float], threading.Thread]
"""Start a thread: its name, its work, and the seconds that one piece of work may take."""
READY, WATCHDOG, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"


class AgentFailed(VirtcloudError):
    """A part of the agent ended or hangs; the agent ends, to be started again."""

    slug = "agent-failed"


def notify_systemd(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send a state to the service manager that started the agent; without one, do nothing."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    place = f"\0{address[1:]}" if address.startswith("@") else address  # an abstract address, unix(7)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
            link.sendto(state.encode(), place)
    except OSError as error:
        log.warning("not_notified", socket=address, state=state, error=error)


def start_unsupervised(name: str, work: ThreadWork, _patience_s: float) -> threading.Thread:
    """Start a thread that nobody watches."""
    thread = threading.Thread(target=work, args=(lambda: None,), name=name, daemon=True)
    thread.start()
    return thread


@dataclass(slots=True)
class _SupervisedThread:
    """A thread, its patience, and when it last completed a piece of work."""

    thread: threading.Thread
    patience_s: float
    beaten: float


class ThreadSupervisor:
    """The threads of this agent, and its watchdog."""

    def __init__(
        self,
        stop: StopSignal,
        tell: Callable[[str], None] = notify_systemd,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch no thread yet; ``tell`` reaches the service manager, ``clock`` counts seconds."""
        self._stop = stop
        self._tell = tell
        self._clock = clock
        self._watched: dict[str, _SupervisedThread] = {}

    def start(self, name: str, work: ThreadWork, patience_s: float) -> threading.Thread:
        """Start a thread that is watched from now on; of the type :data:`Start`."""
        thread = threading.Thread(target=self._run, args=(name, work), name=name, daemon=True)
        self._watched[name] = _SupervisedThread(thread, patience_s, self._clock())
        thread.start()
        return thread

    def ready(self) -> None:
        """Report that the agent is up."""
        self._tell(READY)

    def ending(self) -> None:
        """Report that the agent ends, and let its threads end."""
        self._watched.clear()
        self._tell(STOPPING)

    def progress(self) -> None:
        """Feed the watchdog: the caller completed a piece of work. End the agent when a thread does not work."""
        faults = [words for name, one in self._watched.items() if (words := self._fault(name, one))]
        if faults:
            self._stop.fail("; ".join(faults))
        else:
            self._tell(WATCHDOG)

    def _fault(self, name: str, one: _SupervisedThread) -> str | None:
        if not one.thread.is_alive():
            return f"the thread {name} has ended"
        idle = self._clock() - one.beaten
        return f"the thread {name} has completed nothing for {idle:.0f} s" if idle > one.patience_s else None

    def _beat(self, name: str) -> None:
        if name in self._watched:
            self._watched[name].beaten = self._clock()

    def _run(self, name: str, work: ThreadWork) -> None:
        words = "ended without having been told to"
        try:
            work(lambda: self._beat(name))
        except BaseException as error:  # noqa: BLE001 - whatever ends a thread ends the agent
            words = f"ended with {type(error).__name__}: {error}"
            log.exception("thread_ended", thread=name)
        if name in self._watched:
            self._stop.fail(f"the thread {name} {words}")
