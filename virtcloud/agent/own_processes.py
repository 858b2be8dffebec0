"""Processes of programs that the agent started and that continue while the agent restarts.

The agent finds such a process by an argument that no other process of this host has. Before the agent signals the
process, it checks the argument again through a descriptor (pidfd_open(2)), because process IDs are used again.
"""

import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from virtcloud.model.errors import Refused

END_S = 5.0
"""Longest time in seconds until a killed process has ended."""
_STATE, _START_TIME = 0, 19
"""The positions of fields of /proc/PID/stat behind the name of the program (proc(5))."""


def read_start_time(pid: int) -> int | None:
    """Return the start of a process in clock ticks after the boot. Return None if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[_STATE] in {"Z", "X"} else int(fields[_START_TIME])


def list_own_processes() -> set[int]:
    """Return the processes in the agent's mount namespace. In another one, the same path is another host's folder."""
    own, found = Path("/proc/self/ns/mnt").readlink(), set()
    for path in Path("/proc").iterdir():
        with suppress(OSError):  # the process has ended
            if path.name.isdigit() and (path / "ns/mnt").readlink() == own:
                found.add(int(path.name))
    return found


def kill_processes(argument: str, pids: Iterable[int]) -> None:
    """Kill the processes that have this argument, and wait for their end. Raise Refused if one does not end."""
    for descriptor in open_processes(argument, pids):
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        if not ended.poll(END_S * 1000):
            raise Refused(f"the process with {argument} does not end within {END_S:.0f} s after SIGKILL")


def open_processes(argument: str, pids: Iterable[int]) -> Iterator[int]:
    """Yield a descriptor of each process that has this argument. It is valid until the next one."""
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
    try:
        return argument.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
