"""Limits and extra disks of guests."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput
from virtcloud.model.values import PatternText

MIN_DISK_MB: Final = 16
DiskMb = Annotated[int, Field(ge=MIN_DISK_MB, le=64 * 1024 * 1024)]
Pids = Annotated[int, Field(ge=16, le=4_000_000)]
BandwidthMbit = Annotated[int, Field(ge=1, le=400_000)]
GUEST_LIMITS: Final = "guest-limits"
"""The requirement of a segment with a guest that has limits or extra disks. Older agents would ignore them."""


class DiskName(PatternText):
    """A name of a guest's extra disk. virtio limits the serial number of a disk to 20 characters."""

    __slots__ = ()
    pattern = r"[a-z][a-z0-9-]{0,19}"
    meaning = "a name: lower case, digits and dashes, a letter first, at most 20 characters"


class GuestDisk(Document):
    """An extra disk of a guest. It is empty at first, and is removed with the guest."""

    name: DiskName
    """Name of the disk, which the guest reads as the disk's serial number."""
    size_mb: DiskMb
    """Size in MiB."""


def check_disk_names(disks: Iterable[GuestDisk], guest: str) -> None:
    """Raise BadInput if two disks of a guest have the same name."""
    for name, times in Counter(disk.name for disk in disks).items():
        if times > 1:
            raise BadInput(f"{guest}: expected each disk to have its own name, got {name} {times} times")


class GuestLimits(Document):
    """What a guest may use of its host, besides processors and memory."""

    disk_mb: DiskMb | None = None
    """Size in MiB of a virtual machine's disk, and of what a container may write to its root."""
    pids: Pids | None = None
    """Number of processes and threads of a container; null: the limit in the settings of the host's agent."""
    bandwidth_mbit: BandwidthMbit | None = None
    """Mbit/s that the guest may send, and that it may receive."""
