"""Understanding ports of edges where a VLAN is the same on all ports: trunks with lists, as Cisco made them."""

from collections.abc import Iterator, Mapping

from sbf_service.drivers.dialects.reading import trunk
from sbf_service.drivers.edges.dialect import ATTACHMENT, Piece
from sbf_service.drivers.edges.reading import Block
from virtcloud.model.vlans import VlanSet

PREPARE = (
    "interface {port}",
    "switchport",
    "switchport trunk allowed vlan none",
    "switchport mode trunk",
    "exit",
)
ALLOW = ("interface {port}", "switchport trunk allowed vlan add {vlan}", "exit")
REMOVE = ("interface {port}", "switchport trunk allowed vlan remove {vlan}", "exit")
ROUTED = "routed"


def attachments(ports: Mapping[str, Block], vlans: VlanSet) -> Iterator[Piece]:
    """Give the VLANs that ports carry by their lists, and, as not ours, those that are untagged or routed."""
    for port, block in ports.items():
        seen = trunk([one.head for one in block.body], "access")
        body = frozenset(line for line in block.lines if line.startswith("switchport"))
        for vlan in VlanSet() if seen.open else seen.tagged & vlans:
            yield _attachment(port, vlan, body, ours=True)
        for vlan in seen.untagged & vlans:
            yield _attachment(port, vlan, body, ours=False)
        number = port.removeprefix("Vlan")
        if number != port and number.isdigit():
            head = frozenset({block.head})
            yield Piece(kind=ROUTED, domain=number, vlan=int(number), body=head, ours=False)


def readiness(ports: Mapping[str, Block]) -> dict[str, bool]:
    """Say of each port whether its list is its own, so that a VLAN may be made without being carried there."""
    return {port: trunk([one.head for one in block.body], "access").ready for port, block in ports.items()}


def _attachment(port: str, vlan: int, body: frozenset[str], *, ours: bool) -> Piece:
    return Piece(kind=ATTACHMENT, domain=str(vlan), port=port, vlan=vlan, body=body, ours=ours)
