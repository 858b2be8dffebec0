"""The first process of a container, and the signal that ends systemd.

libvirt's calls for the first process fail for some containers from start to end (observed with libvirt 9.0). The driver
misses the event with the process ID if the container starts before the driver has connected to the controller process.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from virtcloud.model.errors import Refused

PROC = Path("/proc")
POWER_OFF_SYSTEMD = signal.SIGRTMIN + 4
"""The signal that makes systemd power off (systemd(1)). On SIGTERM, systemd only executes itself again."""


def find_init(name: str, controller: int) -> int:
    """Return the process ID of a container's first process: the only child of ``controller``.

    ``controller`` is the process ID of libvirt's process of the container. Raise Refused if it has no child process.
    """
    for process in _list_children(controller):
        return process
    raise Refused(f"container {name} has no process: the container has ended")


def power_off_systemd(name: str, controller: int) -> None:
    """Request that systemd, a container's first process, powers off. Raise Refused if the container has ended."""
    process = find_init(name, controller)
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        if process in _list_children(controller):  # another process may have got the process ID
            signal.pidfd_send_signal(descriptor, POWER_OFF_SYSTEMD)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def _list_children(parent: int) -> Iterator[int]:
    if parent <= 0:  # libvirt's ID of an ended container; the host's own init has the parent 0
        return
    for folder in PROC.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == parent:
            yield int(folder.name)
