"""Arista EOS as an EVPN edge (VXLAN, RFC 8365).

SBF creates the pieces of a circuit in this order: a VLAN named ``vc-<service>``, its VNI on ``Vxlan1``, its MAC-VRF in
BGP, and the VLAN on the trunk. The backbone's administrators must have configured ``Vxlan1``, BGP and the EVPN
neighbours.

Sources: published configurations (cEOS 4.21, Arista's AVD) for the form of the lines (one line for each VNI);
OpenStack's networking-generic-switch for the creation of the VLAN as the first piece, and for the removal of a VNI
(``no vxlan vlan … vni …``). From memory, not checked on a device: ``no vlan`` in BGP.
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
from sbf_service.drivers.switch.dialects.arista_eos import PORTS as EOS_PORTS
from sbf_service.drivers.switch.dialects.arista_eos import SAVED
from sbf_service.drivers.switch.show_output import parse_vlans
from virtcloud.model.transport import TransportKind
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({**EOS_PORTS.kinds, "Vlan": (), "Vxlan": (), "Loopback": (), "Management": ()})
VLAN, VNI, BGP = "VLAN", "VNI", "MAC-VRF"
IN_BGP = ("rd {rd}", "route-target both {rt}", "redistribute learned")


def parse_answers(answers: Sequence[str], vlans: VlanSet) -> EdgeReading:
    """Parse the whole configuration."""
    (text,) = answers
    blocks = parse_tree(text)
    ports = parse_ports(blocks, PORTS, text)
    bgp = next(find_blocks(blocks, "router bgp "), None)
    pieces = [
        *_parse_vlan_pieces(blocks, vlans),
        *(piece for _, block in find_blocks(blocks, "interface Vxlan") for piece in _parse_vnis(block)),
        *(_parse_mac_vrfs(bgp[1], vlans) if bgp else ()),
        *parse_attachments(ports, vlans),
    ]
    return EdgeReading(
        tuple(pieces),
        check_readiness(ports),
        {"bgp": bgp[0]} if bgp else {},
        empty=find_empty_lists(ports),
        down=find_shut_ports(ports),
        uses=find_other_uses(ports),
    )


def _parse_vlan_pieces(blocks: list[ConfigurationBlock], vlans: VlanSet) -> Iterator[CircuitPiece]:
    for words, block in find_blocks(blocks, "vlan "):
        if not re.fullmatch(r"[\d,\-]+", words):
            continue
        name = block.after("name ")
        for vlan in parse_vlans(words) & vlans:
            by_sbf = name in (None, f"VLAN{vlan:04}") or parse_service_name(name) is not None
            body = frozenset({block.head, *block.lines})
            yield CircuitPiece(
                kind=VLAN, domain=str(vlan), service=parse_service_name(name), vlan=vlan, body=body, by_sbf=by_sbf
            )


def _parse_vnis(block: ConfigurationBlock) -> Iterator[CircuitPiece]:
    """Parse single VNIs, and ranges of VLANs with a range of VNIs (``vxlan vlan 10-11 vni 10010-10011``)."""
    for words, _ in block.below("vxlan vlan "):
        found = re.fullmatch(r"(\d[\d,\-]*) vni (\d[\d,\-]*)", words)
        if found is None:
            continue
        for vlan, vni in zip(_expand_numbers(found[1]), _expand_numbers(found[2]), strict=True):
            line = frozenset({f"vxlan vlan {vlan} vni {vni}"})
            yield CircuitPiece(kind=VNI, domain=str(vlan), service=vni, vlan=vlan, body=line)


def _parse_mac_vrfs(bgp: ConfigurationBlock, vlans: VlanSet) -> Iterator[CircuitPiece]:
    for words, block in bgp.below("vlan "):
        yield CircuitPiece(kind=BGP, domain=words, vlan=int(words), body=block.lines)
    for _, block in bgp.below("vlan-aware-bundle "):
        for vlan in parse_vlans(block.after("vlan ") or "") & vlans:
            yield CircuitPiece(kind=BGP, domain=str(vlan), vlan=vlan, body=frozenset({block.head}), by_sbf=False)


def _expand_numbers(text: str) -> list[int]:
    ranges = [part.partition("-") for part in text.split(",")]
    return [number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)]


DIALECT = EdgeDialect(
    title="Arista EOS",
    netmiko="arista_eos",
    recipes={
        (TransportKind.EVPN, False): CircuitRecipe(
            {
                VLAN: ("vlan {vlan}", "name {name}", "exit"),
                VNI: ("interface Vxlan1", "vxlan vlan {vlan} vni {service}", "exit"),
                BGP: ("router bgp {bgp}", "vlan {vlan}", *IN_BGP, "exit", "exit"),
                ATTACHMENT: ALLOW,
            },
            {VLAN: ("name {name}",), VNI: ("vxlan vlan {vlan} vni {service}",), BGP: IN_BGP},
        )
    },
    show=("show running-config",),
    see=parse_answers,
    domain=lambda circuit, _: str(circuit.vlan),
    unmake={
        ATTACHMENT: REMOVE,
        BGP: ("router bgp {bgp}", "no vlan {vlan}", "exit"),
        VNI: ("interface Vxlan1", "no vxlan vlan {vlan} vni {service}", "exit"),
        VLAN: ("no vlan {vlan}",),
    },
    prepare=PREPARE,
    trunk=TRUNK,
    save=("copy running-config startup-config",),
    saved=SAVED,
    errors=re.compile(r"^\s*%(?! ?Warning).*|^Error.*", re.MULTILINE),
    global_vlans=True,
    ports=PORTS,
    privileged=True,
)
