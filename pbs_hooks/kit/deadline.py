"""One moment by which everything must be over: a hook in pbs_server's only thread stops the whole batch system.

Work in a child process: what may hang (a name server, a file server) or what is done as a user.

A child can be killed; a thread of pbs_server's interpreter could not, and would be there when PBS restarts that.
"""

import json
import os
import select
import signal
import time
from typing import Any, Callable, NoReturn, Optional


class DeadlineExceeded(Exception):
    """The time is up."""


class Deadline:
    """So many seconds from a moment on, by a clock that nobody sets (``time.monotonic``)."""

    def __init__(self, seconds: float, began: Optional[float] = None) -> None:
        """Begin at that moment, or now."""
        self._start = time.monotonic() if began is None else began
        self._end = self._start + seconds

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._start

    def left(self) -> float:
        """Give the seconds that are left; raises LateError when there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded
        return left


MAX_RESULT_BYTES = 1 << 20
STDERR = 2


class ChildError(Exception):
    """The child did not give what it was started for; the message says why."""


def run_in_child(work: Callable[[], Any], deadline: Deadline) -> Any:
    """Give what ``work`` gives (JSON), done in a child that ends with the deadline.

    Raises ChildError, with the words of what ``work`` raised. The child has none of the files that are open here.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run_child(work, writing)
    os.close(writing)
    try:
        text = _read_result(reading, deadline)
    finally:
        os.close(reading)
        _kill_child(pid)
    if not text:
        raise ChildError("a process for it ended early")
    said = json.loads(text.decode())
    if "error" in said:
        raise ChildError(said["error"])
    return said["result"]


def _run_child(work: Callable[[], Any], writing: int) -> NoReturn:
    """Never returns, whatever happens: this is a copy of the batch system's server."""
    try:
        _close_other_files(writing)
        try:
            said = {"result": work()}
        except Exception as error:  # noqa: BLE001 - it is told to the parent, which goes on with it
            said = {"error": str(error) or type(error).__name__}
        text = json.dumps(said).encode()
        while text:
            text = text[os.write(writing, text) :]
    finally:
        os._exit(0)


def _close_other_files(writing: int) -> None:
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(one, signal.SIG_DFL)
    for number in (int(name) for name in os.listdir("/proc/self/fd")):
        if number > STDERR and number != writing:
            _close_file(number)


def _close_file(number: int) -> None:
    try:
        os.close(number)
    except OSError:  # the folder's own, closed by now
        return


def _read_result(reading: int, deadline: Deadline) -> bytes:
    text = b""
    try:
        while len(text) <= MAX_RESULT_BYTES:
            if not select.select([reading], [], [], deadline.left())[0]:
                break
            part = os.read(reading, 1 << 16)
            if not part:
                return text
            text += part
    except DeadlineExceeded:
        raise ChildError("it took too long") from None
    raise ChildError("it took too long" if len(text) <= MAX_RESULT_BYTES else "it is too long")


def _kill_child(pid: int) -> None:
    """End the child. One that a file server holds cannot die yet: the server reaps it with its other children."""
    try:
        os.kill(pid, signal.SIGKILL)
        _reap(pid)
    except OSError:  # pbs_server was first: it reaps whatever ends
        return


def _reap(pid: int) -> Optional[int]:
    return os.waitpid(pid, os.WNOHANG)[0] or None
