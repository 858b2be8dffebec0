"""The threads in which the asynchronous client runs calls, and the cancellation of calls."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Event, Lock, Thread
from typing import Any, Generic, NoReturn, TypeVar
from weakref import WeakSet

from anyio import CapacityLimiter, from_thread, get_cancelled_exc_class, to_thread

from virtcloud.client.session_stream import SessionStream
from virtcloud.client.waiting import open_progress

MAX_THREADS = 64
"""Maximum number of simultaneous calls of one client. Each call needs a connection to SBF."""
R = TypeVar("R")


@dataclass
class CallThreads:
    """The threads of one client's calls. The thread of a cancelled call continues until the call ends.

    ``streams`` are the client's sessions with guests. At its end, the client closes the sessions that are still open.
    """

    limiter: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(MAX_THREADS))
    running: int = 0
    streams: WeakSet[SessionStream] = field(default_factory=WeakSet)
    _changed: Condition = field(default_factory=Condition)

    async def run(self, call: Callable[[], R], dispose: Callable[[R], object] | None = None) -> R:
        """Return the result of ``call``, which runs in a thread.

        If the task is cancelled, a thread calls ``dispose`` with the result.
        """
        delivery = _Delivery(call, dispose)
        try:
            return await to_thread.run_sync(
                partial(self._count, delivery.run), abandon_on_cancel=True, limiter=self.limiter
            )
        except get_cancelled_exc_class():
            for disposal in delivery.abandon():
                self._add(1)
                Thread(target=self._run_counted, args=(disposal,), daemon=True).start()
            raise

    async def end_calls(self) -> None:
        """Close the open streams, and wait until no thread runs a call.

        The wait is finite, because each call to SBF has a timeout.
        """
        for stream in list(self.streams):
            await to_thread.run_sync(stream.close)
        await to_thread.run_sync(self.wait_idle)

    def wait_idle(self) -> None:
        """Wait until no thread runs a call."""
        with self._changed:
            self._changed.wait_for(lambda: not self.running)

    def _count(self, call: Callable[[], R]) -> R:
        self._add(1)
        return self._run_counted(call)

    def _run_counted(self, call: Callable[[], R]) -> R:
        try:
            return call()
        finally:
            self._add(-1)

    def _add(self, number: int) -> None:
        with self._changed:
            self.running += number
            self._changed.notify_all()


class _Delivery(Generic[R]):
    """A call whose result is disposed of if no task waits for the result any more. Thread-safe."""

    def __init__(self, call: Callable[[], R], dispose: Callable[[R], object] | None) -> None:
        """Store the call, and the function for a result without a receiver."""
        self._call = call
        self._dispose = dispose
        self._lock = Lock()
        self._is_abandoned = False
        self._results: list[R] = []

    def run(self) -> R:
        """Return the result of the call. Dispose of the result if `abandon` was called before."""
        result = self._call()
        with self._lock:
            self._results.append(result)
            is_abandoned = self._is_abandoned
        if is_abandoned and self._dispose:
            self._dispose(result)
        return result

    def abandon(self) -> list[Callable[[], object]]:
        """Record that no task waits for the result. If the result exists, return the call that disposes of it."""
        with self._lock:
            self._is_abandoned = True
            return [partial(self._dispose, result) for result in self._results] if self._dispose else []


@dataclass(eq=False)
class _Reader(Generic[R]):
    is_cancelled: bool = False
    outcome: Callable[[], R] | None = None
    """A function that returns the result, or raises the error of the call. None until the call has ended."""


class RepeatedCall(Generic[R]):
    """A call that tasks repeat, such as the reception of the next bytes. Its runs do not overlap. Thread-safe.

    The task after a cancelled task gets the result of the cancelled task's run.
    """

    def __init__(self, threads: CallThreads, call: Callable[[], R]) -> None:
        """Store the threads and the call."""
        self._threads = threads
        self._call = call
        self._changed = Condition()
        self._is_running = False
        self._unread: list[Callable[[], R]] = []

    async def run(self) -> R:
        """Return the next result. Raise the error of the call."""
        reader = _Reader[R]()
        try:
            return await self._threads.run(partial(self._read, reader))
        except get_cancelled_exc_class():
            with self._changed:
                reader.is_cancelled = True
                if reader.outcome is not None:
                    self._unread.append(reader.outcome)
                self._changed.notify_all()
            raise

    def _read(self, reader: _Reader[R]) -> R:
        outcome = self._take_unread(reader) or self._run_call(reader)
        return outcome()

    def _take_unread(self, reader: _Reader[R]) -> Callable[[], R] | None:
        """Wait until no thread runs the call. Return an unread outcome, or None if the caller must run the call."""
        with self._changed:
            self._changed.wait_for(lambda: reader.is_cancelled or not self._is_running)
            if reader.is_cancelled:
                raise RuntimeError("the call was abandoned")  # no task receives this error
            if self._unread:
                reader.outcome = self._unread.pop(0)
                return reader.outcome
            self._is_running = True
            return None

    def _run_call(self, reader: _Reader[R]) -> Callable[[], R]:
        outcome = _find_outcome(self._call)
        with self._changed:
            self._is_running = False
            if reader.is_cancelled:
                self._unread.append(outcome)
            else:
                reader.outcome = outcome
            self._changed.notify_all()
        return outcome


def _find_outcome(call: Callable[[], R]) -> Callable[[], R]:
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - raised by the returned function
        return partial(_raise, error)
    return lambda: result


def _raise(error: Exception) -> NoReturn:
    raise error


class CallAbandoned(BaseException):
    """The error that ends a call in its thread, after the waiting task was cancelled. Callers never receive it."""


async def run_waiting(threads: CallThreads, method: Callable[..., R], bound: inspect.BoundArguments) -> R:
    """Run a method that waits for SBF, such as ``wait_active``, in a thread.

    The caller's callback ``progress`` runs in the event loop's thread. The method receives ``relay`` as its callback,
    and calls ``relay`` at least every second while SBF answers. If the task is cancelled, the next call of ``relay``
    raises CallAbandoned and thereby ends the method.
    """
    cancelled = Event()
    with open_progress(bound.arguments.get("progress")) as shown:

        def relay(view: Any) -> None:  # noqa: ANN401 - a view of a cluster or of a guest
            if cancelled.is_set():
                raise CallAbandoned
            if shown is not None:
                from_thread.run_sync(shown, view)

        bound.arguments["progress"] = relay
        try:
            return await threads.run(partial(_end_if_abandoned, method, bound))
        finally:
            cancelled.set()


def _end_if_abandoned(method: Callable[..., R], bound: inspect.BoundArguments) -> R:
    with suppress(CallAbandoned):
        return method(*bound.args, **bound.kwargs)
    raise RuntimeError("the call was abandoned")
