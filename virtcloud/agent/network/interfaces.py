"""The interfaces of a host as the kernel reports them, and the records of untagged segments' uplinks.

Before the agent changes an uplink for an untagged segment, the agent writes the uplink's state to
``<state>/uplinks/<name>.json``. The agent removes this record after it has restored the uplink. So if the agent is
killed, the restarted agent can restore the uplink. A record is valid only for one boot and one interface index. After a
reboot, or if the interface was created again, the host itself has configured the interface, and the agent ignores the
record.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import ConfigDict, Field, ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors, write_durably
from virtcloud.model.document import Document

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class InterfaceCounters:
    """The counters of an interface since its creation."""

    received_bytes: int
    sent_bytes: int
    received_frames: int
    sent_frames: int


@dataclass(frozen=True, slots=True)
class KernelInterface:
    """A network interface of the host.

    ``parent`` and ``master`` are interface indexes. The flags are true in these cases:

    * ``host_ip_disabled``: the host's IP stack does not use the interface
    * ``addressed``: the interface has an address of global scope
    * ``packet_filtered``: the interface is a bridge with an option that passes its frames to the host's packet filter
    * ``isolated``: the interface is a bridge's port that exchanges no frames with other isolated ports
    * ``hairpin``: the interface is a bridge's port through which a received frame may be sent back

    ``counters`` is None unless the interface is a bridge's port.
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
    isolated: bool = False
    hairpin: bool = False
    counters: InterfaceCounters | None = field(default=None, compare=False)


class HostIpSettings(Document):
    """The configuration of an interface in the host's IP stack.

    ``settings`` maps names of sysctls, such as ``ipv6/addr_gen_mode``, to values. ``addresses`` contains the link-local
    IPv6 addresses with prefix lengths.
    """

    settings: dict[str, str]
    addresses: tuple[str, ...] = ()


class UplinkRecord(Document):
    """The state of an uplink before the untagged segment of ``cluster`` used it.

    ``index`` and ``boot`` identify the interface, because another interface may later have the same name. ``host_ip``
    is the uplink's former configuration in the host's IP stack. In files, the key of ``host_ip`` is ``voice``, as in
    earlier versions of the agent.
    """

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    uplink: str
    index: int
    cluster: str
    vlan: int
    host_ip: HostIpSettings = Field(alias="voice")
    boot: str = ""


class Kernel(Protocol):
    """The operations of the kernel that segments need."""

    def list_interfaces(self) -> list[KernelInterface]:
        """Return all interfaces."""

    def add_vlan(self, name: str, parent: KernelInterface, vlan: int) -> int:
        """Create an 802.1Q interface that is down. Return its index."""

    def add_bridge(self, name: str) -> int:
        """Create a bridge that is down, with spanning tree and multicast snooping disabled. Return its index."""

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``mtu``, ``master`` or ``up`` of an interface."""

    def read_mtu(self, name: str) -> int | None:
        """Return the MTU of an interface, or None if the interface does not exist. Thread-safe."""

    def set_mtu(self, name: str, mtu: int) -> None:
        """Set the MTU of an interface. Thread-safe."""

    def isolate(self, index: int) -> None:
        """Isolate a bridge's port: a bridge forwards no frames between isolated ports."""

    def packet_filter_sysctls(self) -> tuple[str, ...]:
        """Return the active sysctls that pass the frames of all bridges to the host's packet filter."""

    def disable_packet_filter(self, index: int) -> None:
        """Stop a bridge from passing its frames to the host's packet filter."""

    def disable_host_ip(self, index: int, name: str) -> None:
        """Stop the host's IP stack from using an interface."""

    def read_host_ip(self, name: str | None) -> HostIpSettings:
        """Return an interface's settings in the host's IP stack. If ``name`` is None, return the default settings."""

    def restore_host_ip(self, index: int, name: str, settings: HostIpSettings) -> None:
        """Restore an interface's former addresses and sysctls in the host's IP stack."""

    def delete(self, index: int) -> None:
        """Delete an interface. Do nothing if the interface is absent."""


class UplinkRecords(Protocol):
    """The records of uplinks that untagged segments use."""

    def all(self) -> list[UplinkRecord]:
        """Return the records of this boot."""

    def record(self, record: UplinkRecord) -> None:
        """Write a record, which replaces the uplink's former record. Raise Refused on failure."""

    def forget(self, uplink: str) -> None:
        """Remove a record. Do nothing if the record is absent."""


class UplinkRecordFiles:
    """The records of this boot, stored in files."""

    def __init__(self, folder: Path, boot: str | None = None) -> None:
        """Create an object that stores records in ``folder``, which `record` creates if missing."""
        self._folder = folder
        self._boot = boot or BOOT_ID.read_text().strip()

    def all(self) -> list[UplinkRecord]:
        """Return the records of this boot, ordered by the uplinks' names. Skip malformed records with a warning.

        Raise Refused if a file cannot be read.
        """
        with refuse_os_errors(f"read the records of {self._folder}"):
            records = [_read_record(path) for path in sorted(self._folder.glob("*.json"))]
        return [record for record in records if record is not None and record.boot == self._boot]

    def record(self, record: UplinkRecord) -> None:
        """Write a record, which replaces the uplink's former record. Raise Refused on failure."""
        content = record.model_copy(update={"boot": self._boot}).model_dump_json()
        with refuse_os_errors(f"record the state of {record.uplink}, which was left unchanged"):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_durably(self._path(record.uplink), content.encode())

    def forget(self, uplink: str) -> None:
        """Remove a record. Do nothing if the record is absent. Raise Refused if the file cannot be removed."""
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
