"""Work in a child process: what may hang (a name server, a file server) or what is done as a user.

A child can be killed; a thread of pbs_server's interpreter could not, and would be there when PBS restarts that.
"""

import json
import os
import select
import signal
from typing import Any, Callable, NoReturn, Optional

from virtcloud.pbs.hooks.deadline import Deadline, LateError

MOST_BYTES = 1 << 20
STDERR = 2


class ChildError(Exception):
    """The child did not give what it was started for; the message says why."""


def in_child(work: Callable[[], Any], deadline: Deadline) -> Any:
    """Give what ``work`` gives (JSON), done in a child that ends with the deadline.

    Raises ChildError, with the words of what ``work`` raised. The child has none of the files that are open here.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _work(work, writing)
    os.close(writing)
    try:
        text = _read(reading, deadline)
    finally:
        os.close(reading)
        _end(pid)
    if not text:
        raise ChildError("a process for it ended early")
    said = json.loads(text.decode())
    if "error" in said:
        raise ChildError(said["error"])
    return said["result"]


def _work(work: Callable[[], Any], writing: int) -> NoReturn:
    """Never returns, whatever happens: this is a copy of the batch system's server."""
    try:
        _keep_only(writing)
        try:
            said = {"result": work()}
        except Exception as error:  # noqa: BLE001 - it is told to the parent, which goes on with it
            said = {"error": str(error) or type(error).__name__}
        text = json.dumps(said).encode()
        while text:
            text = text[os.write(writing, text) :]
    finally:
        os._exit(0)


def _keep_only(writing: int) -> None:
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(one, signal.SIG_DFL)
    for number in (int(name) for name in os.listdir("/proc/self/fd")):
        if number > STDERR and number != writing:
            _close(number)


def _close(number: int) -> None:
    try:
        os.close(number)
    except OSError:  # the folder's own, closed by now
        return


def _read(reading: int, deadline: Deadline) -> bytes:
    text = b""
    try:
        while len(text) <= MOST_BYTES:
            if not select.select([reading], [], [], deadline.left())[0]:
                break
            part = os.read(reading, 1 << 16)
            if not part:
                return text
            text += part
    except LateError:
        raise ChildError("it took too long") from None
    raise ChildError("it took too long" if len(text) <= MOST_BYTES else "it is too long")


def _end(pid: int) -> None:
    """End the child. One that a file server holds cannot die yet: the server reaps it with its other children."""
    try:
        os.kill(pid, signal.SIGKILL)
        _reaped(pid)
    except OSError:  # pbs_server was first: it reaps whatever ends
        return


def _reaped(pid: int) -> Optional[int]:
    return os.waitpid(pid, os.WNOHANG)[0] or None
