"""The interfaces of a host as the kernel reports them, and the records of uplinks that untagged segments use.

Before an untagged segment changes an uplink, the agent records the uplink's former state in a file,
``<state>/uplinks/<name>.json``. The record is removed after the uplink was restored, so a restarted agent restores the
uplink if the former agent was killed in between. A record is valid for one boot and one interface index: after a
reboot, or when the interface was created again, the host itself has configured the interface.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors, write_durably
from virtcloud.model.document import Document

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class KernelInterface:
    """An interface of the kernel.

    ``parent`` and ``master`` are interface indices. ``host_ip_disabled`` means that the host's IP stack does not use
    the interface. ``addressed`` means that the interface has an address of global scope. ``packet_filtered`` means that
    an option of this bridge passes the bridge's frames to the host's packet filter.
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
    host_ip_disabled: bool = False
    addressed: bool = False
    packet_filtered: bool = False


class HostIpSettings(Document):
    """The configuration of an interface in the host's IP stack.

    ``settings`` contains values of sysctls by their names (``ipv6/addr_gen_mode``). ``addresses`` contains the
    link-local IPv6 addresses with their prefix lengths.
    """

    settings: dict[str, str]
    addresses: tuple[str, ...] = ()


class UplinkRecord(Document):
    """The state of an uplink before the untagged segment of ``cluster`` began to use the uplink.

    ``index`` and ``boot`` identify the interface, because another interface may have the same name later.
    """

    uplink: str
    index: int
    cluster: str
    vlan: int
    voice: HostIpSettings
    boot: str = ""


class Kernel(Protocol):
    """The operations of the kernel that segments need."""

    def list_interfaces(self) -> list[KernelInterface]:
        """Return all interfaces."""

    def add_vlan(self, name: str, parent: KernelInterface, vlan: int) -> int:
        """Create an 802.1Q interface in the state down; return its index."""

    def add_bridge(self, name: str) -> int:
        """Create a bridge in the state down, without spanning tree and multicast snooping; return its index."""

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``mtu``, ``master`` or ``up`` of an interface."""

    def packet_filter_sysctls(self) -> tuple[str, ...]:
        """Return the sysctls that are set and pass the frames of all bridges to the host's packet filter."""

    def disable_packet_filter(self, index: int) -> None:
        """Reset the options that pass frames of one bridge to the host's packet filter."""

    def disable_host_ip(self, index: int, name: str) -> None:
        """Stop the host's IP stack from using an interface."""

    def read_host_ip(self, name: str | None) -> HostIpSettings:
        """Return how the host's IP stack is configured on the interface ``name``; for None, on a new interface."""

    def restore_host_ip(self, index: int, name: str, settings: HostIpSettings) -> None:
        """Restore the host's own addresses and sysctls on an interface."""

    def delete(self, index: int) -> None:
        """Delete an interface; an absent interface is success."""


class UplinkRecords(Protocol):
    """The records of uplinks that untagged segments use."""

    def all(self) -> list[UplinkRecord]:
        """Return the records of this boot."""

    def record(self, record: UplinkRecord) -> None:
        """Write a record, which replaces the uplink's former record.

        Raise Refused when the record cannot be written.
        """

    def forget(self, uplink: str) -> None:
        """Remove a record; an absent record is success."""


class UplinkRecordFiles:
    """The records of this boot, stored in files."""

    def __init__(self, folder: Path, boot: str | None = None) -> None:
        """Store records in ``folder``, which is created when first needed."""
        self._folder = folder
        self._boot = boot or BOOT_ID.read_text().strip()

    def all(self) -> list[UplinkRecord]:
        """Return the records, ordered by the uplinks' names."""
        with refuse_os_errors(f"read the records of {self._folder}"):
            records = [_read_record(path) for path in sorted(self._folder.glob("*.json"))]
        return [one for one in records if one is not None and one.boot == self._boot]

    def record(self, record: UplinkRecord) -> None:
        """Write a record to the disk. The record replaces the uplink's former record."""
        content = record.model_copy(update={"boot": self._boot}).model_dump_json()
        with refuse_os_errors(f"record the state of {record.uplink}, which was left unchanged"):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_durably(self._path(record.uplink), content.encode())

    def forget(self, uplink: str) -> None:
        """Remove a record; an absent record is success."""
        with refuse_os_errors(f"remove the record of {uplink} in {self._folder}"):
            self._path(uplink).unlink(missing_ok=True)

    def _path(self, uplink: str) -> Path:
        return self._folder / f"{uplink}.json"


def _read_record(path: Path) -> UplinkRecord | None:
    try:
        return UplinkRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        log.warning("uplink_record_unreadable", file=path, error=error.errors()[0]["msg"])
        return None
