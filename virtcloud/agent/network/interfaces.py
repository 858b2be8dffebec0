"""What the agent needs of the kernel and of a hypervisor, in our words; the adapters that do it are elsewhere.

What interfaces of the host were like before a segment took them, on disk until they are put back.

A file for each interface, ``<state>/uplinks/<name>.json``, is written through to the disk before the interface is
changed, and removed after it was put back: an agent that is killed in between puts it back later. A record is of one
boot and one interface index; after a reboot, or when the interface was made anew, the host itself has set it up.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.guests.domains import DomainOwnership
from virtcloud.model.document import Document
from virtcloud.model.errors import Refused


@dataclass(frozen=True, slots=True)
class KernelInterface:
    """An interface as the kernel shows it.

    ``parent`` and ``master`` are indices; ``quiet`` says that the host does not speak on it, ``addressed`` that the
    host has an address there that others may use, ``filtered`` that a bridge hands its frames to the host's packet
    filter by an option of its own.
    """

    index: int
    name: str
    kind: str | None = None
    alias: str | None = None
    parent: int | None = None
    master: int | None = None
    vlan: int | None = None
    mtu: int = 1500
    up: bool = False
    quiet: bool = False
    addressed: bool = False
    filtered: bool = False


class HostIpSettings(Document):
    """How the host speaks on an interface.

    ``settings`` are values of sysctls by their names (``ipv6/addr_gen_mode``), ``addresses`` the link-local IPv6
    addresses with their prefix lengths.
    """

    settings: dict[str, str]
    addresses: tuple[str, ...] = ()


class UplinkRecord(Document):
    """What an interface of the host was like before the segment of ``cluster`` took it.

    ``index`` and ``boot`` identify the interface: its name may come back after a reboot, or after it was made anew.
    """

    uplink: str
    index: int
    cluster: str
    vlan: int
    voice: HostIpSettings
    boot: str = ""


class UplinkRecords(Protocol):
    """The records of interfaces that were taken, on disk."""

    def all(self) -> list[UplinkRecord]:
        """Return the records of this boot."""

    def record(self, found: UplinkRecord) -> None:
        """Write a record, replacing the interface's former one. Raise Refused when it cannot be written."""

    def forget(self, uplink: str) -> None:
        """Remove a record; none is success."""


class Kernel(Protocol):
    """What the segments need of the kernel."""

    def links(self) -> list[KernelInterface]:
        """Give all interfaces."""

    def add_vlan(self, name: str, parent: KernelInterface, vlan: int) -> int:
        """Create an 802.1q interface, down, and give its index."""

    def add_bridge(self, name: str) -> int:
        """Create a bridge, down, without spanning tree and multicast snooping, and give its index."""

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``mtu``, ``master`` or ``up``."""

    def filters(self) -> tuple[str, ...]:
        """Return the sysctls by which all bridges hand their frames to the host's packet filter."""

    def unfilter(self, index: int) -> None:
        """Reset the options by which a bridge hands its frames to the host's packet filter."""

    def hush(self, index: int, name: str) -> None:
        """Stop the host itself from speaking on an interface."""

    def voice(self, name: str | None) -> HostIpSettings:
        """Read how the host speaks on an interface; with None, how it speaks on a new one."""

    def speak(self, index: int, name: str, voice: HostIpSettings) -> None:
        """Restore the host's own addresses and answers on an interface."""

    def delete(self, index: int) -> None:
        """Delete an interface; one that is gone already is no error."""


@dataclass(frozen=True, slots=True)
class GuestDomain:
    """A domain; ``owner`` is None when it does not bear our mark."""

    name: str
    running: bool
    owner: DomainOwnership | None = None


class HypervisorApi(Protocol):
    """What the guests need of a hypervisor."""

    def domains(self) -> list[GuestDomain]:
        """Give every domain."""

    def domain(self, name: str) -> GuestDomain | None:
        """Give one domain, or None."""

    def start(self, xml: str) -> None:
        """Start a transient domain."""

    def shut_down(self, name: str) -> None:
        """Ask a domain to end; it may not listen."""

    def destroy(self, name: str) -> None:
        """End a domain; one that is gone already is no error."""

    def accelerates(self) -> bool:
        """Say whether it runs guests on the processor itself."""


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class UplinkRecordFiles:
    """The records of this boot."""

    def __init__(self, folder: Path, boot: str | None = None) -> None:
        """Store records in ``folder``, which is created when first needed."""
        self._folder = folder
        self._boot = boot or BOOT_ID.read_text().strip()

    def all(self) -> list[UplinkRecord]:
        """Return the records, by the interfaces' names."""
        with _refused(f"read the records of {self._folder}"):
            found = [_read(path) for path in sorted(self._folder.glob("*.json"))]
        return [one for one in found if one is not None and one.boot == self._boot]

    def record(self, found: UplinkRecord) -> None:
        """Write a record in the place of the interface's former one, through to the disk."""
        place = self._folder / f"{found.uplink}.json"
        new = self._folder / f".{found.uplink}.new"
        with _refused(f"record what {found.uplink} was like in {self._folder}; it was left alone"):
            self._folder.mkdir(parents=True, exist_ok=True)
            with new.open("w") as file:
                file.write(found.model_copy(update={"boot": self._boot}).model_dump_json())
                file.flush()
                os.fsync(file.fileno())
            new.rename(place)
            _sync(self._folder)

    def forget(self, uplink: str) -> None:
        """Remove a record; none is success."""
        with _refused(f"remove the record of {uplink} in {self._folder}"):
            (self._folder / f"{uplink}.json").unlink(missing_ok=True)


def _read(path: Path) -> UplinkRecord | None:
    try:
        return UplinkRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        log.warning("uplink_unreadable", file=path, error=error.errors()[0]["msg"])
        return None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(f"cannot {what}: {error.strerror}") from error
