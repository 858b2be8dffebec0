"""iproute2 on a device: batches of ``ip`` and ``bridge`` lines, and what ``bridge vlan`` prints (ip(8), bridge(8))."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sbf_service.drivers.shell import Shell, parts, quoted
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


class _Port(BaseModel):
    model_config = ConfigDict(strict=True)

    ifname: str
    vlans: list[VlanEntry] = []


_PORTS = TypeAdapter(list[_Port])


@dataclass(frozen=True, slots=True)
class Failure:
    """A line that was not done, and the device's words."""

    line: str
    words: str


def shown(shell: Shell, command: str) -> str:
    """Give what a command printed; raises Refused when it failed."""
    code, said = shell.run(command)
    if code:
        kind = shell.whom.partition(" ")[0]
        raise Refused(f"{shell.whom}: {command!r} failed: the {kind} said {quoted(said)!r}")
    return said


def parsed(whom: str, command: str, said: str, form: TypeAdapter[T]) -> T:
    """Understand JSON that ``command`` printed; raises Unsafe when it cannot be understood."""
    try:
        return form.validate_json(said)
    except ValidationError as error:
        what = "; ".join(fault["msg"] for fault in error.errors())
        raise Unsafe(f"{whom}: expected JSON from {command!r}, got {quoted(said)!r} ({what})") from error


def vlan_entries(whom: str, said: str) -> dict[str, list[VlanEntry]]:
    """Understand the answer to :data:`SHOW_VLANS`, by port; raises Unsafe when it cannot be understood."""
    return {port.ifname: port.vlans for port in parsed(whom, SHOW_VLANS, said, _PORTS)}


def batch(shell: Shell, program: str, lines: Iterable[str]) -> list[Failure]:
    """Let ``ip`` or ``bridge`` do lines, in as few round trips as a terminal line allows; give what was not done.

    A line that fails keeps none of the others from being done (``-force``).
    """
    return [one for some in parts(lines, QUOTES_AND_SPACE) for one in _part(shell, f"{program} -force -batch -", some)]


def _part(shell: Shell, program: str, lines: list[str]) -> list[Failure]:
    code, said = shell.run(f"printf '%s\\n' {' '.join(quote(line) for line in lines)} | {program} 2>&1")
    found = [Failure(lines[int(one["line"]) - 1], one["words"]) for one in FAILED_LINE.finditer(said)]
    return found if found or not (code or said) else [Failure(program, f"{said} (exit code {code})")]


def refuse(whom: str, failures: Sequence[Failure]) -> None:
    """Raise Refused when there were any failures, in the device's words."""
    kind = whom.partition(" ")[0]
    words = [f"{one.line!r} was refused: the {kind} said {quoted(one.words)!r}" for one in failures]
    if words:
        raise Refused(f"{whom}: {'; '.join(words)}: look at its ports and at the account's rights")
