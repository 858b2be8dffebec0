"""Understanding ports of edges where a VLAN is the same on all ports: trunks with lists, as Cisco made them."""

from collections.abc import Iterator, Mapping

from sbf_service.drivers.dialects.dialect import PortSeen
from sbf_service.drivers.dialects.reading import trunk
from sbf_service.drivers.dialects.uses import port_use
from sbf_service.drivers.edges.dialect import ATTACHMENT, Piece
from sbf_service.drivers.edges.reading import Block
from virtcloud.model.port_use import is_in_other_use
from virtcloud.model.vlans import VlanSet

PREPARE = ("interface {port}", "switchport", "switchport trunk allowed vlan none", "exit")
TRUNK = ("interface {port}", "switchport mode trunk", "exit")
UNUSED = frozenset({"", "access"})
ALLOW = ("interface {port}", "switchport trunk allowed vlan add {vlan}", "exit")
REMOVE = ("interface {port}", "switchport trunk allowed vlan remove {vlan}", "exit")
ROUTED = "routed"


def attachments(ports: Mapping[str, Block], vlans: VlanSet) -> Iterator[Piece]:
    """Give the VLANs that ports carry by their lists, and, as not ours, those that are untagged or routed."""
    for port, block in ports.items():
        seen = _seen(block)
        body = frozenset(line for line in block.lines if line.startswith("switchport"))
        for vlan in VlanSet() if seen.open else seen.tagged & vlans:
            yield _attachment(port, vlan, body, ours=True)
        for vlan in seen.untagged & vlans:
            yield _attachment(port, vlan, body, ours=False)
        number = port.removeprefix("Vlan")
        if number != port and number.isdigit():
            head = frozenset({block.head})
            yield Piece(kind=ROUTED, domain=number, vlan=int(number), body=head, ours=False)


def empty_lists(ports: Mapping[str, Block]) -> frozenset[str]:
    """Return the ports that allow no VLAN, now or as a trunk."""
    return frozenset(port for port, block in ports.items() if _seen(block).is_closed)


def other_uses(ports: Mapping[str, Block]) -> dict[str, str]:
    """Return what others use ports for that are no trunks with a list of their own, in words."""
    uses = {port: port_use(_seen(block)) for port, block in ports.items()}
    return {port: str(use) for port, use in uses.items() if is_in_other_use(use, VlanSet(), UNUSED)}


def _seen(block: Block) -> PortSeen:
    return trunk([one.head for one in block.body], "access")


def readiness(ports: Mapping[str, Block]) -> dict[str, bool]:
    """Say of each port whether its list is its own, so that a VLAN may be made without being carried there."""
    return {port: _is_ready(_seen(block)) for port, block in ports.items()}


def _is_ready(seen: PortSeen) -> bool:
    """Return whether a port takes circuits; what a member of an aggregate carries is configured on the aggregate."""
    return seen.ready and seen.mode == "trunk"


def _attachment(port: str, vlan: int, body: frozenset[str], *, ours: bool) -> Piece:
    return Piece(kind=ATTACHMENT, domain=str(vlan), port=port, vlan=vlan, body=body, ours=ours)
