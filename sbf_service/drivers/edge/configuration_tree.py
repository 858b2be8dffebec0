"""Configurations of edges as trees of indented lines, and trunks on platforms with device-wide VLANs. Pure.

A function that parses a list of VLANs raises ValueError, with the line, for an invalid list.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sbf_service.drivers.edge.edge_dialect import ATTACHMENT, CircuitPiece
from sbf_service.drivers.switch.dialect import PortNames, PortReading
from sbf_service.drivers.switch.observed_state import derive_port_use
from sbf_service.drivers.switch.show_output import parse_switchport_lines, parse_vlans, quote_first_line
from virtcloud.model.port_use import is_in_other_use
from virtcloud.model.values import VlanId
from virtcloud.model.vlans import VlanSet


@dataclass(slots=True)
class ConfigurationBlock:
    """A line of a configuration (``head``) with the indented lines under it."""

    head: str
    body: list["ConfigurationBlock"] = field(default_factory=list)

    @property
    def lines(self) -> frozenset[str]:
        """The lines one level under this line."""
        return frozenset(block.head for block in self.body)

    def after(self, start: str) -> str | None:
        """Return the rest of the first line in ``body`` that begins with ``start``; None if there is no such line."""
        return next((block.head.removeprefix(start) for block in self.body if block.head.startswith(start)), None)

    def below(self, start: str) -> Iterator[tuple[str, "ConfigurationBlock"]]:
        """Yield a pair for each block in ``body`` that begins with ``start``: the text after ``start``, the block."""
        return find_blocks(self.body, start)


def parse_tree(text: str) -> list[ConfigurationBlock]:
    """Parse a configuration into a tree by the indentation of its lines. Skip comments (``!``) and empty lines."""
    top = ConfigurationBlock("")
    open_blocks = [(-1, top)]
    for line in text.splitlines():
        words = line.strip()
        if not words or words.startswith("!"):
            continue
        depth = len(line) - len(line.lstrip())
        while open_blocks[-1][0] >= depth:
            open_blocks.pop()
        block = ConfigurationBlock(" ".join(words.split()))
        open_blocks[-1][1].body.append(block)
        open_blocks.append((depth, block))
    return top.body


def find_blocks(blocks: Iterable[ConfigurationBlock], start: str) -> Iterator[tuple[str, ConfigurationBlock]]:
    """Yield a pair for each block that begins with ``start``: the text after ``start``, and the block."""
    yield from ((block.head.removeprefix(start), block) for block in blocks if block.head.startswith(start))


def parse_ports(blocks: Iterable[ConfigurationBlock], names: PortNames, text: str) -> dict[str, ConfigurationBlock]:
    """Return the interfaces by canonical name.

    If there is no interface, raise ValueError with the first line of ``text``.
    """
    found = {names.canonical(name.split()[0]): block for name, block in find_blocks(blocks, "interface ")}
    if not found:
        raise ValueError(f"no interface in {quote_first_line(text)!r}")
    return found


def find_shut_ports(ports: Mapping[str, ConfigurationBlock]) -> frozenset[str]:
    """Return the interfaces that are shut down."""
    return frozenset(name for name, block in ports.items() if "shutdown" in block.lines)


def parse_outer_tags(block: ConfigurationBlock, number: str) -> VlanSet:
    """Return the outer tags that a service instance or subinterface accepts (Cisco's ``encapsulation``).

    A new instance without any encapsulation has its ``number``, if this is a VLAN ID.
    """
    words = block.after("encapsulation dot1q ") or block.after("encapsulation dot1ad ")
    if words is None:
        bare = block.after("encapsulation ") is None and number.isdigit() and 0 < int(number) <= VlanId.highest
        return VlanSet([int(number)]) if bare else VlanSet()
    listed = re.match(r"[\d,\- ]+", words)
    return parse_vlans(re.sub(r"\s+", "", listed[0]), words) if listed else VlanSet()


PREPARE = ("interface {port}", "switchport", "switchport trunk allowed vlan none", "exit")
TRUNK = ("interface {port}", "switchport mode trunk", "exit")
UNUSED = frozenset({"", "access"})
ALLOW = ("interface {port}", "switchport trunk allowed vlan add {vlan}", "exit")
REMOVE = ("interface {port}", "switchport trunk allowed vlan remove {vlan}", "exit")
ROUTED = "routed"


def parse_attachments(ports: Mapping[str, ConfigurationBlock], vlans: VlanSet) -> Iterator[CircuitPiece]:
    """Yield a piece for each VLAN in ``vlans`` on a port, and a piece for each VLAN interface.

    A trunk without a list of allowed VLANs has no pieces for tagged VLANs. SBF may have configured tagged VLANs
    (``by_sbf``), but neither untagged nor routed VLANs.
    """
    for port, block in ports.items():
        reading = _parse_port(block)
        body = frozenset(line for line in block.lines if line.startswith("switchport"))
        for vlan in VlanSet() if reading.open else reading.tagged & vlans:
            yield _build_attachment(port, vlan, body, by_sbf=True)
        for vlan in reading.untagged & vlans:
            yield _build_attachment(port, vlan, body, by_sbf=False)
        number = port.removeprefix("Vlan")
        if number != port and number.isdigit():
            head = frozenset({block.head})
            yield CircuitPiece(kind=ROUTED, domain=number, vlan=int(number), body=head, by_sbf=False)


def find_empty_lists(ports: Mapping[str, ConfigurationBlock]) -> frozenset[str]:
    """Return the ports whose list of allowed VLANs is empty or contains only the default VLAN.

    The list of a port that is not a trunk takes effect when the port becomes a trunk.
    """
    return frozenset(port for port, block in ports.items() if _parse_port(block).is_closed)


def find_other_uses(ports: Mapping[str, ConfigurationBlock]) -> dict[str, str]:
    """Return the other use, as text, of each port with such a use, by canonical name.

    No VLAN counts as managed here, so trunks with only SBF's VLANs are included. The driver ignores ports that accept
    circuits (`check_readiness`).
    """
    uses = {port: derive_port_use(_parse_port(block)) for port, block in ports.items()}
    return {port: str(use) for port, use in uses.items() if is_in_other_use(use, VlanSet(), UNUSED)}


def _parse_port(block: ConfigurationBlock) -> PortReading:
    return parse_switchport_lines([line.head for line in block.body], "access")


def check_readiness(ports: Mapping[str, ConfigurationBlock]) -> dict[str, bool]:
    """Return a mapping from each port's canonical name to whether the port accepts circuits."""
    return {port: _is_ready(_parse_port(block)) for port, block in ports.items()}


def _is_ready(reading: PortReading) -> bool:
    return reading.ready and reading.mode == "trunk"


def _build_attachment(port: str, vlan: int, body: frozenset[str], *, by_sbf: bool) -> CircuitPiece:
    return CircuitPiece(kind=ATTACHMENT, domain=str(vlan), port=port, vlan=vlan, body=body, by_sbf=by_sbf)
