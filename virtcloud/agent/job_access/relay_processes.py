"""The processes of jobs' relays: their start, query and end."""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from virtcloud.agent.job_access import relay_program
from virtcloud.model.errors import Refused

RELAY_START_S = 20.0
RELAY_QUERY_S = 2.0
RELAY_END_S, RELAY_KILL_S = 3.0, 3.0
"""Time limits in seconds: of a relay's start, of its answer to a query, of its end, and of its end after SIGKILL."""


class RelayProcess:
    """A relay process that is being started.

    The process is not a child of the agent, and continues to run when the agent ends.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Store ``process``, which forks the relay process and ends. The relay process inherits the pipes."""
        self._pipes = process
        self.pid = 0

    def wait_for_namespace(self) -> None:
        """Wait until the relay has printed its process ID and created its network namespace.

        Raise Refused if the relay fails or the time limit is exceeded.
        """
        line = self._read_line()
        status, _, pid = line.partition(" ")
        if status != "apart" or not pid.isdigit():
            raise Refused(
                f"cannot start the relay of a job: expected 'apart' and a process ID, got {line!r}; see the agent's log"
            )
        self.pid = int(pid)

    def configure(self, spec: Mapping[str, Any]) -> None:
        """Send the specification, and wait until the relay is ready.

        If the relay fails, raise Refused with the relay's error.
        """
        if self._pipes.stdin is not None:
            self._pipes.stdin.write(json.dumps(spec) + "\n")
            self._pipes.stdin.flush()
        answer = self._read_line()
        if answer != "ready":
            raise Refused(f"cannot start the relay of a job: {answer or 'the process ended'}")

    def kill(self) -> None:
        """Kill the relay process if it has reported its process ID."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _read_line(self) -> str:
        stdout = self._pipes.stdout
        if stdout is None:
            return ""
        ready = select.poll()
        ready.register(stdout, select.POLLIN)
        return (
            stdout.readline().strip() if ready.poll(RELAY_START_S * 1000) else f"no output within {RELAY_START_S:.0f} s"
        )


@contextmanager
def start_relay() -> Iterator[RelayProcess]:
    """Start a relay process. Raise Refused if the program cannot be started.

    If the block raises an error, kill the relay process. Its network namespace ends with the process.
    """
    argv = [sys.executable, "-I", "-S", relay_program.__file__]
    try:
        process = subprocess.Popen(  # noqa: S603 - a file of this package
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", start_new_session=True
        )
    except OSError as error:
        raise Refused(f"cannot start the relay of a job: {error.strerror}") from error
    relay = RelayProcess(process)
    with process:
        try:
            yield relay
        except BaseException:
            relay.kill()
            raise


def query_relay(path: Path, line: str) -> str | None:
    """Send a line to the relay at ``path``. Return the answer, or None if no relay answers."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(RELAY_QUERY_S)
        try:
            connection.connect(str(path))
            connection.sendall(f"{line}\n".encode())
            return connection.recv(4096).decode(errors="replace").strip()
        except OSError:
            return None


def find_listener_pid(path: Path) -> int | None:
    """Return the ID of the process that listens at ``path``, or None.

    Raise Refused if the process accepts no connection, for example because SIGSTOP stopped the process. If a signal
    interrupts connect(2), Python regards the socket as connected, and the kernel reports the process ID 0. Also raise
    Refused in this case.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _time_value(RELAY_QUERY_S))
        try:
            connection.connect(str(path))
            pid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        except BlockingIOError as error:
            raise Refused(
                f"relay {path}: expected the process to accept a connection within {RELAY_QUERY_S:g} s; find the "
                f"process with: ss -xlp src {path}; the removal will be tried again"
            ) from error
        except OSError:
            return None
    if pid == 0:
        raise Refused(
            f"relay {path}: a signal interrupted the connection with the process; the removal will be tried again"
        )
    return pid


def _time_value(seconds: float) -> bytes:
    """Return a time limit as ``struct timeval``, for the socket option SO_SNDTIMEO.

    Python's ``settimeout`` would make the socket non-blocking. With a non-blocking socket, connect(2) to a Unix socket
    would fail immediately if the listener's queue is full.
    """
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


def wait_for_end(path: Path, process: int | None) -> None:
    """Wait at most `RELAY_END_S` seconds for the end of the relay process. Kill the process if it still runs.

    Raise Refused if the process does not end after SIGKILL. ``process`` is the process ID, or None if no relay runs.
    ``path`` names the relay in the message.
    """
    descriptor = None if process is None else _open_process(process)
    if descriptor is None:
        return
    try:
        if not _ends_within(descriptor, RELAY_END_S):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            if not _ends_within(descriptor, RELAY_KILL_S):
                raise Refused(
                    f"relay {path}: expected process {process} to end {RELAY_KILL_S:g} s after SIGKILL, but it still "
                    f"runs; find the reason with: cat /proc/{process}/status /proc/{process}/stack; the removal will "
                    "be tried again"
                )
    except ProcessLookupError:  # the process ended after the check
        return
    finally:
        os.close(descriptor)


def _open_process(process: int) -> int | None:
    try:
        return os.pidfd_open(process)
    except ProcessLookupError:
        return None


def _ends_within(descriptor: int, seconds: float) -> bool:
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    return bool(ended.poll(seconds * 1000))
