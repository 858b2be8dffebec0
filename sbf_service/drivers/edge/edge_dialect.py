"""The data of a provider edge's dialect, readings of an edge, and the templates of a dialect for one edge. Pure.

A circuit consists of *pieces*, of a few kinds on each platform: an attachment (the VLAN on the port), and the pieces
that join its bridge domain to the service. For each kind of piece, a dialect defines the lines that create the piece,
the lines that remove it, and the lines that the configuration then shows. ``observed_circuits.py`` assembles circuits
from pieces, for all platforms.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

from sbf_service.drivers.contract import Backbone, EdgeCapabilities
from sbf_service.drivers.switch.dialect import Commands, PortNames
from virtcloud.model.edge import Circuit
from virtcloud.model.element import Edge
from virtcloud.model.errors import Refused
from virtcloud.model.transport import Transport, TransportKind
from virtcloud.model.vlans import VlanSet

ATTACHMENT = "attachment"
"""The kind of piece that every recipe has: a VLAN on a port."""
CORE = "core"
"""The kind of piece on the edge's core port: the VLAN of a service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitPiece:
    """A piece of a circuit, as read from the edge.

    ``domain`` (a bridge domain, VLAN or instance) joins it to other pieces. ``service`` is the service that the piece
    names, by its number or by SBF's name. ``body`` contains the piece's configuration lines. ``ours`` is False for a
    piece that SBF cannot have created.
    """

    kind: str
    domain: str
    service: int | None = None
    port: str | None = None
    vlan: int | None = None
    body: frozenset[str] = frozenset()
    ours: bool = True

    def __str__(self) -> str:
        """Return the piece for a message, with its lines."""
        where = " ".join(str(one) for one in (self.port, self.vlan) if one is not None)
        return f"{self.kind} {where or self.domain}: {', '.join(sorted(self.body)) or 'empty'}"


@dataclass(frozen=True, slots=True)
class EdgeReading:
    """The configuration read from an edge: pieces, and for each port whether it accepts circuits in its present state.

    ``known``: values of the device for templates, such as the number of its BGP process. ``empty``: the ports whose
    list of allowed VLANs is empty. ``uses``: descriptions of the uses of ports that accept no circuits in their present
    state.
    """

    pieces: tuple[CircuitPiece, ...]
    ports: Mapping[str, bool]
    known: Mapping[str, str] = field(default_factory=dict)
    empty: frozenset[str] = frozenset()
    down: frozenset[str] = frozenset()
    """The ports that are shut down."""
    uses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CircuitRecipe:
    """The lines that create a circuit: for each kind of piece the lines, in order, the attachment last.

    ``shown`` contains the lines that the configuration then has for a piece. The piece has no other lines of the same
    sorts (a sort is the first word of a line).
    """

    make: Mapping[str, Commands]
    shown: Mapping[str, Commands]


CircuitRecipes = Mapping[tuple[TransportKind, bool], CircuitRecipe]
"""The recipes of a platform, by the kind of transport and by whether all clusters of the transport share one
service.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeDialect:
    """The commands and answers of a platform.

    ``see`` parses the answers to ``show``, in their order, for the given VLAN IDs; it raises ValueError. ``domain``
    returns the name of a circuit's domain, or raises Refused. The placeholders of templates are ``{port}``, ``{vlan}``,
    ``{service}``, ``{name}``, ``{domain}``, ``{core}``, ``{rd}``, ``{rt}`` and ``{bgp}``; a line with ``{peer}`` is
    repeated for each other edge. ``unmake`` lists the kinds of pieces in the order of their removal.
    """

    title: str
    netmiko: str
    recipes: CircuitRecipes
    show: Commands
    see: Callable[[Sequence[str], VlanSet], EdgeReading]
    instead: Mapping[str, Commands] = field(default_factory=dict)
    """Commands to try when a command of ``show`` is refused or has an empty answer; ``see`` also parses their
    answers.
    """
    domain: Callable[[Circuit, Transport], str]
    unmake: Mapping[str, Commands]
    errors: re.Pattern[str]
    save: Commands = ()
    """Empty where activated configuration is persistent."""
    saved: re.Pattern[str] = re.compile(r"(?!)")
    """The output of the last command of ``save`` after it wrote the startup configuration; any other output is a
    failure.
    """
    prepare: Commands = ()
    """Set an empty list of allowed VLANs on a port that does not accept circuits. The list is read back before other
    changes.
    """
    trunk: Commands = ()
    """Turn a port with an empty list into a trunk."""
    configure: Commands = ("configure terminal",)
    leave: Commands = ("end",)
    give_up: Commands = ()
    """Sent instead of ``leave`` after a refusal, on platforms that can discard a candidate. Such a platform is
    atomic.
    """
    global_vlans: bool = False
    """Whether a VLAN is the same on all ports, so that SBF owns a managed VLAN ID on every port."""
    numbered_domains: bool = False
    """Whether the number of a bridge domain is a VLAN ID, so that the number of a shared service must be in no pool."""
    busy: re.Pattern[str] | None = None
    """The pattern of temporary refusals: another user is configuring the device."""
    reserved: VlanSet = field(default_factory=lambda: VlanSet([1]))
    may_fail: frozenset[str] = frozenset()
    answers: Mapping[str, str] = field(default_factory=dict)
    ports: PortNames = field(default_factory=lambda: PortNames({}))
    at_once: int = 1
    """Each line waits for the answer to the previous line: after a refusal, a line could take effect in the wrong
    mode.
    """
    privileged: bool = False

    @property
    def capabilities(self) -> EdgeCapabilities:
        """The capabilities of the platform."""
        return EdgeCapabilities(frozenset(kind for kind, _ in self.recipes), self.reserved, atomic=bool(self.give_up))

    def sorts(self, kind: str) -> frozenset[str]:
        """Return the sorts of lines that recipes show for a kind of piece."""
        shown = (line for recipe in self.recipes.values() for line in recipe.shown.get(kind, ()))
        return frozenset(line.split()[0] for line in shown)


def format_service_name(service: int) -> str:
    """Return the name of a service on devices."""
    return f"vc-{service}"


def parse_service_name(name: str | None) -> int | None:
    """Return the service of a name that SBF creates; None for any other name."""
    found = re.fullmatch(r"vc-([1-9]\d{0,9})", name or "")
    return int(found[1]) if found else None


SIXTEEN_BITS = 2**16


@dataclass(frozen=True, slots=True)
class EdgeTemplates:
    """The templates of a dialect, filled in for one edge."""

    edge: Edge
    dialect: EdgeDialect
    backbone: Backbone
    known: Mapping[str, str] = field(default_factory=dict)

    def transport(self, service: int) -> Transport | None:
        """Return the transport that contains a service, among the transports that this platform can create."""
        return next((one for one in self.transports if service in one.services or service == one.shared), None)

    @property
    def transports(self) -> tuple[Transport, ...]:
        """The transports that this platform can create."""
        return tuple(
            one for one in self.backbone.transports if _recipe_key(one) in self.dialect.recipes and one.on_edges
        )

    def kinds(self, circuit: Circuit, *, joined: bool = False) -> tuple[str, ...]:
        """Return the kinds of pieces of a circuit, in the order of their creation.

        With ``joined``, the service exists, and only the pieces on the circuit's port are missing.
        """
        make = self._recipe(circuit).make
        return tuple(kind for kind, lines in make.items() if not joined or any("{port}" in line for line in lines))

    def mark_core_pieces(self, reading: EdgeReading) -> EdgeReading:
        """Return the reading with the attachments on the core port converted to VLANs of services.

        On a platform with device-wide VLANs, the lists of unmanaged ports are left out: their owners choose them.
        """
        canonical = self.dialect.ports.canonical
        ours = {canonical(port) for port in self.edge.ports}
        core = canonical(self.edge.core_port) if self.edge.core_port else None
        pieces = (_convert_core_piece(piece) if piece.port == core else piece for piece in reading.pieces)
        return replace(reading, pieces=tuple(one for one in pieces if not self._is_unmanaged(one, ours)))

    def _is_unmanaged(self, piece: CircuitPiece, ours: set[str]) -> bool:
        listed = piece.kind == ATTACHMENT and piece.ours and self.dialect.global_vlans
        return listed and piece.port not in ours

    def domain(self, circuit: Circuit) -> str:
        """Return the bridge domain, VLAN or instance of a circuit."""
        return self.dialect.domain(circuit, self._find_known_transport(circuit))

    def render_creation(self, kind: str, circuit: Circuit) -> list[str]:
        """Return the lines that create a piece."""
        return list(self._fill(self._recipe(circuit).make[kind], circuit))

    def matches_recipe(self, piece: CircuitPiece, circuit: Circuit) -> bool:
        """Return whether a piece has the lines that its recipe shows, and no other lines of the same sorts."""
        sorts = self.dialect.sorts(piece.kind)
        shown = {line for line in piece.body if line.split()[0] in sorts}
        return shown == set(self._fill(self._recipe(circuit).shown.get(piece.kind, ()), circuit))

    def render_removal(self, piece: CircuitPiece, service: int) -> list[str]:
        """Return the lines that remove a piece."""
        number = piece.service or service
        known: dict[str, object] = {"vlan": piece.vlan, "domain": piece.domain}
        known |= {"service": number, "name": format_service_name(number), "port": self._spell_port(piece.port or "")}
        known["core"] = known["port"]
        return [line.format(**known, **self._device_values(line)) for line in self.dialect.unmake[piece.kind]]

    def _fill(self, template: Commands, circuit: Circuit) -> Iterator[str]:
        transport = self._find_known_transport(circuit)
        known: dict[str, object] = {
            "vlan": circuit.vlan,
            "service": circuit.service,
            "name": format_service_name(circuit.service),
        }
        known["domain"] = self.dialect.domain(circuit, transport)
        known |= {"port": self._spell_port(circuit.port)}
        for line in template:
            further: dict[str, object] = {**self._device_values(line)}
            if "{rd}" in line:
                further["rd"] = f"{self._loopback()}:{circuit.vlan}"
            if "{rt}" in line:
                further["rt"] = self._route_target(circuit, transport)
            if "{core}" in line:
                further["core"] = self._core()
            peers = self.backbone.peers.get(transport.name, ()) if "{peer}" in line else ("",)
            yield from (line.format(**known, **further, peer=peer) for peer in peers)

    def _recipe(self, circuit: Circuit) -> CircuitRecipe:
        return self.dialect.recipes[_recipe_key(self._find_known_transport(circuit))]

    def _find_known_transport(self, circuit: Circuit) -> Transport:
        transport = self.transport(circuit.service)
        if transport is None or transport.name != circuit.transport:
            makes = ", ".join(f"{kind}{' (shared)' if shared else ''}" for kind, shared in self.dialect.recipes)
            what = f"wanted service {circuit.service} of transport {circuit.transport}"
            raise Refused(f"edge {self.edge.name}: {what}, which {self.dialect.title} cannot make: it makes {makes}")
        return transport

    def _device_values(self, line: str) -> Mapping[str, str]:
        """Return the values that were read from the device.

        Raise Refused when a line needs a value that was not found.
        """
        if "{bgp}" in line and "bgp" not in self.known:
            raise Refused(f"edge {self.edge.name}: expected it to speak BGP, found no process: set it up first")
        return self.known

    def _loopback(self) -> IPv4Address:
        """Return the IPv4 loopback, which makes route distinguishers unique for each edge (RFC 4364, type 1)."""
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

        Raise Refused when neither the AS number nor the service fits 16 bits (RFC 4360, 5668).
        """
        if transport.asn is not None and transport.asn >= SIXTEEN_BITS <= circuit.service:
            limit = f"below {SIXTEEN_BITS} with an AS number that is not"
            wanted = f"wanted service {circuit.service} of AS {transport.asn}"
            raise Refused(f"edge {self.edge.name}: {wanted}: a route target accepts services {limit}")
        return f"{transport.asn}:{circuit.service}"


def _recipe_key(transport: Transport) -> tuple[TransportKind, bool]:
    return transport.kind, transport.shared is not None


def _convert_core_piece(piece: CircuitPiece) -> CircuitPiece:
    """Return an attachment on the core port as a piece of kind :data:`CORE`: the VLAN of a service."""
    return replace(piece, kind=CORE, service=piece.vlan, vlan=None) if piece.vlan else piece
