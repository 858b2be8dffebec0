"""Understanding configurations that are written as a tree of indented lines."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sbf_service.drivers.dialects.dialect import PortNames
from sbf_service.drivers.dialects.reading import beginning, vlan_set
from virtcloud.model.values import VlanId
from virtcloud.model.vlans import VlanSet


@dataclass(slots=True)
class Block:
    """A line of a configuration with the lines below it."""

    head: str
    body: list["Block"] = field(default_factory=list)

    @property
    def lines(self) -> frozenset[str]:
        """The lines directly below it."""
        return frozenset(one.head for one in self.body)

    def after(self, start: str) -> str | None:
        """Give what follows ``start`` in the first line below it that has it."""
        return next((one.head.removeprefix(start) for one in self.body if one.head.startswith(start)), None)

    def below(self, start: str) -> Iterator[tuple[str, "Block"]]:
        """Give the blocks below it that begin with ``start``, each with what follows that."""
        return starting(self.body, start)


def tree(text: str) -> list[Block]:
    """Read lines by their indentation; remarks (``!``) and empty lines say nothing."""
    top = Block("")
    open_blocks = [(-1, top)]
    for line in text.splitlines():
        words = line.strip()
        if not words or words.startswith("!"):
            continue
        depth = len(line) - len(line.lstrip())
        while open_blocks[-1][0] >= depth:
            open_blocks.pop()
        block = Block(" ".join(words.split()))
        open_blocks[-1][1].body.append(block)
        open_blocks.append((depth, block))
    return top.body


def starting(blocks: Iterable[Block], start: str) -> Iterator[tuple[str, Block]]:
    """Give the blocks that begin with ``start``, each with what follows that."""
    yield from ((block.head.removeprefix(start), block) for block in blocks if block.head.startswith(start))


def ports_of(blocks: Iterable[Block], names: PortNames, text: str) -> dict[str, Block]:
    """Give the interfaces by their canonical names; raises ValueError when there is none."""
    found = {names.canonical(name.split()[0]): block for name, block in starting(blocks, "interface ")}
    if not found:
        raise ValueError(f"no interface in {beginning(text)!r}")
    return found


def shut_ports(ports: Mapping[str, Block]) -> frozenset[str]:
    """Return the interfaces that were shut down."""
    return frozenset(name for name, block in ports.items() if "shutdown" in block.lines)


def outer_tags(block: Block, number: str) -> VlanSet:
    """Give the outer tags that a service instance or subinterface takes (Cisco's ``encapsulation``).

    One without an encapsulation is about to take that of its number.
    """
    words = block.after("encapsulation dot1q ") or block.after("encapsulation dot1ad ")
    if words is None:
        bare = block.after("encapsulation ") is None and number.isdigit() and 0 < int(number) <= VlanId.highest
        return VlanSet([int(number)]) if bare else VlanSet()
    listed = re.match(r"[\d,\- ]+", words)
    return vlan_set(re.sub(r"\s+", "", listed[0]), words) if listed else VlanSet()
