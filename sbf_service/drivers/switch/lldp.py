"""Understanding what switches say of their neighbours (LLDP, IEEE 802.1AB): blocks of ``key : value`` lines.

Nothing is passed over in silence: an answer in which no neighbour is found must say that there is none, a neighbour
without its ports is an error, and where a device counts its neighbours, as many must have been understood.

What lldpd says of a Linux machine's neighbours: ``lldpcli -f json0`` (lldpcli(8)); seen with lldpd 1.0.16.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.transport.shell import Shell, quote_end
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name

NOT_ADVERTISED = re.compile(r"(?:- )?not advertised|not received|-|", re.IGNORECASE)
MAX_QUOTED = 100
KEYS = ("local", "chassis", "port", "name", "port_description", "address")


@dataclass(frozen=True, slots=True, kw_only=True)
class LldpFormat:
    """How a platform is asked for its neighbours and what its answer looks like, as patterns on lines.

    ``start`` begins a neighbour; ``heading`` names, for those below it, the local port, where that is not among their
    own lines. Of the six others, each with one group, the first line that fits counts. ``{ports}`` in ``show`` are the
    managed ports.
    """

    show: str
    start: str
    chassis: str
    port: str
    name: str
    port_description: str
    address: str
    local: str = r"(?!)"
    heading: str = r"(?!)"
    total: str = r"(?!)"
    """How many neighbours there are, as the device counts them."""
    nobody: str = r"\s*"
    """The whole of an answer without neighbours, where the device does not count them."""


@dataclass(slots=True)
class _NeighbourBlock:
    """One neighbour's lines so far."""

    said: dict[str, str] = field(default_factory=dict)

    def hear(self, words: LldpFormat, line: str) -> None:
        for key in KEYS:
            found = re.match(getattr(words, key), line)
            if found and key not in self.said:
                value = found[1].strip().strip('"')
                self.said[key] = "" if NOT_ADVERTISED.fullmatch(value) else value


def parse_neighbours(words: LldpFormat, text: str) -> tuple[Neighbour, ...]:
    """Read an answer; raises ValueError with what is not understood."""
    found = tuple(_build_neighbour(block) for block in _split_neighbours(words, text))
    totals = [int(one) for one in re.findall(words.total, text, re.MULTILINE)]
    if totals and sum(totals) != len(found):
        raise ValueError(f"{sum(totals)} neighbours are announced, {len(found)} understood")
    if not found and not totals and not re.fullmatch(words.nobody, text):
        raise ValueError(f"no neighbours in {text.strip()[:MAX_QUOTED]!r}")
    return found


def _split_neighbours(words: LldpFormat, text: str) -> Iterator[_NeighbourBlock]:
    block, local = None, ""
    for line in text.splitlines():
        heading = re.match(words.heading, line)
        starts = re.match(words.start, line)
        if block and (heading or starts):
            yield block
        local = heading[1] if heading else local
        if starts:
            block = _NeighbourBlock({"local": local} if local else {})
        elif heading:
            block = None
        if block:
            block.hear(words, line)
    if block:
        yield block


def _build_neighbour(block: _NeighbourBlock) -> Neighbour:
    said = {key: block.said.get(key, "") for key in KEYS}
    if not said["local"] or not said["port"]:
        whose = "on which it was heard" if not said["local"] else "that it names"
        raise ValueError(f"neighbour {said['name'] or said['chassis']} stands there without the port {whose}")
    return Neighbour(**said)


SHOW_LLDPD = "lldpcli -f json0 show neighbors"


class _LldpdValue(BaseModel):
    value: str = ""


class _LldpdChassis(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    id: list[_LldpdValue] = []
    name: list[_LldpdValue] = []
    address: list[_LldpdValue] = Field([], alias="mgmt-ip")


class _LldpdPort(BaseModel):
    id: list[_LldpdValue]
    descr: list[_LldpdValue] = []


class _LldpdInterface(BaseModel):
    name: str
    chassis: list[_LldpdChassis]
    port: list[_LldpdPort]


class _LldpdInterfaces(BaseModel):
    interface: list[_LldpdInterface] = []


class _LldpdAnswer(BaseModel):
    lldp: list[_LldpdInterfaces]


def read_lldpd_neighbours(shell: Shell, name: Name) -> tuple[Neighbour, ...]:
    """Ask the lldpd of the switch called ``name``; raises Refused without one, Unsafe when it is not understood."""
    shell.renew()
    code, said = shell.run(f"{SHOW_LLDPD} 2>&1")
    if code:
        raise Refused(
            f"switch {name}: {SHOW_LLDPD!r} failed: the switch said {quote_end(said)!r}: does lldpd run there?"
        )
    try:
        return parse_lldpd_neighbours(said)
    except ValueError as error:
        raise Unsafe(f"switch {name}: the answer of {SHOW_LLDPD!r} is not understood: {error}") from error


def parse_lldpd_neighbours(said: str) -> tuple[Neighbour, ...]:
    """Read the answer; raises ValueError when it is not one."""
    try:
        answer = _LldpdAnswer.model_validate_json(said)
    except ValidationError as error:
        raise ValueError(f"{error.error_count()} faults, the first: {error.errors()[0]['msg']}") from error
    return tuple(
        Neighbour(
            local=one.name,
            chassis=_first_value(chassis.id),
            port=_first_value(port.id),
            name=_first_value(chassis.name),
            port_description=_first_value(port.descr),
            address=_first_value(chassis.address),
        )
        for all_of_them in answer.lldp
        for one in all_of_them.interface
        for chassis, port in zip(one.chassis, one.port, strict=True)
    )


def _first_value(values: list[_LldpdValue]) -> str:
    return values[0].value if values else ""
