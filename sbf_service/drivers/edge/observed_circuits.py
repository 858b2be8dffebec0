"""The derivation of an edge's circuits, and of the remnants of incomplete circuits, from its pieces. Pure."""

from collections import Counter
from dataclasses import dataclass

from sbf_service.drivers.contract import EdgeScope
from sbf_service.drivers.device_errors import FOREIGN_SERVICE_REMEDY, quote_start
from sbf_service.drivers.edge.edge_dialect import ATTACHMENT, CORE, CircuitPiece, EdgeReading, EdgeTemplates
from virtcloud.model.edge import NO_SERVICE, Circuit, CircuitRemnant, EdgeObserved, sort_circuits
from virtcloud.model.errors import Unsafe
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.wanted import ForeignVlan

SHUTDOWN_LINES = frozenset({"shutdown", "state suspend", "disable"})
"""Lines that prevent a port, a subinterface or a VLAN from carrying frames."""


@dataclass(frozen=True, slots=True)
class PieceGroup:
    """Pieces that are joined to each other on the device."""

    pieces: tuple[CircuitPiece, ...]

    @property
    def domain(self) -> str:
        """The domain that the pieces share."""
        return self.pieces[0].domain

    @property
    def attachments(self) -> tuple[CircuitPiece, ...]:
        """The VLANs on ports."""
        return tuple(one for one in self.pieces if one.kind == ATTACHMENT)

    @property
    def core(self) -> tuple[CircuitPiece, ...]:
        """The other pieces, which join the domain to a service."""
        return tuple(one for one in self.pieces if one.kind != ATTACHMENT)

    @property
    def services(self) -> list[int]:
        """The services that the pieces name; services that pieces of ``core`` name come first."""
        return list(dict.fromkeys(one.service for one in (*self.core, *self.attachments) if one.service is not None))

    @property
    def service(self) -> int:
        """The service of the group; ``NO_SERVICE`` if no piece names a service."""
        return next(iter(self.services), NO_SERVICE)

    @property
    def vlan(self) -> int | None:
        """The VLAN ID of the group on platforms where a VLAN is the same on all ports; None on other platforms."""
        return next((one.vlan for one in self.core if one.vlan is not None), None)


def group_pieces(reading: EdgeReading) -> list[PieceGroup]:
    """Return the pieces grouped by domain."""
    found: dict[str, list[CircuitPiece]] = {}
    for piece in reading.pieces:
        found.setdefault(piece.domain, []).append(piece)
    return [PieceGroup(tuple(pieces)) for pieces in found.values()]


def derive_circuits(templates: EdgeTemplates, reading: EdgeReading, scope: EdgeScope) -> EdgeObserved:
    """Return the observed circuits within the scope. Raise Unsafe for configuration that SBF must not change."""
    ports = _find_managed_ports(templates, reading, scope)
    _check_vpn_ids(templates, scope)
    circuits, down, remnants, foreign = set[Circuit](), set[Circuit](), list[CircuitRemnant](), list[ForeignVlan]()
    for group in group_pieces(reading):
        if other := _find_foreign_vlan(templates, group, ports, scope):
            foreign.append(other)
        elif _is_managed(templates, group, ports, scope):
            _check_ownership(templates, group, ports, scope)
            found, left = _split_complete(templates, group, ports)
            circuits |= set(found)
            down |= {one for one in found if _is_down(templates, group, one, reading)}
            remnants += left
    return EdgeObserved(
        circuits=sort_circuits(circuits), parts=tuple(remnants), foreign=tuple(foreign), down=sort_circuits(down)
    )


def _is_down(templates: EdgeTemplates, group: PieceGroup, circuit: Circuit, reading: EdgeReading) -> bool:
    """Return whether a circuit carries no frames because one of its pieces, its port or the core port is shut down."""
    place = (templates.dialect.ports.canonical(circuit.port), circuit.vlan)
    pieces = [one for one in group.pieces if one.kind == CORE or one.port is None or (one.port, one.vlan) == place]
    return any(one.port in reading.down or SHUTDOWN_LINES & one.body for one in pieces)


def _find_foreign_vlan(
    templates: EdgeTemplates, group: PieceGroup, ports: dict[str, PortName], scope: EdgeScope
) -> ForeignVlan | None:
    """Return a VLAN of the pool that is in other use on the edge; None if the group is no such VLAN.

    Applies only to platforms where a VLAN is the same on all ports. A group in a managed service is not returned,
    because that service would be joined to the other use.
    """
    vlan = int(group.domain) if group.domain.isdigit() else 0
    if not templates.dialect.global_vlans or vlan not in scope.vlans or any(map(templates.transport, group.services)):
        return None
    others = tuple(sorted(one.port for one in group.attachments if one.port is not None and one.port not in ports))
    exists_unowned = any(one.kind != ATTACHMENT for one in group.pieces) and vlan not in scope.created
    if not others and not exists_unowned and all(one.ours for one in group.pieces):
        return None
    name = next((name for one in group.core for name in _find_names(one)), None)
    return ForeignVlan(vlan=VlanId(vlan), name=name, ports=tuple(map(PortName, others)))


def _find_names(piece: CircuitPiece) -> list[str]:
    return [line.removeprefix("name ") for line in piece.body if line.startswith("name ")]


def _check_vpn_ids(templates: EdgeTemplates, scope: EdgeScope) -> None:
    for one in templates.transports if templates.dialect.numbered_domains else ():
        if one.shared in scope.vlans:
            wanted = f"expected the vpn_id of transport {one.name} outside the pool, got {one.shared}"
            remedy = "bridge domains have VLAN numbers here: remove it from the pool, or give the transport another"
            raise Unsafe(f"edge {templates.edge.name}: {wanted}: {remedy}")


def _find_managed_ports(templates: EdgeTemplates, reading: EdgeReading, scope: EdgeScope) -> dict[str, PortName]:
    """Return the managed ports by canonical name. Raise Unsafe for a port that does not exist."""
    ports = {templates.dialect.ports.canonical(port): port for port in scope.ports}
    for canonical, port in ports.items():
        if canonical not in reading.ports:
            there = quote_start(", ".join(reading.ports)) or "none"
            raise Unsafe(f"edge {templates.edge.name}: expected a port {port}, found {there}: correct the topology")
    return ports


def _is_managed(templates: EdgeTemplates, group: PieceGroup, ports: dict[str, PortName], scope: EdgeScope) -> bool:
    in_service = any(templates.transport(service) for service in group.services)
    everywhere = templates.dialect.global_vlans
    in_use = any((everywhere or one.port in ports) and one.vlan in scope.vlans for one in group.pieces)
    return in_service or in_use


def _check_ownership(templates: EdgeTemplates, group: PieceGroup, ports: dict[str, PortName], scope: EdgeScope) -> None:
    """Raise Unsafe for a group with a piece that SBF does not own."""
    for piece in group.pieces:
        if not piece.ours:
            raise _build_unsafe(templates, "expected only virtcloud's configuration on managed VLANs", piece)
        if piece.kind == ATTACHMENT and (piece.port not in ports or piece.vlan not in scope.vlans):
            raise _build_unsafe(templates, "expected only managed VLANs of managed ports in a managed service", piece)
        if piece.service is not None and templates.transport(piece.service) is None:
            raise _build_unsafe(templates, "expected a service of one of its transports on a managed VLAN", piece)
        if templates.dialect.global_vlans and piece.vlan is not None and piece.vlan not in scope.vlans:
            raise _build_unsafe(templates, "expected only managed VLANs in a managed service", piece)


def _build_unsafe(templates: EdgeTemplates, expected: str, piece: CircuitPiece) -> Unsafe:
    found = quote_start(str(piece))
    return Unsafe(f"edge {templates.edge.name}: {expected}, found {found}: {FOREIGN_SERVICE_REMEDY}")


def _split_complete(
    templates: EdgeTemplates, group: PieceGroup, ports: dict[str, PortName]
) -> tuple[list[Circuit], list[CircuitRemnant]]:
    """Return the complete circuits of a group, and the remnants of its incomplete circuits."""
    complete, remnants = list[Circuit](), list[CircuitRemnant]()
    for piece in group.attachments:
        circuit = _build_circuit(templates, group, piece, ports)
        if circuit is not None and len(group.services) == 1 and _is_complete(templates, group, piece, circuit):
            complete.append(circuit)
        else:
            remnants.append(_build_remnant(templates, group, piece, ports))
    if not group.attachments and group.core:
        remnants.append(_build_remnant(templates, group, None, ports))
    return complete, remnants


def _build_circuit(
    templates: EdgeTemplates, group: PieceGroup, piece: CircuitPiece, ports: dict[str, PortName]
) -> Circuit | None:
    transport = templates.transport(group.service)
    if transport is None or piece.port is None or piece.vlan is None:
        return None
    return Circuit(transport=transport.name, port=ports[piece.port], vlan=VlanId(piece.vlan), service=group.service)


def _build_remnant(
    templates: EdgeTemplates, group: PieceGroup, piece: CircuitPiece | None, ports: dict[str, PortName]
) -> CircuitRemnant:
    """Return a remnant.

    A VLAN that is on no port and in no known service is assigned to the first service of the first transport.
    """
    known = templates.transport(group.service) or next(iter(templates.transports), None)
    if known is None:
        raise _build_unsafe(templates, "expected none of its transports' circuits", piece or group.pieces[0])
    vlan = group.vlan if piece is None or piece.vlan is None else piece.vlan
    port = None if piece is None or piece.port is None else ports[piece.port]
    is_known = group.service != NO_SERVICE or (port is not None and vlan is not None)
    service = group.service if is_known else known.service_ids[0]
    return CircuitRemnant(transport=known.name, service=service, port=port, vlan=None if vlan is None else VlanId(vlan))


def _is_complete(templates: EdgeTemplates, group: PieceGroup, attachment: CircuitPiece, circuit: Circuit) -> bool:
    """Return whether each kind of piece exists once, with exactly the lines that SBF would create."""
    place = (attachment.port, attachment.vlan)
    pieces = [one for one in group.core if one.port is None or one.kind == CORE or (one.port, one.vlan) == place]
    pieces.append(attachment)
    kinds = Counter(piece.kind for piece in pieces)
    exists_once = kinds == Counter(templates.kinds(circuit))
    return exists_once and all(templates.matches_recipe(piece, circuit) for piece in pieces)
