"""Filling in the templates of an edge's dialect. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

from sbf_service.drivers.dialects.dialect import Lines
from sbf_service.drivers.edge import Backbone
from sbf_service.drivers.edges.dialect import ATTACHMENT, CORE, EdgeDialect, Piece, Recipe, Seen, name_of
from virtcloud.model.edge import Circuit
from virtcloud.model.element import Edge
from virtcloud.model.errors import Refused
from virtcloud.model.transport import Transport, TransportKind

SIXTEEN_BITS = 2**16


@dataclass(frozen=True, slots=True)
class Filling:
    """Fills in templates for one edge."""

    edge: Edge
    dialect: EdgeDialect
    backbone: Backbone
    known: Mapping[str, str] = field(default_factory=dict)

    def transport(self, service: int) -> Transport | None:
        """Find the transport that a service belongs to, among those that this platform makes."""
        return next((one for one in self.makes if service in one.services or service == one.shared), None)

    @property
    def makes(self) -> tuple[Transport, ...]:
        """Give the transports that this platform makes."""
        return tuple(one for one in self.backbone.transports if _sort(one) in self.dialect.recipes and one.on_edges)

    def kinds(self, circuit: Circuit, *, joined: bool = False) -> tuple[str, ...]:
        """Give the kinds of pieces that a circuit is made of, in the order in which they are made.

        ``joined`` says that its service is there: then only what is of its port.
        """
        make = self._recipe(circuit).make
        return tuple(kind for kind, lines in make.items() if not joined or any("{port}" in line for line in lines))

    def placed(self, seen: Seen) -> Seen:
        """Tell the service VLANs on the core port from attachments.

        Where VLANs are the same on all ports, lists of others' ports are left out: whoever made them meant them.
        """
        canonical = self.dialect.ports.canonical
        ours = {canonical(port) for port in self.edge.ports}
        core = canonical(self.edge.core_port) if self.edge.core_port else None
        told = (_cored(piece) if piece.port == core else piece for piece in seen.pieces)
        return replace(seen, pieces=tuple(one for one in told if not self._is_anothers(one, ours)))

    def _is_anothers(self, piece: Piece, ours: set[str]) -> bool:
        listed = piece.kind == ATTACHMENT and piece.ours and self.dialect.global_vlans
        return listed and piece.port not in ours

    def domain(self, circuit: Circuit) -> str:
        """Give the bridge domain, VLAN or instance of a circuit."""
        return self.dialect.domain(circuit, self._known(circuit))

    def made(self, kind: str, circuit: Circuit) -> list[str]:
        """Give the lines that make a piece."""
        return list(self._lines(self._recipe(circuit).make[kind], circuit))

    def is_as_shown(self, piece: Piece, circuit: Circuit) -> bool:
        """Say whether a piece has the lines that matter, and no other lines of their sorts."""
        sorts = self.dialect.sorts(piece.kind)
        has = {line for line in piece.body if line.split()[0] in sorts}
        return has == set(self._lines(self._recipe(circuit).shown.get(piece.kind, ()), circuit))

    def unmade(self, piece: Piece, service: int) -> list[str]:
        """Give the lines that take away a piece that was seen."""
        number = piece.service or service
        known: dict[str, object] = {"vlan": piece.vlan, "domain": piece.domain}
        known |= {"service": number, "name": name_of(number), "port": self._spelt(piece.port or "")}
        known["core"] = known["port"]
        return [line.format(**known, **self._of_the_device(line)) for line in self.dialect.unmake[piece.kind]]

    def _lines(self, template: Lines, circuit: Circuit) -> Iterator[str]:
        transport = self._known(circuit)
        known: dict[str, object] = {"vlan": circuit.vlan, "service": circuit.service, "name": name_of(circuit.service)}
        known["domain"] = self.dialect.domain(circuit, transport)
        known |= {"port": self._spelt(circuit.port)}
        for line in template:
            further: dict[str, object] = {**self._of_the_device(line)}
            if "{rd}" in line:
                further["rd"] = f"{self._loopback()}:{circuit.vlan}"
            if "{rt}" in line:
                further["rt"] = self._target(circuit, transport)
            if "{core}" in line:
                further["core"] = self._core()
            peers = self.backbone.peers.get(transport.name, ()) if "{peer}" in line else ("",)
            yield from (line.format(**known, **further, peer=peer) for peer in peers)

    def _recipe(self, circuit: Circuit) -> Recipe:
        return self.dialect.recipes[_sort(self._known(circuit))]

    def _known(self, circuit: Circuit) -> Transport:
        transport = self.transport(circuit.service)
        if transport is None or transport.name != circuit.transport:
            makes = ", ".join(f"{kind}{' (shared)' if shared else ''}" for kind, shared in self.dialect.recipes)
            what = f"wanted service {circuit.service} of transport {circuit.transport}"
            raise Refused(f"edge {self.edge.name}: {what}, which {self.dialect.title} cannot make: it makes {makes}")
        return transport

    def _of_the_device(self, line: str) -> Mapping[str, str]:
        """Give what the device was seen to have, for a line that needs it."""
        if "{bgp}" in line and "bgp" not in self.known:
            raise Refused(f"edge {self.edge.name}: expected it to speak BGP, found no process: set it up first")
        return self.known

    def _loopback(self) -> IPv4Address:
        """Give what makes route distinguishers different from every other edge's (RFC 4364, type 1: IPv4)."""
        if not isinstance(self.edge.loopback, IPv4Address):
            got = self.edge.loopback or "none"
            raise Refused(f"edge {self.edge.name}: expected an IPv4 loopback in the topology, got {got}")
        return self.edge.loopback

    def _core(self) -> str:
        if self.edge.core_port is None:
            raise Refused(f"edge {self.edge.name}: expected a core_port in the topology, found none")
        return self._spelt(self.edge.core_port)

    def _spelt(self, port: str) -> str:
        return self.dialect.ports.spelt(self.dialect.ports.canonical(port))

    def _target(self, circuit: Circuit, transport: Transport) -> str:
        """Give the route target: one half of it has 16 bits (RFC 4360, 5668)."""
        if transport.asn is not None and transport.asn >= SIXTEEN_BITS <= circuit.service:
            limit = f"below {SIXTEEN_BITS} with an AS number that is not"
            wanted = f"wanted service {circuit.service} of AS {transport.asn}"
            raise Refused(f"edge {self.edge.name}: {wanted}: a route target takes numbers {limit}")
        return f"{transport.asn}:{circuit.service}"


def _sort(transport: Transport) -> tuple[TransportKind, bool]:
    return transport.kind, transport.shared is not None


def _cored(piece: Piece) -> Piece:
    """Make an attachment at the core port into what it is there: the service of its VLAN."""
    return replace(piece, kind=CORE, service=piece.vlan, vlan=None) if piece.vlan else piece
