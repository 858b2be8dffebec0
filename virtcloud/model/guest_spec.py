"""Guests in the spec of a cluster: their disks and limits, and their spread over hosts that SBF chooses."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from virtcloud.model.document import OMIT_EMPTY, OMIT_NONE, Document
from virtcloud.model.errors import BadInput
from virtcloud.model.user_data import check_user_data
from virtcloud.model.values import Address, Mac, Name, PatternText

MIN_DISK_MB: Final = 16
DiskMb = Annotated[int, Field(ge=MIN_DISK_MB, le=64 * 1024 * 1024)]
Pids = Annotated[int, Field(ge=16, le=4_000_000)]
BandwidthMbit = Annotated[int, Field(ge=1, le=400_000)]
GUEST_LIMITS: Final = "guest-limits"
"""Capability that a segment requires if a guest has limits or extra disks. Agents without this capability would ignore
the limits and the extra disks."""
HOST_SERVICE_MAC: Final = Mac("02:76:63:00:00:fe")
"""The MAC address of the servers (such as DHCP) that hosts run for guests. A guest with this address could answer in
place of these servers."""

_NUMBER: Final = re.compile(r"[1-9][0-9]*")
"""The number in the name of a spread's guest."""


class DiskName(PatternText):
    """A name of a guest's extra disk. The name is the disk's serial number, which virtio limits to 20 characters."""

    __slots__ = ()
    pattern = r"[a-z][a-z0-9-]{0,19}"
    meaning = "a name: lower case, digits and dashes, a letter first, at most 20 characters"


class GuestDisk(Document):
    """An extra disk of a guest. The disk is empty at first. The host deletes the disk when the guest is removed."""

    name: DiskName
    """Name of the disk. The guest reads this name as the disk's serial number."""
    size_mb: DiskMb
    """Size in MiB."""


def check_disk_names(disks: Iterable[GuestDisk], guest: str) -> None:
    """Raise BadInput if two disks of a guest have the same name."""
    for name, times in Counter(disk.name for disk in disks).items():
        if times > 1:
            raise BadInput(f"{guest}: expected each disk to have its own name, got name {name} {times} times")


class Guest(Document):
    """A virtual machine or container of a cluster on a host.

    If ``mac`` is null, SBF derives a MAC address from the cluster's ID and the guest's name. If no guest of a request
    has ``addresses``, SBF assigns addresses of the network's subnets.
    """

    name: Name
    host: Name
    image: Name
    memory_mb: Annotated[int, Field(ge=16, le=16 * 1024 * 1024)] = 256
    """Memory in MiB."""
    cpus: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of virtual processors."""
    mac: Mac | None = None
    """MAC address; null: SBF generates a MAC address."""
    addresses: tuple[Address, ...] = ()
    """Addresses of `eth0`, each with its prefix length."""
    disk_mb: DiskMb | None = None
    """Size in MiB of a virtual machine's disk (null: the image's size), or of a container's files (null: no limit)."""
    disks: Annotated[tuple[GuestDisk, ...], Field(max_length=16)] = ()
    """Extra disks: the devices `virtio-NAME` of a virtual machine, the folders `/mnt/NAME` of a container."""
    pids: Pids | None = None
    """Maximum number of processes and threads of a container; null: the limit of the host."""
    bandwidth_mbit: BandwidthMbit | None = None
    """Maximum rate in Mbit/s at which the guest sends, and at which the guest receives; null: no limit."""
    user_data: str | None = None
    """The user's cloud-config, at most 16 KiB. Do not put secrets into the cloud-config: every user who may read the
    cluster can read the cloud-config."""

    @model_validator(mode="after")
    def _check_mac(self) -> Self:
        if self.mac == HOST_SERVICE_MAC:
            raise BadInput(
                f"guest {self.name}: expected a MAC address other than {HOST_SERVICE_MAC}, which hosts use", ("mac",)
            )
        return self

    @model_validator(mode="after")
    def _check_user_data(self) -> Self:
        if self.user_data is not None:
            check_user_data(self.user_data, f"guest {self.name}")
        return self

    @model_validator(mode="after")
    def _check_disks(self) -> Self:
        check_disk_names(self.disks, f"guest {self.name}")
        return self


class GuestSpread(Document):
    """Guests for which SBF chooses the hosts, by free capacity."""

    count: Annotated[int, Field(ge=1, le=65536)]
    """Number of guests. The guests' names are `prefix` and a number from 1 on: `g1`, `g2` and so on."""
    image: Name
    sites: tuple[Name, ...] = ()
    """Sites whose hosts SBF may choose; empty: all sites."""
    prefix: Name = Name("g")
    """Prefix of the guests' names."""
    memory_mb: Annotated[int, Field(ge=16, le=16 * 1024 * 1024)] = 256
    """Memory of each guest in MiB."""
    cpus: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of virtual processors of each guest."""
    user_data: str | None = None
    """The user's cloud-config, at most 16 KiB, which every guest receives. SBF also limits the total size
    of the user data of a cluster's guests (setting ``limits.user_data``)."""
    disk_mb: Annotated[DiskMb | None, OMIT_NONE] = None
    """Size in MiB of each virtual machine's disk (null: the image's size), or of each container's files (null: no
    limit)."""
    disks: Annotated[tuple[GuestDisk, ...], Field(max_length=16), OMIT_EMPTY] = ()
    """Extra disks of each guest."""
    pids: Annotated[Pids | None, OMIT_NONE] = None
    """Maximum number of processes and threads of each container; null: the limit of the host."""
    bandwidth_mbit: Annotated[BandwidthMbit | None, OMIT_NONE] = None
    """Maximum rate in Mbit/s at which each guest sends, and at which each guest receives; null: no limit."""

    @property
    def names(self) -> tuple[Name, ...]:
        """The names of the guests."""
        return tuple(Name(f"{self.prefix}{number}") for number in range(1, self.count + 1))

    def has_guest(self, name: str) -> bool:
        """Return whether a guest of the spread has this name, without generating all names."""
        number = name.removeprefix(self.prefix)
        is_number = name != number and _NUMBER.fullmatch(number) is not None
        return is_number and int(number) <= self.count

    @model_validator(mode="after")
    def _check_disks(self) -> Self:
        check_disk_names(self.disks, "spread")
        return self

    @model_validator(mode="after")
    def _check_names_and_user_data(self) -> Self:
        Name(f"{self.prefix}{self.count}")
        if self.user_data is not None:
            check_user_data(self.user_data, "spread")
        return self


class GuestLimits(Document):
    """The limits of a guest on its host, except those of processors and memory."""

    disk_mb: DiskMb | None = None
    """Size in MiB of a virtual machine's disk, or maximum size in MiB of a container's files."""
    pids: Pids | None = None
    """Maximum number of processes and threads of a container; null: the limit in the settings of the host's agent."""
    bandwidth_mbit: BandwidthMbit | None = None
    """Maximum rate in Mbit/s at which the guest sends, and at which the guest receives."""
