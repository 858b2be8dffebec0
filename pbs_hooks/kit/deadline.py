"""A deadline, and work in a child process that is killed at the deadline.

A hook runs in the only thread of pbs_server, so a hook that hangs stops the whole batch system. A child process runs
work that may hang (calls to a name server or a file server) or that needs the rights of a user. A thread could not be
killed.
"""

import json
import os
import select
import signal
import time
from typing import Any, Callable, NoReturn, Optional


class DeadlineExceeded(Exception):
    """The deadline has passed."""


class Deadline:
    """A point in time on the monotonic clock: a number of seconds after a start time."""

    def __init__(self, seconds: float, began: Optional[float] = None) -> None:
        """Set the deadline to ``seconds`` after ``began`` (monotonic seconds; default: now)."""
        self._start = time.monotonic() if began is None else began
        self._end = self._start + seconds

    @property
    def spent(self) -> float:
        """The seconds since the start time."""
        return time.monotonic() - self._start

    def left(self) -> float:
        """Return the seconds until the deadline. Raise DeadlineExceeded if the deadline has passed."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded
        return left


MAX_RESULT_BYTES = 1 << 20
STDERR = 2


class ChildError(Exception):
    """The child process returned no result. The message contains the reason."""


def run_in_child(work: Callable[[], Any], deadline: Deadline) -> Any:
    """Call ``work`` in a child process, and return the result of ``work``. Kill the child at the deadline.

    The child sends the result as JSON. Raise ChildError if ``work`` raises an exception, no process starts, the
    deadline passes, or the result is incomplete or longer than ``MAX_RESULT_BYTES``.
    """
    pipe = ()  # type: Any
    try:
        reading, writing = pipe = os.pipe()
        pid = os.fork()
    except OSError as error:
        for descriptor in pipe:
            os.close(descriptor)
        raise ChildError("cannot start a process: %s" % error.strerror) from None
    if pid == 0:
        _run_child(work, writing)
    os.close(writing)
    try:
        text = _read_result(reading, deadline)
    finally:
        os.close(reading)
        _kill_child(pid)
    try:
        answer = json.loads(text.decode())
    except ValueError:
        raise ChildError("the child process ended without a complete result") from None
    if "error" in answer:
        raise ChildError(answer["error"])
    return answer["result"]


def _run_child(work: Callable[[], Any], writing: int) -> NoReturn:
    """Run ``work``, send its result, and always end this process, which is a copy of the batch system's server."""
    try:
        _close_other_files(writing)
        try:
            answer = {"result": work()}
        except Exception as error:  # noqa: BLE001 - the parent process raises ChildError with the message
            answer = {"error": str(error) or type(error).__name__}
        text = json.dumps(answer).encode()
        while text:
            text = text[os.write(writing, text) :]
    finally:
        os._exit(0)


def _close_other_files(writing: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    for descriptor in (int(name) for name in os.listdir("/proc/self/fd")):
        if descriptor > STDERR and descriptor != writing:
            _close_file(descriptor)


def _close_file(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:  # os.listdir opened a descriptor to read the folder, and has closed this descriptor
        return


def _read_result(reading: int, deadline: Deadline) -> bytes:
    text, readable = b"", select.poll()  # select(2) cannot wait for descriptors above 1023
    readable.register(reading, select.POLLIN)
    try:
        while len(text) <= MAX_RESULT_BYTES:
            if not readable.poll(deadline.left() * 1000):
                break
            part = os.read(reading, 1 << 16)
            if not part:
                return text
            text += part
    except DeadlineExceeded:
        raise ChildError("no result within the time limit") from None
    if len(text) > MAX_RESULT_BYTES:
        raise ChildError("the result is longer than %d bytes" % MAX_RESULT_BYTES)
    raise ChildError("no result within the time limit")


def _kill_child(pid: int) -> None:
    """Kill the child. A child that waits for a file server ends only after the wait.

    The PBS server reaps this child later, together with its other children.
    """
    try:
        os.kill(pid, signal.SIGKILL)
        _reap(pid)
    except OSError:  # pbs_server reaped the child first
        return


def _reap(pid: int) -> Optional[int]:
    return os.waitpid(pid, os.WNOHANG)[0] or None
