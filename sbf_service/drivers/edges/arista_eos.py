"""Arista EOS as an EVPN edge (VXLAN, RFC 8365).

A cluster is a VLAN with our name, its VNI on ``Vxlan1``, its MAC-VRF in BGP, and the VLAN on the trunk, made in this
order. ``Vxlan1``, BGP and its EVPN neighbours are there before, made by the backbone's administrators.

From published configurations (cEOS 4.21, Arista's AVD): all forms that are shown, one line for each VNI. From
OpenStack's networking-generic-switch: that the VLAN is first, that the ``no`` form needs the VNI. From memory, to be
checked on a device: ``no vlan`` in BGP.
"""

import re
from collections.abc import Iterator, Sequence

from sbf_service.drivers.dialects.arista_eos import PORTS as EOS_PORTS
from sbf_service.drivers.dialects.arista_eos import SAVED
from sbf_service.drivers.dialects.dialect import PortNames
from sbf_service.drivers.dialects.reading import vlan_set
from sbf_service.drivers.edges.dialect import ATTACHMENT, EdgeDialect, Piece, Recipe, Seen, service_named
from sbf_service.drivers.edges.reading import Block, ports_of, shut_ports, starting, tree
from sbf_service.drivers.edges.trunks import (
    ALLOW,
    PREPARE,
    REMOVE,
    TRUNK,
    attachments,
    empty_lists,
    other_uses,
    readiness,
)
from virtcloud.model.transport import TransportKind
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({**EOS_PORTS.kinds, "Vlan": (), "Vxlan": (), "Loopback": (), "Management": ()})
VLAN, VNI, BGP = "VLAN", "VNI", "MAC-VRF"
IN_BGP = ("rd {rd}", "route-target both {rt}", "redistribute learned")


def see(answers: Sequence[str], vlans: VlanSet) -> Seen:
    """Understand the whole configuration."""
    (text,) = answers
    blocks = tree(text)
    ports = ports_of(blocks, PORTS, text)
    bgp = next(starting(blocks, "router bgp "), None)
    pieces = [
        *_vlans(blocks, vlans),
        *(piece for _, block in starting(blocks, "interface Vxlan") for piece in _vnis(block)),
        *(_mac_vrfs(bgp[1], vlans) if bgp else ()),
        *attachments(ports, vlans),
    ]
    return Seen(
        tuple(pieces),
        readiness(ports),
        {"bgp": bgp[0]} if bgp else {},
        empty=empty_lists(ports),
        down=shut_ports(ports),
        uses=other_uses(ports),
    )


def _vlans(blocks: list[Block], vlans: VlanSet) -> Iterator[Piece]:
    for words, block in starting(blocks, "vlan "):
        if not re.fullmatch(r"[\d,\-]+", words):
            continue
        name = block.after("name ")
        for vlan in vlan_set(words) & vlans:
            ours = name in (None, f"VLAN{vlan:04}") or service_named(name) is not None
            body = frozenset({block.head, *block.lines})
            yield Piece(kind=VLAN, domain=str(vlan), service=service_named(name), vlan=vlan, body=body, ours=ours)


def _vnis(block: Block) -> Iterator[Piece]:
    """Read single numbers, and ranges side by side (``vxlan vlan 10-11 vni 10010-10011``)."""
    for words, _ in block.below("vxlan vlan "):
        found = re.fullmatch(r"(\d[\d,\-]*) vni (\d[\d,\-]*)", words)
        if found is None:
            continue
        for vlan, vni in zip(_numbers(found[1]), _numbers(found[2]), strict=True):
            line = frozenset({f"vxlan vlan {vlan} vni {vni}"})
            yield Piece(kind=VNI, domain=str(vlan), service=vni, vlan=vlan, body=line)


def _mac_vrfs(bgp: Block, vlans: VlanSet) -> Iterator[Piece]:
    for words, block in bgp.below("vlan "):
        yield Piece(kind=BGP, domain=words, vlan=int(words), body=block.lines)
    for _, block in bgp.below("vlan-aware-bundle "):
        for vlan in vlan_set(block.after("vlan ") or "") & vlans:
            yield Piece(kind=BGP, domain=str(vlan), vlan=vlan, body=frozenset({block.head}), ours=False)


def _numbers(text: str) -> list[int]:
    ends = [part.partition("-") for part in text.split(",")]
    return [number for first, _, last in ends for number in range(int(first), int(last or first) + 1)]


DIALECT = EdgeDialect(
    title="Arista EOS",
    netmiko="arista_eos",
    recipes={
        (TransportKind.EVPN, False): Recipe(
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
    see=see,
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
