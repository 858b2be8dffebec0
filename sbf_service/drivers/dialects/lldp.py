"""Understanding what switches say of their neighbours (LLDP, IEEE 802.1AB): blocks of ``key : value`` lines.

Nothing is passed over in silence: an answer in which no neighbour is found must say that there is none, a neighbour
without its ports is an error, and where a device counts its neighbours, as many must have been understood.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sbf_service.neighbour import Neighbour

NOT_SAID = re.compile(r"(?:- )?not advertised|not received|-|", re.IGNORECASE)
MOST_QUOTED = 100
KEYS = ("local", "chassis", "port", "name", "port_description", "address")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lldp:
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
class _Block:
    """One neighbour's lines so far."""

    said: dict[str, str] = field(default_factory=dict)

    def hear(self, words: Lldp, line: str) -> None:
        for key in KEYS:
            found = re.match(getattr(words, key), line)
            if found and key not in self.said:
                value = found[1].strip().strip('"')
                self.said[key] = "" if NOT_SAID.fullmatch(value) else value


def neighbours(words: Lldp, text: str) -> tuple[Neighbour, ...]:
    """Read an answer; raises ValueError with what is not understood."""
    found = tuple(_neighbour(block) for block in _blocks(words, text))
    totals = [int(one) for one in re.findall(words.total, text, re.MULTILINE)]
    if totals and sum(totals) != len(found):
        raise ValueError(f"{sum(totals)} neighbours are announced, {len(found)} understood")
    if not found and not totals and not re.fullmatch(words.nobody, text):
        raise ValueError(f"no neighbours in {text.strip()[:MOST_QUOTED]!r}")
    return found


def _blocks(words: Lldp, text: str) -> Iterator[_Block]:
    block, local = None, ""
    for line in text.splitlines():
        heading = re.match(words.heading, line)
        starts = re.match(words.start, line)
        if block and (heading or starts):
            yield block
        local = heading[1] if heading else local
        if starts:
            block = _Block({"local": local} if local else {})
        elif heading:
            block = None
        if block:
            block.hear(words, line)
    if block:
        yield block


def _neighbour(block: _Block) -> Neighbour:
    said = {key: block.said.get(key, "") for key in KEYS}
    if not said["local"] or not said["port"]:
        whose = "on which it was heard" if not said["local"] else "that it names"
        raise ValueError(f"neighbour {said['name'] or said['chassis']} stands there without the port {whose}")
    return Neighbour(**said)
