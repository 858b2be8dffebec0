"""iproute2 on a device: batches of ``ip`` and ``bridge`` lines, and what ``bridge vlan`` prints (ip(8), bridge(8))."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sbf_service.drivers.transport.shell import Shell, pack_words, quote_end
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.vlans import VlanSet

T = TypeVar("T")

SHOW_VLANS = "bridge -compressvlans -json vlan show"
FAILED_LINE = re.compile(r"(?P<words>.*?)\s*Command failed -:(?P<line>\d+)\s*", re.DOTALL)
QUOTES_AND_SPACE = 3


class VlanEntry(BaseModel):
    """One number, or a range of them, of one port."""

    model_config = ConfigDict(strict=True)

    vlan: Annotated[int, Field(ge=1, le=4094)]
    last: Annotated[int | None, Field(ge=1, le=4094, alias="vlanEnd")] = None
    flags: list[str] = []

    @property
    def numbers(self) -> VlanSet:
        """All numbers of the range."""
        return VlanSet(range(self.vlan, (self.last or self.vlan) + 1))


class _PortEntries(BaseModel):
    model_config = ConfigDict(strict=True)

    ifname: str
    vlans: list[VlanEntry] = []


_PORTS = TypeAdapter(list[_PortEntries])


@dataclass(frozen=True, slots=True)
class BatchFailure:
    """A line that was not done, and the device's words."""

    line: str
    words: str


def run_query(shell: Shell, command: str) -> str:
    """Give what a command printed; raises Refused when it failed."""
    code, said = shell.run(command)
    if code:
        kind = shell.whom.partition(" ")[0]
        raise Refused(f"{shell.whom}: {command!r} failed: the {kind} said {quote_end(said)!r}")
    return said


def parse_json(whom: str, command: str, said: str, form: TypeAdapter[T]) -> T:
    """Understand JSON that ``command`` printed; raises Unsafe when it cannot be understood."""
    try:
        return form.validate_json(said)
    except ValidationError as error:
        what = "; ".join(fault["msg"] for fault in error.errors())
        raise Unsafe(f"{whom}: expected JSON from {command!r}, got {quote_end(said)!r} ({what})") from error


def parse_vlan_entries(whom: str, said: str) -> dict[str, list[VlanEntry]]:
    """Understand the answer to :data:`SHOW_VLANS`, by port; raises Unsafe when it cannot be understood."""
    return {port.ifname: port.vlans for port in parse_json(whom, SHOW_VLANS, said, _PORTS)}


def run_batch(shell: Shell, program: str, lines: Iterable[str]) -> list[BatchFailure]:
    """Let ``ip`` or ``bridge`` do lines, in as few round trips as a terminal line allows; give what was not done.

    A line that fails keeps none of the others from being done (``-force``).
    """
    return [
        one
        for some in pack_words(lines, QUOTES_AND_SPACE)
        for one in _run_batch_part(shell, f"{program} -force -batch -", some)
    ]


def _run_batch_part(shell: Shell, program: str, lines: list[str]) -> list[BatchFailure]:
    code, said = shell.run(f"printf '%s\\n' {' '.join(quote(line) for line in lines)} | {program} 2>&1")
    found = [BatchFailure(lines[int(one["line"]) - 1], one["words"]) for one in FAILED_LINE.finditer(said)]
    return found if found or not (code or said) else [BatchFailure(program, f"{said} (exit code {code})")]


def raise_for_failures(whom: str, failures: Sequence[BatchFailure]) -> None:
    """Raise Refused when there were any failures, in the device's words."""
    kind = whom.partition(" ")[0]
    words = [f"{one.line!r} was refused: the {kind} said {quote_end(one.words)!r}" for one in failures]
    if words:
        raise Refused(f"{whom}: {'; '.join(words)}: look at its ports and at the account's rights")
