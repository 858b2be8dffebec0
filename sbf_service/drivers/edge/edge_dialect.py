"""The data of a provider edge's dialect, readings of an edge, and the templates of a dialect for one edge. Pure.

A circuit consists of *pieces*: an attachment (the VLAN on the port), and the pieces that join the bridge domain of the
VLAN to the service. Each platform has a few kinds of pieces. For each kind, a dialect defines the lines that create a
piece, the lines that remove a piece, and the lines that the configuration of a piece contains.
``observed_circuits.py`` assembles circuits from pieces, for all platforms.
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
"""The kind of a piece that is a VLAN on a port. Every recipe has an attachment."""
CORE = "core"
"""The kind of a piece that is the VLAN of a service on the edge's core port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitPiece:
    """A piece of a circuit, as read from the edge.

    ``domain`` is the bridge domain, VLAN or instance that joins the piece to other pieces. ``service`` is the number of
    the service that the piece names. ``body`` contains the piece's configuration lines. ``by_sbf`` is False for a piece
    that SBF cannot have created.
    """

    kind: str
    domain: str
    service: int | None = None
    port: str | None = None
    vlan: int | None = None
    body: frozenset[str] = frozenset()
    by_sbf: bool = True

    def __str__(self) -> str:
        """Return the piece with its lines, for a message."""
        place = " ".join(str(part) for part in (self.port, self.vlan) if part is not None)
        return f"{self.kind} {place or self.domain}: {', '.join(sorted(self.body)) or 'empty'}"


@dataclass(frozen=True, slots=True)
class EdgeReading:
    """The configuration read from an edge, as pieces and states of ports.

    ``ports``: whether each port accepts circuits in its present state. ``known``: values that were read from the device
    and are inserted into templates, such as the number of the BGP process. ``empty``: the ports whose list of allowed
    VLANs is empty. ``uses``: the descriptions of ports that serve something other than SBF's clusters.
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
    """The lines that create a circuit, by kind of piece, in the order of creation.

    ``shown`` contains the lines in the configuration of a complete piece. A complete piece has no other lines of the
    same sorts. The sort of a line is its first word.
    """

    make: Mapping[str, Commands]
    shown: Mapping[str, Commands]


CircuitRecipes = Mapping[tuple[TransportKind, bool], CircuitRecipe]
"""The recipes of a platform. The key is the kind of a transport, and whether all clusters of the transport share one
service.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeDialect:
    """The commands and answers of a platform.

    ``see`` parses the answers to ``show``, in their order, for the given VLAN IDs. ``see`` raises ValueError for an
    unknown answer. ``domain`` returns the name of a circuit's domain, or raises Refused. The placeholders of templates
    are ``{port}``, ``{vlan}``, ``{service}``, ``{name}``, ``{domain}``, ``{core}``, ``{rd}``, ``{rt}``, ``{bgp}`` and
    ``{peer}``. A line with ``{peer}`` is repeated for each of the other edges. ``unmake`` contains the lines that
    remove each kind of piece, in the order of removal.
    """

    title: str
    netmiko: str
    recipes: CircuitRecipes
    show: Commands
    see: Callable[[Sequence[str], VlanSet], EdgeReading]
    instead: Mapping[str, Commands] = field(default_factory=dict)
    """Alternatives to each command of ``show``, tried if the command is refused or its answer is empty. ``see`` also
    parses the answers to the alternatives.
    """
    domain: Callable[[Circuit, Transport], str]
    unmake: Mapping[str, Commands]
    errors: re.Pattern[str]
    save: Commands = ()
    """The commands that write the startup configuration. Empty if activated configuration survives a restart."""
    saved: re.Pattern[str] = re.compile(r"(?!)")
    """The output that the last command of ``save`` prints after a successful save. Any other output is a failure."""
    prepare: Commands = ()
    """Commands that set an empty list of allowed VLANs on a port that does not accept circuits yet. The list is read
    back before any other change.
    """
    trunk: Commands = ()
    """Commands that turn a port with an empty list into a trunk."""
    configure: Commands = ("configure terminal",)
    leave: Commands = ("end",)
    give_up: Commands = ()
    """Commands to send instead of ``leave`` after a refusal, on platforms that can discard a candidate configuration.

    A platform with ``give_up`` is atomic.
    """
    global_vlans: bool = False
    """Whether a VLAN ID denotes the same VLAN on all ports. SBF then owns a managed VLAN ID on every port."""
    numbered_domains: bool = False
    """Whether the number of a bridge domain is a VLAN ID. The number of a shared service must then be in no pool."""
    busy: re.Pattern[str] | None = None
    """The pattern of the refusal that a device prints if another user is configuring the device."""
    reserved: VlanSet = field(default_factory=lambda: VlanSet([1]))
    may_fail: frozenset[str] = frozenset()
    answers: Mapping[str, str] = field(default_factory=dict)
    ports: PortNames = field(default_factory=lambda: PortNames({}))
    at_once: int = 1
    """Always 1: each line is sent after the answer to the previous line. Otherwise, a line that was sent before a
    refusal arrived could take effect in the wrong mode.
    """
    privileged: bool = False

    @property
    def capabilities(self) -> EdgeCapabilities:
        """The capabilities of the platform."""
        return EdgeCapabilities(frozenset(kind for kind, _ in self.recipes), self.reserved, atomic=bool(self.give_up))

    def sorts(self, kind: str) -> frozenset[str]:
        """Return the sorts of the lines that recipes define for a kind of piece."""
        shown = (line for recipe in self.recipes.values() for line in recipe.shown.get(kind, ()))
        return frozenset(line.split()[0] for line in shown)


def format_service_name(service: int) -> str:
    """Return the name of a service on devices."""
    return f"vc-{service}"


def parse_service_name(name: str | None) -> int | None:
    """Return the number of the service with this name; None for a name that SBF does not create."""
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
        """Return the transport that contains a service.

        Return None if the platform can create no transport with this service.
        """
        return next((item for item in self.transports if service in item.services or service == item.shared), None)

    @property
    def transports(self) -> tuple[Transport, ...]:
        """The transports that this platform can create."""
        recipes = self.dialect.recipes
        return tuple(item for item in self.backbone.transports if _recipe_key(item) in recipes and item.on_edges)

    def kinds(self, circuit: Circuit, *, joined: bool = False) -> tuple[str, ...]:
        """Return the kinds of pieces of a circuit, in the order of their creation.

        If ``joined`` is true, the service already exists on the edge. Return then only the kinds of pieces on the
        circuit's port.
        """
        make = self._recipe(circuit).make
        return tuple(kind for kind, lines in make.items() if not joined or any("{port}" in line for line in lines))

    def mark_core_pieces(self, reading: EdgeReading) -> EdgeReading:
        """Return the reading, with attachments on the core port converted to pieces of kind :data:`CORE`.

        On a platform with device-wide VLANs, omit the lists of allowed VLANs of unmanaged ports.
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
        """Return the lines that create a piece."""
        return list(self._fill(self._recipe(circuit).make[kind], circuit))

    def matches_recipe(self, piece: CircuitPiece, circuit: Circuit) -> bool:
        """Return whether a piece has all lines of its recipe, and no other lines of the same sorts."""
        sorts = self.dialect.sorts(piece.kind)
        shown = {line for line in piece.body if line.split()[0] in sorts}
        return shown == set(self._fill(self._recipe(circuit).shown.get(piece.kind, ()), circuit))

    def render_removal(self, piece: CircuitPiece, service: int) -> list[str]:
        """Return the lines that remove a piece."""
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
        """Return the values that were read from the device.

        Raise Refused if ``line`` needs a value that was not read.
        """
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
    """Return an attachment on the core port as a piece of kind :data:`CORE`: the VLAN of a service."""
    return replace(piece, kind=CORE, service=piece.vlan, vlan=None) if piece.vlan else piece
