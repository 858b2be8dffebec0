"""The lines that create and remove a circuit's pieces: a dialect's templates, filled in for one provider edge. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

from sbf_service.drivers.contract import Backbone
from sbf_service.drivers.edge.edge_dialect import (
    ATTACHMENT,
    CORE,
    CircuitPiece,
    CircuitRecipe,
    EdgeDialect,
    EdgeReading,
    format_service_name,
)
from sbf_service.drivers.switch.dialect import Commands
from virtcloud.model.edge import Circuit
from virtcloud.model.element import Edge
from virtcloud.model.errors import Refused
from virtcloud.model.transport import Transport, TransportKind

SIXTEEN_BITS = 2**16


@dataclass(frozen=True, slots=True)
class EdgeTemplates:
    """The templates of a dialect, filled in for one edge.

    The methods that take a circuit raise Refused if the platform cannot create the circuit's service.
    """

    edge: Edge
    dialect: EdgeDialect
    backbone: Backbone
    known: Mapping[str, str] = field(default_factory=dict)

    def transport(self, service: int) -> Transport | None:
        """Return the transport in :attr:`transports` whose service IDs include ``service``, or None."""
        return next((item for item in self.transports if service in item.services or service == item.shared), None)

    @property
    def transports(self) -> tuple[Transport, ...]:
        """The transports that this platform can create."""
        recipes = self.dialect.recipes
        return tuple(item for item in self.backbone.transports if _recipe_key(item) in recipes and item.on_edges)

    @property
    def has_vlan_domains(self) -> bool:
        """Whether SBF numbers bridge domains by VLAN ID. All ports of the edge share one set of bridge domains."""
        return self.dialect.numbered_domains and any(item.shared is None for item in self.transports)

    @property
    def shared_domains(self) -> frozenset[str]:
        """The numbers of the bridge domains of shared services; empty on platforms without numbered domains."""
        shared = (item.shared for item in self.transports if self.dialect.numbered_domains)
        return frozenset(str(number) for number in shared if number is not None)

    def kinds(self, circuit: Circuit, *, joined: bool = False) -> tuple[str, ...]:
        """Return the kinds of pieces of a circuit, in the order of their creation.

        If the service exists already (``joined``), return only the kinds of pieces on the circuit's port.
        """
        make = self._recipe(circuit).make
        return tuple(kind for kind, lines in make.items() if not joined or any("{port}" in line for line in lines))

    def mark_core_pieces(self, reading: EdgeReading) -> EdgeReading:
        """Return a copy of ``reading`` in which each VLAN on the core port is a piece of kind :data:`CORE`.

        On a platform with device-wide VLANs, omit tagged VLANs of ports that are neither managed nor the core port.
        """
        canonical = self.dialect.ports.canonical
        managed = {canonical(port) for port in self.edge.ports}
        core = canonical(self.edge.core_port) if self.edge.core_port else None
        pieces = (_convert_core_piece(piece) if piece.port == core else piece for piece in reading.pieces)
        return replace(reading, pieces=tuple(piece for piece in pieces if not self._is_unmanaged(piece, managed)))

    def _is_unmanaged(self, piece: CircuitPiece, managed: set[str]) -> bool:
        is_in_list = piece.kind == ATTACHMENT and piece.by_sbf and self.dialect.global_vlans
        return is_in_list and piece.port not in managed

    def domain(self, circuit: Circuit) -> str:
        """Return the bridge domain, VLAN or instance of a circuit."""
        return self.dialect.domain(circuit, self._find_known_transport(circuit))

    def render_creation(self, kind: str, circuit: Circuit) -> list[str]:
        """Return the lines that create a piece.

        Raise Refused if the edge lacks a BGP process, IPv4 loopback or core port that it needs, or if AS number and
        service ID are too high for a route target.
        """
        return list(self._fill(self._recipe(circuit).make[kind], circuit))

    def matches_recipe(self, piece: CircuitPiece, circuit: Circuit) -> bool:
        """Return whether a piece has all lines of its recipe, and no other lines that a recipe could define.

        Ignore a line of the piece if no recipe for this kind of piece has a line with the same first word.
        """
        first_words = self.dialect.first_words(piece.kind)
        shown = {line for line in piece.body if line.split()[0] in first_words}
        return shown == set(self._fill(self._recipe(circuit).shown.get(piece.kind, ()), circuit))

    def render_removal(self, piece: CircuitPiece, service: int) -> list[str]:
        """Return the lines that remove a piece. If the piece names no service, use ``service``.

        Raise Refused if the edge lacks a BGP process that it needs.
        """
        number = piece.service or service
        values: dict[str, object] = {"vlan": piece.vlan, "domain": piece.domain}
        values |= {"service": number, "name": format_service_name(number), "port": self._spell_port(piece.port or "")}
        values["core"] = values["port"]
        return [line.format(**values, **self._device_values(line)) for line in self.dialect.unmake[piece.kind]]

    def _fill(self, template: Commands, circuit: Circuit) -> Iterator[str]:
        transport = self._find_known_transport(circuit)
        values: dict[str, object] = {
            "vlan": circuit.vlan,
            "service": circuit.service,
            "name": format_service_name(circuit.service),
            "domain": self.dialect.domain(circuit, transport),
            "port": self._spell_port(circuit.port),
        }
        for line in template:
            further: dict[str, object] = {**self._device_values(line)}
            if "{rd}" in line:
                further["rd"] = f"{self._loopback()}:{circuit.vlan}"
            if "{rt}" in line:
                further["rt"] = self._route_target(circuit, transport)
            if "{core}" in line:
                further["core"] = self._core()
            peers = self.backbone.peers.get(transport.name, ()) if "{peer}" in line else ("",)
            yield from (line.format(**values, **further, peer=peer) for peer in peers)

    def _recipe(self, circuit: Circuit) -> CircuitRecipe:
        return self.dialect.recipes[_recipe_key(self._find_known_transport(circuit))]

    def _find_known_transport(self, circuit: Circuit) -> Transport:
        transport = self.transport(circuit.service)
        if transport is None or transport.name != circuit.transport:
            supported = ", ".join(f"{kind}{' (shared)' if shared else ''}" for kind, shared in self.dialect.recipes)
            wanted = f"wanted service {circuit.service} of transport {circuit.transport}"
            platform = f"{self.dialect.title} cannot create (supported: {supported})"
            raise Refused(f"edge {self.edge.name}: {wanted}, which {platform}")
        return transport

    def _device_values(self, line: str) -> Mapping[str, str]:
        if "{bgp}" in line and "bgp" not in self.known:
            raise Refused(f"edge {self.edge.name}: expected a BGP process, found none: configure BGP first")
        return self.known

    def _loopback(self) -> IPv4Address:
        """Return the edge's IPv4 loopback for route distinguishers (RFC 4364, type 1).

        Raise Refused if the edge has no IPv4 loopback.
        """
        if not isinstance(self.edge.loopback, IPv4Address):
            got = self.edge.loopback or "none"
            raise Refused(f"edge {self.edge.name}: expected an IPv4 loopback in the topology, got {got}")
        return self.edge.loopback

    def _core(self) -> str:
        if self.edge.core_port is None:
            raise Refused(f"edge {self.edge.name}: expected a core_port in the topology, found none")
        return self._spell_port(self.edge.core_port)

    def _spell_port(self, port: str) -> str:
        return self.dialect.ports.spelt(self.dialect.ports.canonical(port))

    def _route_target(self, circuit: Circuit, transport: Transport) -> str:
        """Return the route target.

        Raise Refused if both the AS number and the service ID need more than 16 bits (RFC 4360, 5668).
        """
        if transport.asn is not None and transport.asn >= SIXTEEN_BITS <= circuit.service:
            wanted = f"wanted service {circuit.service} of AS {transport.asn}"
            limit = f"expected the service or the AS number below {SIXTEEN_BITS}, because both are in a route target"
            raise Refused(f"edge {self.edge.name}: {wanted}: {limit}")
        return f"{transport.asn}:{circuit.service}"


def _recipe_key(transport: Transport) -> tuple[TransportKind, bool]:
    return transport.kind, transport.shared is not None


def _convert_core_piece(piece: CircuitPiece) -> CircuitPiece:
    return replace(piece, kind=CORE, service=piece.vlan, vlan=None) if piece.vlan else piece
