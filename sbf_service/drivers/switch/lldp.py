"""Parsers of LLDP neighbours (IEEE 802.1AB), from the output of devices' commands and from the JSON of lldpd.

A parser raises ValueError for an unknown answer. :func:`parse_neighbours` accepts an answer without neighbours only if
the device prints that their number is 0, or if the answer matches ``nobody`` of :class:`LldpFormat`. A printed number
of neighbours must match the neighbours found. A neighbour without a local port or a port of its own is an error.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.device_errors import quote_end
from sbf_service.drivers.transport.shell import Shell
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name

NOT_ADVERTISED = re.compile(r"(?:- )?not advertised|not received|-|", re.IGNORECASE)
MAX_QUOTED = 100
KEYS = ("local", "chassis", "port", "name", "port_description", "address")
SHOW_LLDPD = "lldpcli -f json0 show neighbors"
"""The command that prints neighbours (lldpcli(8)). Its output was recorded with lldpd 1.0.16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LldpFormat:
    """The command that shows neighbours, and the form of its answer as patterns for lines.

    ``start`` matches the first line of a neighbour. ``heading`` matches a line with the local port of the following
    neighbours. The other patterns have one group for the value; the first matching line counts. The managed ports
    replace ``{ports}`` in ``show``.
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
    """The pattern of the line in which the device prints the number of neighbours."""
    nobody: str = r"\s*"
    """The pattern of an answer without neighbours, on platforms that print no number of neighbours."""


@dataclass(slots=True)
class _NeighbourBlock:
    """The values of one neighbour, by the fields of :class:`LldpFormat`, such as ``chassis``."""

    values: dict[str, str] = field(default_factory=dict)

    def add_line(self, form: LldpFormat, line: str) -> None:
        for key in KEYS:
            found = re.match(getattr(form, key), line)
            if found and key not in self.values:
                value = found[1].strip().strip('"')
                self.values[key] = "" if NOT_ADVERTISED.fullmatch(value) else value


def parse_neighbours(form: LldpFormat, text: str) -> tuple[Neighbour, ...]:
    """Parse a device's answer to the command ``form.show``, and return the device's neighbours.

    Raise ValueError for a neighbour without one of its two ports, a wrong number of neighbours, or an unknown answer.
    """
    neighbours = tuple(build_neighbour(block.values) for block in _split_neighbours(form, text))
    totals = [int(total) for total in re.findall(form.total, text, re.MULTILINE)]
    if totals and sum(totals) != len(neighbours):
        raise ValueError(f"the device prints that it has {sum(totals)} neighbours, found {len(neighbours)}")
    if not neighbours and not totals and not re.fullmatch(form.nobody, text):
        raise ValueError(f"no neighbours in {text.strip()[:MAX_QUOTED]!r}")
    return neighbours


def build_neighbour(values: Mapping[str, str]) -> Neighbour:
    """Return the neighbour with these values. Raise ValueError if ``local`` or ``port`` is missing.

    The keys are fields of :class:`LldpFormat`, such as ``chassis``.
    """
    known = {key: values.get(key, "") for key in KEYS}
    if not known["local"] or not known["port"]:
        missing = "the local port" if not known["local"] else "the neighbour's port"
        raise ValueError(f"neighbour {known['name'] or known['chassis']} is shown without {missing}")
    return Neighbour(**known)


def _split_neighbours(form: LldpFormat, text: str) -> Iterator[_NeighbourBlock]:
    block, local = None, ""
    for line in text.splitlines():
        heading = re.match(form.heading, line)
        starts = re.match(form.start, line)
        if block and (heading or starts):
            yield block
        local = heading[1] if heading else local
        if starts:
            block = _NeighbourBlock({"local": local} if local else {})
        elif heading:
            block = None
        if block:
            block.add_line(form, line)
    if block:
        yield block


def read_lldpd_neighbours(shell: Shell, name: Name) -> tuple[Neighbour, ...]:
    """Read the neighbours of the switch called ``name`` from its lldpd.

    Raise Refused when lldpcli fails, and Unsafe for output of an unknown form.
    """
    shell.close_if_lost()
    code, output = shell.run(f"{SHOW_LLDPD} 2>&1")
    if code:
        failure = f"{SHOW_LLDPD!r} failed: the switch printed {quote_end(output)!r}"
        raise Refused(f"switch {name}: {failure}: check that lldpd runs on the switch")
    try:
        return parse_lldpd_neighbours(output)
    except ValueError as error:
        raise Unsafe(f"switch {name}: cannot parse the output of {SHOW_LLDPD!r}: {error}") from error


def parse_lldpd_neighbours(output: str) -> tuple[Neighbour, ...]:
    """Parse the JSON of lldpcli.

    Raise ValueError for JSON of an unknown form, and for a neighbour that lacks one of its two ports.
    """
    try:
        answer = _LldpdAnswer.model_validate_json(output)
    except ValidationError as error:
        raise ValueError(f"{error.error_count()} faults, the first: {error.errors()[0]['msg']}") from error
    return tuple(
        build_neighbour(
            {
                "local": interface.name,
                "chassis": _first_value(chassis.id),
                "port": _first_value(port.id),
                "name": _first_value(chassis.name),
                "port_description": _first_value(port.descr),
                "address": _first_value(chassis.address),
            }
        )
        for interfaces in answer.lldp
        for interface in interfaces.interface
        for chassis, port in zip(interface.chassis, interface.port, strict=True)
    )


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


def _first_value(values: list[_LldpdValue]) -> str:
    return values[0].value if values else ""
