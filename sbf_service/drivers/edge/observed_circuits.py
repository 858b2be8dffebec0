"""From the pieces that were seen on an edge to circuits, to parts of them, and to what may not be touched. Pure."""

from collections import Counter
from dataclasses import dataclass

from sbf_service.drivers.contract import EdgeScope
from sbf_service.drivers.edge.edge_dialect import ATTACHMENT, CORE, CircuitPiece, EdgeReading, EdgeTemplates
from virtcloud.model.edge import NO_SERVICE, Circuit, CircuitRemnant, EdgeObserved, sort_circuits
from virtcloud.model.errors import Unsafe
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.wanted import ForeignVlan

QUOTED_CHARACTERS = 300
SHUTDOWN_LINES = frozenset({"shutdown", "state suspend", "disable"})
"""Lines that make a port, a subinterface or a VLAN carry nothing."""


@dataclass(frozen=True, slots=True)
class PieceGroup:
    """Pieces that are joined to one another on the device."""

    pieces: tuple[CircuitPiece, ...]

    @property
    def domain(self) -> str:
        """What they share."""
        return self.pieces[0].domain

    @property
    def attachments(self) -> tuple[CircuitPiece, ...]:
        """The VLANs on ports that are in it."""
        return tuple(one for one in self.pieces if one.kind == ATTACHMENT)

    @property
    def core(self) -> tuple[CircuitPiece, ...]:
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


def group_pieces(seen: EdgeReading) -> list[PieceGroup]:
    """Put pieces of one domain together."""
    found: dict[str, list[CircuitPiece]] = {}
    for piece in seen.pieces:
        found.setdefault(piece.domain, []).append(piece)
    return [PieceGroup(tuple(pieces)) for pieces in found.values()]


def derive_circuits(filling: EdgeTemplates, seen: EdgeReading, managed: EdgeScope) -> EdgeObserved:
    """Keep of what was seen what we manage; raises Unsafe for what may not be touched."""
    ports = _find_managed_ports(filling, seen, managed)
    _check_vpn_ids(filling, managed)
    circuits, down, parts, foreign = set[Circuit](), set[Circuit](), list[CircuitRemnant](), list[ForeignVlan]()
    for group in group_pieces(seen):
        if other := _find_foreign_vlan(filling, group, ports, managed):
            foreign.append(other)
        elif _is_managed(filling, group, ports, managed):
            _check_ownership(filling, group, ports, managed)
            found, left = _split_complete(filling, group, ports)
            circuits |= set(found)
            down |= {one for one in found if _is_down(filling, group, one, seen)}
            parts += left
    return EdgeObserved(
        circuits=sort_circuits(circuits), parts=tuple(parts), foreign=tuple(foreign), down=sort_circuits(down)
    )


def _is_down(filling: EdgeTemplates, group: PieceGroup, circuit: Circuit, seen: EdgeReading) -> bool:
    """Return whether a circuit carries nothing, since a piece of it, its port or the core port was shut down."""
    place = (filling.dialect.ports.canonical(circuit.port), circuit.vlan)
    pieces = [one for one in group.pieces if one.kind == CORE or one.port is None or (one.port, one.vlan) == place]
    return any(one.port in seen.down or SHUTDOWN_LINES & one.body for one in pieces)


def _find_foreign_vlan(
    filling: EdgeTemplates, group: PieceGroup, ports: dict[str, PortName], managed: EdgeScope
) -> ForeignVlan | None:
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
    name = next((name for one in group.core for name in _find_names(one)), None)
    return ForeignVlan(vlan=VlanId(vlan), name=name, ports=tuple(map(PortName, others)))


def _find_names(piece: CircuitPiece) -> list[str]:
    return [line.removeprefix("name ") for line in piece.body if line.startswith("name ")]


def _check_vpn_ids(filling: EdgeTemplates, managed: EdgeScope) -> None:
    for one in filling.makes if filling.dialect.numbered_domains else ():
        if one.shared in managed.vlans:
            wanted = f"expected the vpn_id of transport {one.name} outside the pool, got {one.shared}"
            cure = "bridge domains have their numbers here: take it out of the pool, or give the transport another"
            raise Unsafe(f"edge {filling.edge.name}: {wanted}: {cure}")


def _find_managed_ports(filling: EdgeTemplates, seen: EdgeReading, managed: EdgeScope) -> dict[str, PortName]:
    """Give the managed ports by the names that the device has for them."""
    ports = {filling.dialect.ports.canonical(port): port for port in managed.ports}
    for canonical, port in ports.items():
        if canonical not in seen.ports:
            there = ", ".join(seen.ports)[:QUOTED_CHARACTERS] or "none"
            raise Unsafe(f"edge {filling.edge.name}: expected a port {port}, found {there}: correct the topology")
    return ports


def _is_managed(filling: EdgeTemplates, group: PieceGroup, ports: dict[str, PortName], managed: EdgeScope) -> bool:
    numbered = any(filling.transport(service) for service in group.services)
    everywhere = filling.dialect.global_vlans
    used = any((everywhere or one.port in ports) and one.vlan in managed.vlans for one in group.pieces)
    return numbered or used


def _check_ownership(filling: EdgeTemplates, group: PieceGroup, ports: dict[str, PortName], managed: EdgeScope) -> None:
    """Raise Unsafe for a group that has something in it which is not ours."""
    for piece in group.pieces:
        if not piece.ours:
            raise _build_unsafe(filling, "expected nothing but virtcloud's on managed numbers", piece)
        if piece.kind == ATTACHMENT and (piece.port not in ports or piece.vlan not in managed.vlans):
            raise _build_unsafe(filling, "expected only managed VLANs of managed ports in a managed service", piece)
        if piece.service is not None and filling.transport(piece.service) is None:
            raise _build_unsafe(filling, "expected a service of one of its transports on a managed VLAN", piece)
        if filling.dialect.global_vlans and piece.vlan is not None and piece.vlan not in managed.vlans:
            raise _build_unsafe(filling, "expected only managed VLANs in a managed service", piece)


def _build_unsafe(filling: EdgeTemplates, expected: str, piece: CircuitPiece) -> Unsafe:
    found = " ".join(str(piece).split())[:QUOTED_CHARACTERS]
    cure = "it was left alone; move it off the managed numbers, or take these out of the pool or the transport"
    return Unsafe(f"edge {filling.edge.name}: {expected}, found {found}: {cure}")


def _split_complete(
    filling: EdgeTemplates, group: PieceGroup, ports: dict[str, PortName]
) -> tuple[list[Circuit], list[CircuitRemnant]]:
    """Tell the circuits of a group that are whole from what is not."""
    whole, parts = list[Circuit](), list[CircuitRemnant]()
    for piece in group.attachments:
        circuit = _build_circuit(filling, group, piece, ports)
        if circuit is not None and len(group.services) == 1 and _is_complete(filling, group, piece, circuit):
            whole.append(circuit)
        else:
            parts.append(_build_part(filling, group, piece, ports))
    if not group.attachments and group.core:
        parts.append(_build_part(filling, group, None, ports))
    return whole, parts


def _build_circuit(
    filling: EdgeTemplates, group: PieceGroup, piece: CircuitPiece, ports: dict[str, PortName]
) -> Circuit | None:
    transport = filling.transport(group.service)
    if transport is None or piece.port is None or piece.vlan is None:
        return None
    return Circuit(transport=transport.name, port=ports[piece.port], vlan=VlanId(piece.vlan), service=group.service)


def _build_part(
    filling: EdgeTemplates, group: PieceGroup, piece: CircuitPiece | None, ports: dict[str, PortName]
) -> CircuitRemnant:
    """Describe what is left. A VLAN that is on no port and says no service is given the first transport's first."""
    known = filling.transport(group.service) or next(iter(filling.makes), None)
    if known is None:
        raise _build_unsafe(filling, "expected none of its transports' circuits", piece or group.pieces[0])
    vlan = group.vlan if piece is None or piece.vlan is None else piece.vlan
    port = None if piece is None or piece.port is None else ports[piece.port]
    told = group.service != NO_SERVICE or (port is not None and vlan is not None)
    service = group.service if told else known.numbers[0]
    return CircuitRemnant(transport=known.name, service=service, port=port, vlan=None if vlan is None else VlanId(vlan))


def _is_complete(filling: EdgeTemplates, group: PieceGroup, attachment: CircuitPiece, circuit: Circuit) -> bool:
    """Say whether every kind of piece is there once, and shows the lines that we would have made, no others."""
    place = (attachment.port, attachment.vlan)
    pieces = [one for one in group.core if one.port is None or one.kind == CORE or (one.port, one.vlan) == place]
    pieces.append(attachment)
    kinds = Counter(piece.kind for piece in pieces)
    once = kinds == Counter(filling.kinds(circuit))
    return once and all(filling.is_as_shown(piece, circuit) for piece in pieces)
