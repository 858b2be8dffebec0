"""What a platform's file says, and how its templates are filled."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sbf_service.drivers.dialects.dialect import Lines

LABELS = (
    "The edges' loopbacks must reach each other by the backbone's own routing, with labels; every link on the way "
    "needs 22 to 30 bytes more than the customer's frame."
)
"""What every text for VPLS takes for granted."""

MEANINGS = {
    "port": "the backbone's port that the site is attached to",
    "core_port": "the device's port towards the rest of the backbone",
    "bridge": "the bridge that the ports are in",
    "loopback": "the address by which the other edges know this one",
    "peer": "the loopbacks of the other edges, a line for each",
    "vlans": "the VLANs of the site's pool: give it one with 'virtcloud pool set'",
}
"""What is to be put in place of the words that SBF does not know, for those that are the administrators' to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A platform's texts, as templates; a line with ``{peer}`` is repeated for each other edge.

    What a platform has no text for is empty, and ``no_tunnel`` may say why.
    """

    title: str
    uplink: Lines = ()
    """The site's own port: a trunk whose list is empty, with room for the tags. Where a dialect says how a port is
    prepared these are only what it leaves alone, such as the MTU, said in the same mode."""
    tunnel: Lines = ()
    """The backbone's port of a port-based 802.1ad service: all that the site sends goes into one service VLAN."""
    no_tunnel: str = ""
    passing: Lines = ()
    """The backbone's port where tags simply pass: a trunk with the site's VLANs."""
    services: Lines = ()
    """A provider edge's port towards the backbone where each cluster has a service VLAN."""
    vpls: Lines = ()
    evpn: Lines = ()
    notes: Lines = ()


class Filled(NamedTuple):
    """Lines without templates, and the words that are still to be filled in, with their meanings."""

    lines: Lines
    to_fill: dict[str, str]


def fill(templates: Sequence[str], known: Mapping[str, object], peers: Sequence[str] = ()) -> Filled:
    """Put what is known in place; what is not becomes a word in angle brackets."""
    spread = [one for line in templates for one in _repeated(line, peers)]
    missing = {word for line in spread for word in re.findall(r"\{(\w+)\}", line)} - {*known}
    values = {**known, **{word: f"<{word}>" for word in missing}}
    meanings = {f"<{word}>": MEANINGS[word] for word in sorted(missing)}
    return Filled(tuple(line.format(**values) for line in spread), meanings)


def _repeated(line: str, peers: Sequence[str]) -> list[str]:
    """Repeat a line for each peer; where none is known it stays, to be filled in."""
    return [line.replace("{peer}", peer) for peer in peers] if "{peer}" in line and peers else [line]
