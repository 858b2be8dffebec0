"""Derives an edge's circuits, and remnants of incomplete circuits, from the pieces of circuits on the edge. Pure."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sbf_service.drivers.contract import EdgeScope
from sbf_service.drivers.device_errors import FOREIGN_SERVICE_REMEDY, quote_start
from sbf_service.drivers.edge.edge_dialect import ATTACHMENT, CORE, CircuitPiece, EdgeReading
from sbf_service.drivers.edge.edge_templates import EdgeTemplates
from virtcloud.model.edge import NO_SERVICE, Circuit, CircuitRemnant, EdgeObserved, sort_circuits
from virtcloud.model.errors import Unsafe
from virtcloud.model.switch_state import ForeignVlan
from virtcloud.model.values import PortName, VlanId

SHUTDOWN_LINES = frozenset({"shutdown", "state suspend", "disable"})
"""Lines that prevent a port, a subinterface or a VLAN from carrying frames."""
NAMES = re.compile(r"name (?P<vlan>.+)|l2 vfi (?P<vfi>\S+)(?: .*)?")


@dataclass(frozen=True, slots=True)
class PieceGroup:
    """The pieces of circuits in one domain (a bridge domain, VLAN or instance) on the device."""

    pieces: tuple[CircuitPiece, ...]

    @property
    def domain(self) -> str:
        """The domain that the pieces share."""
        return self.pieces[0].domain

    @property
    def attachments(self) -> tuple[CircuitPiece, ...]:
        """The pieces that are VLANs on ports."""
        return tuple(piece for piece in self.pieces if piece.kind == ATTACHMENT)

    @property
    def core(self) -> tuple[CircuitPiece, ...]:
        """The pieces that join the domain to a service: all pieces except attachments."""
        return tuple(piece for piece in self.pieces if piece.kind != ATTACHMENT)

    @property
    def services(self) -> list[int]:
        """The services that the pieces name: first those of ``core``, then those of ``attachments``."""
        named = (piece.service for piece in (*self.core, *self.attachments) if piece.service is not None)
        return list(dict.fromkeys(named))

    @property
    def service(self) -> int:
        """The service of the group; ``NO_SERVICE`` if no piece names a service."""
        return next(iter(self.services), NO_SERVICE)

    @property
    def vlan(self) -> int | None:
        """The VLAN ID of the group, on platforms with device-wide VLANs; None on other platforms."""
        return next((piece.vlan for piece in self.core if piece.vlan is not None), None)


def group_pieces(reading: EdgeReading) -> list[PieceGroup]:
    """Return the pieces grouped by domain."""
    found: dict[str, list[CircuitPiece]] = {}
    for piece in reading.pieces:
        found.setdefault(piece.domain, []).append(piece)
    return [PieceGroup(tuple(pieces)) for pieces in found.values()]


def derive_circuits(templates: EdgeTemplates, reading: EdgeReading, scope: EdgeScope) -> EdgeObserved:
    """Return the circuits, remnants and foreign VLANs of an edge within ``scope``, and the circuits that are down.

    Raise Unsafe for configuration that SBF must not change.
    """
    ports = _find_managed_ports(templates, reading, scope)
    _check_vpn_ids(templates, scope)
    circuits, down, remnants, foreign = set[Circuit](), set[Circuit](), list[CircuitRemnant](), list[ForeignVlan]()
    for group in group_pieces(reading):
        if other := _find_foreign_vlan(templates, group, ports, scope):
            foreign.append(other)
        elif _is_managed(templates, group, ports, scope):
            _check_ownership(templates, group, ports, scope)
            complete, incomplete = _split_complete(templates, group, ports)
            circuits |= set(complete)
            down |= {circuit for circuit in complete if _is_down(templates, group, circuit, reading)}
            remnants += incomplete
    return EdgeObserved(
        circuits=sort_circuits(circuits),
        parts=tuple(remnants),
        foreign=_omit_own_vlans(templates, foreign, (*circuits, *remnants)),
        down=sort_circuits(down),
    )


def find_foreign_domains(templates: EdgeTemplates, reading: EdgeReading) -> dict[str, PieceGroup]:
    """Return the groups that are in no service of the edge's transports, by domain.

    The result is empty on platforms without numbered bridge domains, where pieces that SBF did not create share no
    domain with circuits.
    """
    groups = group_pieces(reading) if templates.dialect.numbered_domains else []
    return {group.domain: group for group in groups if not any(map(templates.transport, group.services))}


def _omit_own_vlans(
    templates: EdgeTemplates, foreign: Iterable[ForeignVlan], own: Iterable[Circuit | CircuitRemnant]
) -> tuple[ForeignVlan, ...]:
    """Return ``foreign``, without the VLANs in ``own`` if the platform has numbered bridge domains.

    ``own`` contains SBF's circuits and remnants. SBF may have a VLAN on a port, while the bridge domain with the VLAN's
    number is in other use. If this VLAN counted as foreign, SBF could not remove it from the port. The driver refuses
    new circuits in such a bridge domain.
    """
    vlans = {subject.vlan for subject in own} if templates.dialect.numbered_domains else set()
    return tuple(other for other in foreign if other.vlan not in vlans)


def _is_down(templates: EdgeTemplates, group: PieceGroup, circuit: Circuit, reading: EdgeReading) -> bool:
    pieces = _select_pieces(group.pieces, templates.dialect.ports.canonical(circuit.port), circuit.vlan)
    return any(piece.port in reading.down or SHUTDOWN_LINES & piece.body for piece in pieces)


def _select_pieces(pieces: Iterable[CircuitPiece], port: str | None, vlan: int | None) -> list[CircuitPiece]:
    return [
        piece
        for piece in pieces
        if piece.kind == CORE or piece.port is None or (piece.port, piece.vlan) == (port, vlan)
    ]


def _find_foreign_vlan(
    templates: EdgeTemplates, group: PieceGroup, ports: dict[str, PortName], scope: EdgeScope
) -> ForeignVlan | None:
    """Return the group's VLAN if it is managed and foreign; otherwise None.

    The VLAN is foreign in each of these cases:

    - An unmanaged port carries the VLAN.
    - The group contains a piece that SBF cannot have created.
    - The group has ``core`` pieces, and SBF did not record that it created the VLAN.
    - The platform has numbered bridge domains, and the VLAN ID is the number of a bridge domain without managed
      services.

    Return None on platforms with neither device-wide VLANs nor numbered bridge domains, and for a group in a managed
    service, which :func:`_check_ownership` checks.
    """
    vlan = int(group.domain) if group.domain.isdigit() else 0
    is_numbered = templates.has_vlan_domains
    if vlan not in scope.vlans or any(map(templates.transport, group.services)):
        return None
    if not templates.dialect.global_vlans and not is_numbered:
        return None
    attached = (piece.port for piece in group.pieces if piece.kind != CORE and piece.port is not None)
    unmanaged_ports = tuple(sorted(port for port in attached if port not in ports))
    exists_unowned = bool(group.core) and vlan not in scope.created
    is_free = not is_numbered and all(piece.by_sbf for piece in group.pieces)
    if is_free and not unmanaged_ports and not exists_unowned:
        return None
    name = next((name for piece in group.core for name in _find_names(piece)), None)
    return ForeignVlan(vlan=VlanId(vlan), name=name, ports=tuple(map(PortName, unmanaged_ports)))


def _find_names(piece: CircuitPiece) -> list[str]:
    return [found["vlan"] or found["vfi"] for line in sorted(piece.body) if (found := NAMES.fullmatch(line))]


def _check_vpn_ids(templates: EdgeTemplates, scope: EdgeScope) -> None:
    for transport in templates.transports if templates.dialect.numbered_domains else ():
        if transport.shared in scope.vlans:
            expected = f"expected the vpn_id of transport {transport.name} outside the pool, got {transport.shared}"
            reason = "on this platform, the number of a bridge domain is a VLAN ID"
            remedy = f"remove VLAN {transport.shared} from the pool, or set another vpn_id"
            raise Unsafe(f"edge {templates.edge.name}: {expected}: {reason}; {remedy}")


def _find_managed_ports(templates: EdgeTemplates, reading: EdgeReading, scope: EdgeScope) -> dict[str, PortName]:
    ports = {templates.dialect.ports.canonical(port): port for port in scope.ports}
    for canonical, port in ports.items():
        if canonical not in reading.ports:
            existing = quote_start(", ".join(reading.ports)) or "none"
            raise Unsafe(f"edge {templates.edge.name}: expected a port {port}, found {existing}: correct the topology")
    return ports


def _is_managed(templates: EdgeTemplates, group: PieceGroup, ports: dict[str, PortName], scope: EdgeScope) -> bool:
    in_service = any(templates.transport(service) for service in group.services)
    on_all_ports = templates.dialect.global_vlans
    has_managed_vlan = any(
        (on_all_ports or piece.port in ports) and piece.vlan in scope.vlans for piece in group.pieces
    )
    return in_service or has_managed_vlan or group.domain in templates.shared_domains


def _check_ownership(templates: EdgeTemplates, group: PieceGroup, ports: dict[str, PortName], scope: EdgeScope) -> None:
    for piece in group.pieces:
        if not piece.by_sbf:
            raise _build_unsafe(templates, "expected only SBF's configuration on managed VLANs", piece)
        if piece.kind == ATTACHMENT and (piece.port not in ports or piece.vlan not in scope.vlans):
            raise _build_unsafe(templates, "expected only managed VLANs of managed ports in a managed service", piece)
        if piece.service is not None and templates.transport(piece.service) is None:
            raise _build_unsafe(templates, "expected only services of the edge's transports on managed VLANs", piece)
        if templates.dialect.global_vlans and piece.vlan is not None and piece.vlan not in scope.vlans:
            raise _build_unsafe(templates, "expected only managed VLANs in a managed service", piece)


def _build_unsafe(templates: EdgeTemplates, expected: str, piece: CircuitPiece) -> Unsafe:
    found = quote_start(str(piece))
    return Unsafe(f"edge {templates.edge.name}: {expected}, found {found}: {FOREIGN_SERVICE_REMEDY}")


def _split_complete(
    templates: EdgeTemplates, group: PieceGroup, ports: dict[str, PortName]
) -> tuple[list[Circuit], list[CircuitRemnant]]:
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
    """Return the remnant of an incomplete circuit.

    A remnant needs a service, or a port with a VLAN. If the circuit has neither, the remnant names the first service of
    the first transport.
    """
    transport = templates.transport(group.service) or next(iter(templates.transports), None)
    if transport is None:
        raise _build_unsafe(templates, "expected no circuit on an edge without transports", piece or group.pieces[0])
    vlan = group.vlan if piece is None or piece.vlan is None else piece.vlan
    port = None if piece is None or piece.port is None else ports[piece.port]
    has_place = group.service != NO_SERVICE or (port is not None and vlan is not None)
    service = group.service if has_place else transport.service_ids[0]
    vlan_id = None if vlan is None else VlanId(vlan)
    return CircuitRemnant(transport=transport.name, service=service, port=port, vlan=vlan_id)


def _is_complete(templates: EdgeTemplates, group: PieceGroup, attachment: CircuitPiece, circuit: Circuit) -> bool:
    pieces = [*_select_pieces(group.core, attachment.port, attachment.vlan), attachment]
    kinds = Counter(piece.kind for piece in pieces)
    exists_once = kinds == Counter(templates.kinds(circuit))
    return exists_once and all(templates.matches_recipe(piece, circuit) for piece in pieces)
