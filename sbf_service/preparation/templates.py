"""The texts of preparation sheets: templates of a platform, and what a transport needs from any backbone. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sbf_service.drivers.switch.dialect import Commands
from virtcloud.model.transport import Transport, TransportKind

TREES = (
    "Do not tunnel the sites' BPDUs and do not answer them: each site has its own spanning tree. A second port of the "
    "same site in the same service would be an unprotected loop."
)
OWN_PORT = (
    "These lines are for a port that carries nothing else. They make it a trunk without VLANs; SBF adds and "
    "removes the VLANs of clusters. If the port is in use already, do not enter them, and remove the "
    "pool's VLAN IDs from the port."
)
ROOM = "A guest's largest frame has 1500 bytes, and its tag 4 more. 802.1ad adds 4, VXLAN 50, MPLS 22 to 30 bytes."
STRANGERS = "Connect nothing else to this service: whatever is connected reaches the networks of all clusters."
CIRCUIT = "A dedicated circuit must pass tagged frames of at least 1504 bytes unchanged."


def describe_service(transport: Transport) -> str:
    """Return what the backbone must do for a transport."""
    if transport.kind is TransportKind.DIRECT:
        return CIRCUIT.rstrip(".")
    if transport.s_tag:
        return (
            f"802.1ad, port-based: every frame received on this port goes into the service VLAN {transport.s_tag} with "
            "an outer tag (0x88a8 by the standard); inner tags stay unchanged and are not interpreted"
        )
    if transport.s_tags:
        return f"802.1ad: the service VLANs {transport.s_tags} pass between all edges (0x88a8 by the standard)"
    numbers = transport.vpn_ids or transport.vpn_id or transport.vnis
    return f"{transport.kind.value.upper()} in AS {transport.asn}, services {numbers}: sessions between all edges"


LABELS_NOTE = (
    "The edges' loopbacks must reach each other by the backbone's own routing, with MPLS labels. Every link on the "
    "path must carry 22 to 30 bytes more than the customer's frame."
)
"""The requirements of every VPLS sheet."""

PLACEHOLDERS = {
    "port": "the backbone's port that the site is attached to",
    "core_port": "the device's port towards the rest of the backbone",
    "bridge": "the bridge that the ports are in",
    "loopback": "the address by which the other edges know this one",
    "peer": "the loopbacks of the other edges, one line each",
    "vlans": "the VLANs of the site's pool: set it with 'virtcloud pool set'",
}
"""The meanings of placeholders that only the administrators can fill in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformTemplates:
    """The templates of a platform; a line with ``{peer}`` is repeated for each other edge.

    A missing text is empty; ``no_tunnel`` may contain the reason.
    """

    title: str
    uplink: Commands = ()
    """The site's own port: a trunk without VLANs, with room for the tags.

    Where the dialect prepares ports, these lines contain only what the dialect omits, such as the MTU, in the same
    mode.
    """
    tunnel: Commands = ()
    """The backbone's port of a port-based 802.1ad service: all frames of the site go into one service VLAN."""
    no_tunnel: str = ""
    passing: Commands = ()
    """The backbone's port where tags pass unchanged: a trunk with the site's VLANs."""
    services: Commands = ()
    """A provider edge's port towards the backbone where each cluster has a service VLAN."""
    vpls: Commands = ()
    evpn: Commands = ()
    notes: Commands = ()


class FilledTemplates(NamedTuple):
    """Filled lines, and the remaining placeholders with their meanings."""

    lines: Commands
    to_fill: dict[str, str]


def fill_templates(templates: Sequence[str], known: Mapping[str, object], peers: Sequence[str] = ()) -> FilledTemplates:
    """Fill in known values; an unknown value becomes a word in angle brackets."""
    spread = [one for line in templates for one in _repeat_for_peers(line, peers)]
    missing = {word for line in spread for word in re.findall(r"\{(\w+)\}", line)} - {*known}
    values = {**known, **{word: f"<{word}>" for word in missing}}
    meanings = {f"<{word}>": PLACEHOLDERS[word] for word in sorted(missing)}
    return FilledTemplates(tuple(line.format(**values) for line in spread), meanings)


def _repeat_for_peers(line: str, peers: Sequence[str]) -> list[str]:
    """Repeat a line for each peer; without peers the placeholder stays."""
    return [line.replace("{peer}", peer) for peer in peers] if "{peer}" in line and peers else [line]
