"""From the pieces that were seen on an edge to circuits, to parts of them, and to what may not be touched. Pure."""

from collections import Counter
from dataclasses import dataclass

from sbf_service.drivers.edge import ManagedEdge
from sbf_service.drivers.edges.dialect import ATTACHMENT, CORE, Piece, Seen
from sbf_service.drivers.edges.filling import Filling
from virtcloud.model.edge import NO_SERVICE, Circuit, EdgeCarried, Part, in_order
from virtcloud.model.errors import Unsafe
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.wanted import ForeignVlan

QUOTED_CHARACTERS = 300
SHUT = frozenset({"shutdown", "state suspend", "disable"})
"""Lines that make a port, a subinterface or a VLAN carry nothing."""


@dataclass(frozen=True, slots=True)
class Group:
    """Pieces that are joined to one another on the device."""

    pieces: tuple[Piece, ...]

    @property
    def domain(self) -> str:
        """What they share."""
        return self.pieces[0].domain

    @property
    def attachments(self) -> tuple[Piece, ...]:
        """The VLANs on ports that are in it."""
        return tuple(one for one in self.pieces if one.kind == ATTACHMENT)

    @property
    def core(self) -> tuple[Piece, ...]:
        """All else: what joins it to a service."""
        return tuple(one for one in self.pieces if one.kind != ATTACHMENT)

    @property
    def services(self) -> list[int]:
        """The services that it names; those of its core come first."""
        return list(dict.fromkeys(one.service for one in (*self.core, *self.attachments) if one.service is not None))

    @property
    def service(self) -> int:
        """The service that it is for, as far as can be told."""
        return next(iter(self.services), NO_SERVICE)

    @property
    def vlan(self) -> int | None:
        """Its VLAN where that is the same on all ports."""
        return next((one.vlan for one in self.core if one.vlan is not None), None)


def groups_of(seen: Seen) -> list[Group]:
    """Put pieces of one domain together."""
    found: dict[str, list[Piece]] = {}
    for piece in seen.pieces:
        found.setdefault(piece.domain, []).append(piece)
    return [Group(tuple(pieces)) for pieces in found.values()]


def carried_from(filling: Filling, seen: Seen, managed: ManagedEdge) -> EdgeCarried:
    """Keep of what was seen what we manage; raises Unsafe for what may not be touched."""
    ports = _ports(filling, seen, managed)
    _check_numbers(filling, managed)
    circuits, down, parts, foreign = set[Circuit](), set[Circuit](), list[Part](), list[ForeignVlan]()
    for group in groups_of(seen):
        if other := _foreign(filling, group, ports, managed):
            foreign.append(other)
        elif _is_managed(filling, group, ports, managed):
            _check(filling, group, ports, managed)
            found, left = _judged(filling, group, ports)
            circuits |= set(found)
            down |= {one for one in found if _is_down(filling, group, one, seen)}
            parts += left
    return EdgeCarried(circuits=in_order(circuits), parts=tuple(parts), foreign=tuple(foreign), down=in_order(down))


def _is_down(filling: Filling, group: Group, circuit: Circuit, seen: Seen) -> bool:
    """Return whether a circuit carries nothing, since a piece of it, its port or the core port was shut down."""
    place = (filling.dialect.ports.canonical(circuit.port), circuit.vlan)
    pieces = [one for one in group.pieces if one.kind == CORE or one.port is None or (one.port, one.vlan) == place]
    return any(one.port in seen.down or SHUT & one.body for one in pieces)


def _foreign(filling: Filling, group: Group, ports: dict[str, PortName], managed: ManagedEdge) -> ForeignVlan | None:
    """Return a VLAN of the pool that somebody else uses on the edge; None for any other group.

    Only where a VLAN is the same on all ports, and where it is in no managed service: that one would be joined to it.
    """
    vlan = int(group.domain) if group.domain.isdigit() else 0
    if not filling.dialect.global_vlans or vlan not in managed.vlans or any(map(filling.transport, group.services)):
        return None
    others = tuple(sorted(one.port for one in group.attachments if one.port is not None and one.port not in ports))
    exists_unowned = any(one.kind != ATTACHMENT for one in group.pieces) and vlan not in managed.created
    if not others and not exists_unowned and all(one.ours for one in group.pieces):
        return None
    name = next((name for one in group.core for name in _names(one)), None)
    return ForeignVlan(vlan=VlanId(vlan), name=name, ports=tuple(map(PortName, others)))


def _names(piece: Piece) -> list[str]:
    return [line.removeprefix("name ") for line in piece.body if line.startswith("name ")]


def _check_numbers(filling: Filling, managed: ManagedEdge) -> None:
    for one in filling.makes if filling.dialect.numbered_domains else ():
        if one.shared in managed.vlans:
            wanted = f"expected the vpn_id of transport {one.name} outside the pool, got {one.shared}"
            cure = "bridge domains have their numbers here: take it out of the pool, or give the transport another"
            raise Unsafe(f"edge {filling.edge.name}: {wanted}: {cure}")


def _ports(filling: Filling, seen: Seen, managed: ManagedEdge) -> dict[str, PortName]:
    """Give the managed ports by the names that the device has for them."""
    ports = {filling.dialect.ports.canonical(port): port for port in managed.ports}
    for canonical, port in ports.items():
        if canonical not in seen.ports:
            there = ", ".join(seen.ports)[:QUOTED_CHARACTERS] or "none"
            raise Unsafe(f"edge {filling.edge.name}: expected a port {port}, found {there}: correct the topology")
    return ports


def _is_managed(filling: Filling, group: Group, ports: dict[str, PortName], managed: ManagedEdge) -> bool:
    numbered = any(filling.transport(service) for service in group.services)
    everywhere = filling.dialect.global_vlans
    used = any((everywhere or one.port in ports) and one.vlan in managed.vlans for one in group.pieces)
    return numbered or used


def _check(filling: Filling, group: Group, ports: dict[str, PortName], managed: ManagedEdge) -> None:
    """Raise Unsafe for a group that has something in it which is not ours."""
    for piece in group.pieces:
        if not piece.ours:
            raise _unsafe(filling, "expected nothing but virtcloud's on managed numbers", piece)
        if piece.kind == ATTACHMENT and (piece.port not in ports or piece.vlan not in managed.vlans):
            raise _unsafe(filling, "expected only managed VLANs of managed ports in a managed service", piece)
        if piece.service is not None and filling.transport(piece.service) is None:
            raise _unsafe(filling, "expected a service of one of its transports on a managed VLAN", piece)
        if filling.dialect.global_vlans and piece.vlan is not None and piece.vlan not in managed.vlans:
            raise _unsafe(filling, "expected only managed VLANs in a managed service", piece)


def _unsafe(filling: Filling, expected: str, piece: Piece) -> Unsafe:
    found = " ".join(str(piece).split())[:QUOTED_CHARACTERS]
    cure = "it was left alone; move it off the managed numbers, or take these out of the pool or the transport"
    return Unsafe(f"edge {filling.edge.name}: {expected}, found {found}: {cure}")


def _judged(filling: Filling, group: Group, ports: dict[str, PortName]) -> tuple[list[Circuit], list[Part]]:
    """Tell the circuits of a group that are whole from what is not."""
    whole, parts = list[Circuit](), list[Part]()
    for piece in group.attachments:
        circuit = _circuit(filling, group, piece, ports)
        if circuit is not None and len(group.services) == 1 and _is_whole(filling, group, piece, circuit):
            whole.append(circuit)
        else:
            parts.append(_part(filling, group, piece, ports))
    if not group.attachments and group.core:
        parts.append(_part(filling, group, None, ports))
    return whole, parts


def _circuit(filling: Filling, group: Group, piece: Piece, ports: dict[str, PortName]) -> Circuit | None:
    transport = filling.transport(group.service)
    if transport is None or piece.port is None or piece.vlan is None:
        return None
    return Circuit(transport=transport.name, port=ports[piece.port], vlan=VlanId(piece.vlan), service=group.service)


def _part(filling: Filling, group: Group, piece: Piece | None, ports: dict[str, PortName]) -> Part:
    """Describe what is left. A VLAN that is on no port and says no service is given the first transport's first."""
    known = filling.transport(group.service) or next(iter(filling.makes), None)
    if known is None:
        raise _unsafe(filling, "expected none of its transports' circuits", piece or group.pieces[0])
    vlan = group.vlan if piece is None or piece.vlan is None else piece.vlan
    port = None if piece is None or piece.port is None else ports[piece.port]
    told = group.service != NO_SERVICE or (port is not None and vlan is not None)
    service = group.service if told else known.numbers[0]
    return Part(transport=known.name, service=service, port=port, vlan=None if vlan is None else VlanId(vlan))


def _is_whole(filling: Filling, group: Group, attachment: Piece, circuit: Circuit) -> bool:
    """Say whether every kind of piece is there once, and shows the lines that we would have made, no others."""
    place = (attachment.port, attachment.vlan)
    pieces = [one for one in group.core if one.port is None or one.kind == CORE or (one.port, one.vlan) == place]
    pieces.append(attachment)
    kinds = Counter(piece.kind for piece in pieces)
    once = kinds == Counter(filling.kinds(circuit))
    return once and all(filling.is_as_shown(piece, circuit) for piece in pieces)
