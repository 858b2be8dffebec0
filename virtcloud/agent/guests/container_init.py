"""The first process of a container, and the signal that ends systemd.

libvirt's calls for a container's first process are not used. Its LXC driver learns the process from an event that the
driver misses if the container starts faster than the driver connects to its controller (observed with libvirt 9.0).
Then the calls fail as long as the container runs.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from virtcloud.model.errors import Refused

PROC = Path("/proc")
POWER_OFF_SYSTEMD = signal.SIGRTMIN + 4
"""The signal by which systemd powers off (systemd(1)). On SIGTERM, systemd only executes itself again."""


def find_init(name: str, controller: int) -> int:
    """Return the process ID of a container's first process, which is the only child of the container's controller.

    Raise Refused if there is no such process.
    """
    for process in _list_children(controller):
        return process
    raise Refused(f"container {name} has no process: the container has ended")


def power_off_systemd(name: str, controller: int) -> None:
    """Request that systemd, a container's first process, powers off. Raise Refused if there is no such process."""
    process = find_init(name, controller)
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        if process in _list_children(controller):  # not another process with the same ID
            signal.pidfd_send_signal(descriptor, POWER_OFF_SYSTEMD)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def _list_children(parent: int) -> Iterator[int]:
    for folder in PROC.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == parent:
            yield int(folder.name)
