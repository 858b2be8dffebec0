"""Understanding configurations that are written as a tree of indented lines.

Understanding ports of edges where a VLAN is the same on all ports: trunks with lists, as Cisco made them.
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
    """A line of a configuration with the lines below it."""

    head: str
    body: list["ConfigurationBlock"] = field(default_factory=list)

    @property
    def lines(self) -> frozenset[str]:
        """The lines directly below it."""
        return frozenset(one.head for one in self.body)

    def after(self, start: str) -> str | None:
        """Give what follows ``start`` in the first line below it that has it."""
        return next((one.head.removeprefix(start) for one in self.body if one.head.startswith(start)), None)

    def below(self, start: str) -> Iterator[tuple[str, "ConfigurationBlock"]]:
        """Give the blocks below it that begin with ``start``, each with what follows that."""
        return find_blocks(self.body, start)


def parse_tree(text: str) -> list[ConfigurationBlock]:
    """Read lines by their indentation; remarks (``!``) and empty lines say nothing."""
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
    """Give the blocks that begin with ``start``, each with what follows that."""
    yield from ((block.head.removeprefix(start), block) for block in blocks if block.head.startswith(start))


def parse_ports(blocks: Iterable[ConfigurationBlock], names: PortNames, text: str) -> dict[str, ConfigurationBlock]:
    """Give the interfaces by their canonical names; raises ValueError when there is none."""
    found = {names.canonical(name.split()[0]): block for name, block in find_blocks(blocks, "interface ")}
    if not found:
        raise ValueError(f"no interface in {quote_first_line(text)!r}")
    return found


def find_shut_ports(ports: Mapping[str, ConfigurationBlock]) -> frozenset[str]:
    """Return the interfaces that were shut down."""
    return frozenset(name for name, block in ports.items() if "shutdown" in block.lines)


def parse_outer_tags(block: ConfigurationBlock, number: str) -> VlanSet:
    """Give the outer tags that a service instance or subinterface takes (Cisco's ``encapsulation``).

    One without an encapsulation is about to take that of its number.
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
    """Give the VLANs that ports carry by their lists, and, as not ours, those that are untagged or routed."""
    for port, block in ports.items():
        seen = _parse_port(block)
        body = frozenset(line for line in block.lines if line.startswith("switchport"))
        for vlan in VlanSet() if seen.open else seen.tagged & vlans:
            yield _build_attachment(port, vlan, body, ours=True)
        for vlan in seen.untagged & vlans:
            yield _build_attachment(port, vlan, body, ours=False)
        number = port.removeprefix("Vlan")
        if number != port and number.isdigit():
            head = frozenset({block.head})
            yield CircuitPiece(kind=ROUTED, domain=number, vlan=int(number), body=head, ours=False)


def find_empty_lists(ports: Mapping[str, ConfigurationBlock]) -> frozenset[str]:
    """Return the ports that allow no VLAN, now or as a trunk."""
    return frozenset(port for port, block in ports.items() if _parse_port(block).is_closed)


def find_other_uses(ports: Mapping[str, ConfigurationBlock]) -> dict[str, str]:
    """Return what others use ports for that are no trunks with a list of their own, in words."""
    uses = {port: derive_port_use(_parse_port(block)) for port, block in ports.items()}
    return {port: str(use) for port, use in uses.items() if is_in_other_use(use, VlanSet(), UNUSED)}


def _parse_port(block: ConfigurationBlock) -> PortReading:
    return parse_switchport_lines([one.head for one in block.body], "access")


def check_readiness(ports: Mapping[str, ConfigurationBlock]) -> dict[str, bool]:
    """Say of each port whether its list is its own, so that a VLAN may be made without being carried there."""
    return {port: _is_ready(_parse_port(block)) for port, block in ports.items()}


def _is_ready(seen: PortReading) -> bool:
    """Return whether a port takes circuits; what a member of an aggregate carries is configured on the aggregate."""
    return seen.ready and seen.mode == "trunk"


def _build_attachment(port: str, vlan: int, body: frozenset[str], *, ours: bool) -> CircuitPiece:
    return CircuitPiece(kind=ATTACHMENT, domain=str(vlan), port=port, vlan=vlan, body=body, ours=ours)
