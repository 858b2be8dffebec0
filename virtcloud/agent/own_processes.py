"""Processes of programs that the agent started and that continue while the agent restarts.

The agent finds such a process by a unique argument of its command line. The kernel reuses process IDs. Therefore the
agent opens a descriptor of the process (pidfd_open(2)), then checks the argument, and sends signals only through the
descriptor.
"""

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from virtcloud.agent.files import refuse_os_errors
from virtcloud.model.errors import Refused

PROC = Path("/proc")
END_S = 5.0
"""Time limit in seconds for the end of a killed process."""
EXEC_S = 0.2
"""Time limit in seconds of the wait for a process's arguments during execve(2)."""
_STATE, _START_TIME = 0, 19
"""Positions of two fields of /proc/PID/stat, counted behind the name of the program (proc(5))."""


def read_start_time(pid: int) -> int | None:
    """Return the start of a process in clock ticks after the boot, or None if the process has ended.

    Raise Refused if the start cannot be read, for example because the agent has reached its limit of open files.
    """
    fields = _read_file(pid, "stat").decode(errors="replace").rpartition(")")[2].split()
    return None if not fields or fields[_STATE] in {"Z", "X"} else int(fields[_START_TIME])


def list_own_processes() -> set[int]:
    """Return the IDs of the processes in the agent's mount namespace.

    In other mount namespaces, for example in containers, processes of other agents can have the same arguments.
    """
    own, found = (PROC / "self/ns/mnt").readlink(), set()
    for path in PROC.iterdir():
        with suppress(OSError):  # the process has ended
            if path.name.isdigit() and (path / "ns/mnt").readlink() == own:
                found.add(int(path.name))
    return found


def list_network_processes(namespace: int) -> set[int]:
    """Return the IDs of the processes in a network namespace, in any mount namespace.

    ``namespace`` is an open descriptor of the network namespace.
    """
    wanted, found = os.fstat(namespace), set()
    for path in PROC.iterdir():
        with suppress(OSError):  # the process has ended
            if path.name.isdigit() and os.path.samestat(wanted, (path / "ns/net").stat()):
                found.add(int(path.name))
    return found


def list_isolated_processes(user: int, folder: Path, seen_at: Path) -> list[int]:
    """Find processes that run as ``user``, are the first of their PID namespace, and see ``folder`` at ``seen_at``.

    Return the process IDs. Examine ``seen_at`` only in processes that meet the first two conditions: the file system of
    a guest can be slow, or can deceive the agent.
    """
    wanted, found = folder.stat(), []
    for path in PROC.iterdir():
        with suppress(OSError):  # the process has ended, or has no such path
            if not path.name.isdigit():
                continue
            lines = (path / "status").read_bytes().decode(errors="replace").split("\n")
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            is_first = status["NSpid"].split()[1:] == ["1"]
            if is_first and set(status["Uid"].split()) == {str(user)}:
                seen = (path / "root" / seen_at.relative_to("/")).stat()
                found += [int(path.name)] if os.path.samestat(wanted, seen) else []
    return found


def kill_processes(argument: str, pids: Iterable[int]) -> None:
    """Kill the processes in ``pids`` that have this argument.

    Raise Refused if a killed process does not end within `END_S` seconds.
    """
    for descriptor in open_processes(argument, pids):
        with suppress(ProcessLookupError):  # the process has ended after the check
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        wait_for_end(descriptor, f"the process with {argument}")


def wait_for_end(descriptor: int, process: str) -> None:
    """Wait for the end of a killed process. ``descriptor`` refers to the process (pidfd_open(2)).

    Raise Refused, with the name ``process``, if the process does not end within `END_S` seconds.
    """
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    if not ended.poll(END_S * 1000):
        raise Refused(f"{process} does not end within {END_S:.0f} s after SIGKILL")


def open_processes(argument: str, pids: Iterable[int]) -> Iterator[int]:
    """Yield a descriptor of each process in ``pids`` that has this argument.

    The next iteration closes the descriptor.
    """
    for pid in pids:
        if not _has_argument(pid, argument):
            continue
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if _has_argument(pid, argument):  # the process ID may have passed to another process
                yield descriptor
        finally:
            os.close(descriptor)


def _has_argument(pid: int, argument: str) -> bool:
    """Return whether a process has this argument.

    During execve(2), a process has no arguments for a moment, even if the call that started the process has already
    returned. Therefore wait for the arguments.
    """
    deadline = time.monotonic() + EXEC_S
    while not (arguments := _read_file(pid, "cmdline")) and _has_program(pid) and time.monotonic() < deadline:
        time.sleep(0.001)
    return argument.encode() in arguments.split(b"\0")


def _read_file(pid: int, name: str) -> bytes:
    with refuse_os_errors(f"read {name} of process {pid}"), suppress(FileNotFoundError, ProcessLookupError):
        return (PROC / str(pid) / name).read_bytes()
    return b""


def _has_program(pid: int) -> bool:
    """Return whether a process executes a file, unlike kernel threads and ended processes."""
    try:
        return bool((PROC / str(pid) / "exe").readlink())
    except OSError:
        return False
