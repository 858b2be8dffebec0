"""What is said in words on every sheet: what a transport needs of the backbone, whatever the platform. Pure.

What a platform's file says, and how its templates are filled.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sbf_service.drivers.switch.dialect import Commands
from virtcloud.model.transport import Transport, TransportKind

TREES = (
    "Do not tunnel the sites' BPDUs and do not answer them: each site keeps a spanning tree of its own. A second port "
    "of the same site in the same service would be a loop that nobody breaks."
)
OWN_PORT = (
    "These lines are for a port that carries nothing else: they leave it a trunk without any VLAN, to which SBF adds "
    "each cluster's and takes it out again. Where the port is in use already, leave it as it is, and keep the numbers "
    "of the pool off it."
)
ROOM = "A full frame of a guest has 1500 bytes, and its tag 4 more; 802.1ad adds another 4, VXLAN 50, MPLS 22 to 30."
STRANGERS = "Nothing else may be in this service: whoever is in it is on every cluster's network."
CIRCUIT = "A dedicated circuit must pass tagged frames as they are, and of 1504 bytes and more."


def describe_service(transport: Transport) -> str:
    """Say what the backbone must do for a transport."""
    if transport.kind is TransportKind.DIRECT:
        return CIRCUIT.rstrip(".")
    if transport.s_tag:
        return (
            f"802.1ad, port-based: all that this port takes in goes into the service VLAN {transport.s_tag} with a tag "
            "of its own (0x88a8 by the standard), tagged frames with all their tags, and nothing of it is looked at"
        )
    if transport.s_tags:
        return f"802.1ad: the service VLANs {transport.s_tags} pass between all edges (0x88a8 by the standard)"
    numbers = transport.vpn_ids or transport.vpn_id or transport.vnis
    return f"{transport.kind.value.upper()} in AS {transport.asn}, services {numbers}: sessions between all edges"


LABELS_NOTE = (
    "The edges' loopbacks must reach each other by the backbone's own routing, with labels; every link on the way "
    "needs 22 to 30 bytes more than the customer's frame."
)
"""What every text for VPLS takes for granted."""

PLACEHOLDERS = {
    "port": "the backbone's port that the site is attached to",
    "core_port": "the device's port towards the rest of the backbone",
    "bridge": "the bridge that the ports are in",
    "loopback": "the address by which the other edges know this one",
    "peer": "the loopbacks of the other edges, a line for each",
    "vlans": "the VLANs of the site's pool: give it one with 'virtcloud pool set'",
}
"""What is to be put in place of the words that SBF does not know, for those that are the administrators' to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformTemplates:
    """A platform's texts, as templates; a line with ``{peer}`` is repeated for each other edge.

    What a platform has no text for is empty, and ``no_tunnel`` may say why.
    """

    title: str
    uplink: Commands = ()
    """The site's own port: a trunk whose list is empty, with room for the tags. Where a dialect says how a port is
    prepared these are only what it leaves alone, such as the MTU, said in the same mode."""
    tunnel: Commands = ()
    """The backbone's port of a port-based 802.1ad service: all that the site sends goes into one service VLAN."""
    no_tunnel: str = ""
    passing: Commands = ()
    """The backbone's port where tags simply pass: a trunk with the site's VLANs."""
    services: Commands = ()
    """A provider edge's port towards the backbone where each cluster has a service VLAN."""
    vpls: Commands = ()
    evpn: Commands = ()
    notes: Commands = ()


class FilledTemplates(NamedTuple):
    """Lines without templates, and the words that are still to be filled in, with their meanings."""

    lines: Commands
    to_fill: dict[str, str]


def fill_templates(templates: Sequence[str], known: Mapping[str, object], peers: Sequence[str] = ()) -> FilledTemplates:
    """Put what is known in place; what is not becomes a word in angle brackets."""
    spread = [one for line in templates for one in _repeat_for_peers(line, peers)]
    missing = {word for line in spread for word in re.findall(r"\{(\w+)\}", line)} - {*known}
    values = {**known, **{word: f"<{word}>" for word in missing}}
    meanings = {f"<{word}>": PLACEHOLDERS[word] for word in sorted(missing)}
    return FilledTemplates(tuple(line.format(**values) for line in spread), meanings)


def _repeat_for_peers(line: str, peers: Sequence[str]) -> list[str]:
    """Repeat a line for each peer; where none is known it stays, to be filled in."""
    return [line.replace("{peer}", peer) for peer in peers] if "{peer}" in line and peers else [line]
