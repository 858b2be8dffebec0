"""Cisco NX-OS as an EVPN edge (VXLAN, RFC 8365).

SBF creates the pieces of a circuit in this order: a VLAN that is named ``vc-VNI`` and has this VNI (``vn-segment``);
the VNI on ``nve1``, with ingress replication by BGP; the MAC-VRF under ``evpn``; and the VLAN on the trunk. The
backbone's administrators must have enabled the features and configured ``nve1``, BGP and the BGP neighbours.

A route distinguisher cannot be changed, so SBF removes an incomplete MAC-VRF and creates it again.

Sources: published configurations for the form of all lines; Ansible's ``nxos_evpn_vni`` for the route distinguisher.
One assumption was not checked on a device: the configuration contains no block for a VLAN without a name.
"""

import re
from collections.abc import Iterator, Sequence

from sbf_service.drivers.edge.configuration_tree import (
    ALLOW,
    PREPARE,
    REMOVE,
    TRUNK,
    ConfigurationBlock,
    check_readiness,
    find_blocks,
    find_empty_lists,
    find_other_uses,
    find_shut_ports,
    parse_attachments,
    parse_ports,
    parse_tree,
)
from sbf_service.drivers.edge.edge_dialect import (
    ATTACHMENT,
    CircuitPiece,
    CircuitRecipe,
    EdgeDialect,
    EdgeReading,
    parse_service_name,
)
from sbf_service.drivers.switch.dialect import PortNames
from sbf_service.drivers.switch.dialects.cisco_nxos import ERRORS, SAVED
from sbf_service.drivers.switch.dialects.cisco_nxos import PORTS as NXOS_PORTS
from sbf_service.drivers.switch.show_output import parse_vlans
from virtcloud.model.transport import TransportKind
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({**NXOS_PORTS.kinds, "Vlan": (), "nve": (), "loopback": (), "mgmt": ()})
VLAN, NVE, MAC_VRF = "VLAN", "nve", "MAC-VRF"
REPLICATION = "ingress-replication protocol bgp"
NAMED = ("name {name}", "vn-segment {service}")
IN_EVPN = ("rd {rd}", "route-target import {rt}", "route-target export {rt}")


def parse_answers(answers: Sequence[str], vlans: VlanSet) -> EdgeReading:
    """Parse the whole configuration."""
    (text,) = answers
    blocks = parse_tree(text)
    ports = parse_ports(blocks, PORTS, text)
    vlan_pieces = list(_parse_vlan_pieces(blocks, vlans))
    domains = {piece.service: piece.domain for piece in vlan_pieces if piece.service is not None}
    members = [member for _, nve in find_blocks(blocks, "interface nve") for member in nve.below("member vni ")]
    instances = [instance for _, evpn in find_blocks(blocks, "evpn") for instance in evpn.below("vni ")]
    pieces = [
        *vlan_pieces,
        *(_parse_member(NVE, words, "", block, domains) for words, block in members),
        *(_parse_member(MAC_VRF, words, "l2", block, domains) for words, block in instances),
        *parse_attachments(ports, vlans),
    ]
    return EdgeReading(
        tuple(pieces),
        check_readiness(ports),
        {},
        empty=find_empty_lists(ports),
        down=find_shut_ports(ports),
        uses=find_other_uses(ports),
    )


def _parse_vlan_pieces(blocks: list[ConfigurationBlock], vlans: VlanSet) -> Iterator[CircuitPiece]:
    heads = [(words, block) for words, block in find_blocks(blocks, "vlan ") if re.fullmatch(r"[\d,\-]+", words)]
    configured = {int(words): block for words, block in heads if words.isdigit() and block.body}
    for vlan in VlanSet(vlan for words, _ in heads for vlan in parse_vlans(words)):
        block = configured.get(vlan, ConfigurationBlock(f"vlan {vlan}"))
        name, segment = block.after("name "), block.after("vn-segment ")
        service = int(segment) if segment else parse_service_name(name)
        by_sbf = parse_service_name(name) is not None or (name in (None, f"VLAN{vlan:04}") and not segment)
        if vlan in vlans or service is not None:
            body = frozenset({block.head, *block.lines})
            yield CircuitPiece(kind=VLAN, domain=str(vlan), service=service, vlan=vlan, body=body, by_sbf=by_sbf)


def _parse_member(
    kind: str, words: str, expected: str, block: ConfigurationBlock, domains: dict[int, str]
) -> CircuitPiece:
    number, _, rest = words.partition(" ")
    vni = int(number)
    body = frozenset({block.head, *block.lines})
    return CircuitPiece(
        kind=kind, domain=domains.get(vni, f"vni {vni}"), service=vni, body=body, by_sbf=rest == expected
    )


DIALECT = EdgeDialect(
    title="Cisco NX-OS",
    netmiko="cisco_nxos",
    recipes={
        (TransportKind.EVPN, False): CircuitRecipe(
            {
                VLAN: ("vlan {vlan}", *NAMED, "exit"),
                NVE: ("interface nve1", "member vni {service}", REPLICATION, "exit", "exit"),
                MAC_VRF: ("evpn", "vni {service} l2", *IN_EVPN, "exit", "exit"),
                ATTACHMENT: ALLOW,
            },
            {VLAN: NAMED, NVE: (REPLICATION,), MAC_VRF: IN_EVPN},
        )
    },
    show=("show running-config",),
    see=parse_answers,
    domain=lambda circuit, _: str(circuit.vlan),
    unmake={
        ATTACHMENT: REMOVE,
        MAC_VRF: ("evpn", "no vni {service} l2", "exit"),
        NVE: ("interface nve1", "no member vni {service}", "exit"),
        VLAN: ("no vlan {vlan}",),
    },
    prepare=PREPARE,
    trunk=TRUNK,
    save=("copy running-config startup-config",),
    saved=SAVED,
    errors=ERRORS,
    global_vlans=True,
    reserved=VlanSet([1, *range(3968, 4095)]),
    ports=PORTS,
    privileged=True,
)
