"""The texts of preparation sheets: the templates of a platform, and the requirements of a transport. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sbf_service.drivers.switch.dialect import Commands
from virtcloud.model.transport import Transport, TransportKind

SPANNING_TREES_NOTE = (
    "Do not tunnel the BPDUs of sites, and do not answer them: each site has its own spanning tree. A second port of "
    "the same site in the same service would create a loop that no spanning tree interrupts."
)
UNUSED_PORT_NOTE = (
    "These lines are for an unused port. They configure the port as a trunk without VLANs. SBF adds and removes the "
    "VLANs of clusters. If the port is in use already, remove the pool's VLAN IDs from the port instead of entering "
    "these lines."
)
FRAME_SIZE_NOTE = (
    "A guest's largest packet has 1500 bytes. The VLAN tag adds 4 bytes, 802.1ad 4, VXLAN 50, and MPLS 22 to 30 bytes."
)
NO_OTHER_DEVICES_NOTE = (
    "Connect no other device to this service: every connected device reaches the networks of all clusters."
)
CIRCUIT = "A dedicated circuit must pass tagged frames unchanged, with an MTU of at least 1504 bytes."


def describe_service(transport: Transport) -> str:
    """Return a description of the service that the backbone must provide for a transport."""
    if transport.kind is TransportKind.DIRECT:
        return CIRCUIT.rstrip(".")
    if transport.s_tag:
        return (
            f"802.1ad, port-based: every frame received on this port goes into the service VLAN {transport.s_tag} with "
            "an outer tag (0x88a8 by the standard); inner tags stay unchanged and are not interpreted"
        )
    if transport.s_tags:
        return f"802.1ad: the service VLANs {transport.s_tags} pass between all edges (0x88a8 by the standard)"
    service_ids = transport.vpn_ids or transport.vpn_id or transport.vnis
    return f"{transport.kind.value.upper()} in AS {transport.asn}, services {service_ids}: sessions between all edges"


LABELS_NOTE = (
    "The edges' loopbacks must reach each other by the backbone's own routing, with MPLS labels. Every link on the "
    "path must carry frames that are 22 to 30 bytes larger than the customer's frames."
)

PLACEHOLDERS = {
    "port": "the backbone's port that the site is attached to",
    "core_port": "the device's port towards the rest of the backbone",
    "bridge": "the bridge that the ports are in",
    "loopback": "the loopback address of this edge, at which the other edges reach this edge",
    "loopback_prefix": "the loopback address of this edge with its length, /32 (IPv4) or /128 (IPv6)",
    "ipv4_loopback": "an IPv4 loopback address of this edge, which this platform needs: also set it in the topology",
    "router_id": "the BGP identifier of this edge: 32 bits written as an IPv4 address, unique in the AS",
    "peer": "the loopbacks of the other edges, one line each",
    "vlans": "the VLANs of the site's pool: set it with 'virtcloud pool set'",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformTemplates:
    """The templates of a platform, each for one kind of port or service.

    An empty template means that SBF has no text. Exception: with a dialect, a sheet contains the dialect's commands
    even if ``uplink`` is empty. A line with ``{peer}`` is repeated for each other edge.
    """

    title: str
    uplink: Commands = ()
    """The lines for the site's own port: a trunk without VLANs, whose MTU includes the tags.

    With a dialect, these are only settings that the dialect omits, such as the MTU. They follow the dialect's commands.
    """
    tunnel: Commands = ()
    """The lines for the backbone's port if all frames of the site go into one service VLAN (port-based 802.1ad)."""
    no_tunnel: str = ""
    """The reason why a backbone device of this platform must not provide a port-based 802.1ad service.

    Empty if it may provide the service.
    """
    passing: Commands = ()
    """The lines for the backbone's port if the backbone passes tags unchanged: a trunk with the site's VLANs."""
    services: Commands = ()
    """The lines for a provider edge's port towards the backbone if each cluster has a service VLAN."""
    vpls: Commands = ()
    evpn: Commands = ()
    notes: Commands = ()


class FilledTemplates(NamedTuple):
    """The lines with values inserted. ``to_fill`` maps the remaining placeholders to their meanings."""

    lines: Commands
    to_fill: dict[str, str]


def fill_templates(templates: Sequence[str], known: Mapping[str, object], peers: Sequence[str] = ()) -> FilledTemplates:
    """Insert the known values into the templates, and ``<name>`` for each placeholder without a known value.

    Repeat a line with ``{peer}`` for each of ``peers``, the loopbacks of the other edges.
    """
    lines = [repeated for line in templates for repeated in _repeat_for_peers(line, peers)]
    missing = {placeholder for line in lines for placeholder in re.findall(r"\{(\w+)\}", line)} - {*known}
    values = {**known, **{placeholder: f"<{placeholder}>" for placeholder in missing}}
    meanings = {f"<{placeholder}>": PLACEHOLDERS[placeholder] for placeholder in sorted(missing)}
    return FilledTemplates(tuple(line.format(**values) for line in lines), meanings)


def _repeat_for_peers(line: str, peers: Sequence[str]) -> list[str]:
    return [line.replace("{peer}", peer) for peer in peers] if "{peer}" in line and peers else [line]
