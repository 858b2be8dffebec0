"""iproute2 on a device: batches for ``ip`` and ``bridge``, and the output of ``bridge vlan`` (ip(8), bridge(8))."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sbf_service.drivers.device_errors import quote_end
from sbf_service.drivers.transport.shell import Shell, pack_words
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.vlans import VlanSet

T = TypeVar("T")

SHOW_LINKS = "ip -details -json link show"
SHOW_VLANS = "bridge -compressvlans -json vlan show"
FAILED_LINE = re.compile(r"Command failed -:(\d+)")
"""The line that follows the message about a failed line of a batch, with the failed line's number."""
QUOTES_AND_SPACE = 3


class VlanEntry(BaseModel):
    """One VLAN ID or a range of VLAN IDs on one port."""

    model_config = ConfigDict(strict=True)

    vlan: Annotated[int, Field(ge=1, le=4094)]
    last: Annotated[int | None, Field(ge=1, le=4094, alias="vlanEnd")] = None
    flags: list[str] = []

    @property
    def vlan_ids(self) -> VlanSet:
        """All VLAN IDs of the range."""
        return VlanSet(range(self.vlan, (self.last or self.vlan) + 1))


class _PortEntries(BaseModel):
    model_config = ConfigDict(strict=True)

    ifname: str
    vlans: list[VlanEntry] = []


_PORTS = TypeAdapter(list[_PortEntries])


class _BridgeSettings(BaseModel):
    vlan_filtering: int | None = None


class _BridgeInfo(BaseModel):
    data: _BridgeSettings = Field(default=_BridgeSettings(), alias="info_data")


class BridgeLink(BaseModel):
    """A network device of a switch as printed by :data:`SHOW_LINKS`, with the fields that SBF uses."""

    name: str = Field(alias="ifname")
    flags: list[str]
    master: str | None = None
    info: _BridgeInfo = Field(default=_BridgeInfo(), alias="linkinfo")

    @property
    def is_up(self) -> bool:
        """Whether the device is not shut down."""
        return "UP" in self.flags

    @property
    def is_member(self) -> bool:
        """Whether the device is a member of a bond (``IFF_SLAVE``, netdevice(7))."""
        return "SLAVE" in self.flags

    @property
    def ignores_vlans(self) -> bool:
        """Whether the device is a bridge that ignores the VLANs of its ports and the tags of frames."""
        return self.info.data.vlan_filtering == 0


BRIDGE_LINKS = TypeAdapter(list[BridgeLink])


@dataclass(frozen=True, slots=True)
class BatchFailure:
    """A failed line of a batch, with the program's message."""

    line: str
    message: str


def run_query(shell: Shell, command: str) -> str:
    """Return the output of a command. Raise Refused when the command fails."""
    code, output = shell.run(command)
    if code:
        kind = shell.device.partition(" ")[0]
        raise Refused(f"{shell.device}: {command!r} failed: the {kind} printed {quote_end(output)!r}")
    return output


def parse_json(device: str, command: str, output: str, form: TypeAdapter[T]) -> T:
    """Parse the JSON output of ``command``. Raise Unsafe when the output does not match ``form``."""
    try:
        return form.validate_json(output)
    except ValidationError as error:
        what = "; ".join(fault["msg"] for fault in error.errors())
        raise Unsafe(f"{device}: expected JSON from {command!r}, got {quote_end(output)!r} ({what})") from error


def parse_vlan_entries(device: str, output: str) -> dict[str, list[VlanEntry]]:
    """Parse the output of :data:`SHOW_VLANS`, and return the VLANs of each port.

    Raise Unsafe when the output is not a JSON list of ports with their VLANs.
    """
    return {port.ifname: port.vlans for port in parse_json(device, SHOW_VLANS, output, _PORTS)}


def run_batch(shell: Shell, program: str, lines: Iterable[str]) -> list[BatchFailure]:
    """Run lines with ``ip`` or ``bridge`` in as few round trips as possible, and return the failures.

    The lines after a failed line run nevertheless (``-force``).
    """
    return [
        failure
        for group in pack_words(lines, QUOTES_AND_SPACE)
        for failure in _run_batch_part(shell, f"{program} -force -batch -", group)
    ]


def _run_batch_part(shell: Shell, program: str, lines: list[str]) -> list[BatchFailure]:
    code, output = shell.run(f"printf '%s\\n' {' '.join(quote(line) for line in lines)} | {program} 2>&1")
    *parts, _ = FAILED_LINE.split(output)
    failures = [
        BatchFailure(lines[int(number) - 1], message.strip())
        for message, number in zip(parts[::2], parts[1::2], strict=True)
    ]
    return failures if failures or not (code or output) else [BatchFailure(program, f"{output} (exit code {code})")]


def raise_for_failures(device: str, failures: Sequence[BatchFailure]) -> None:
    """Raise Refused with the messages of all failures, if there are any."""
    kind = device.partition(" ")[0]
    texts = [f"{failure.line!r} failed: the {kind} printed {quote_end(failure.message)!r}" for failure in failures]
    if texts:
        raise Refused(f"{device}: {'; '.join(texts)}: check the device's ports and the account's rights")
