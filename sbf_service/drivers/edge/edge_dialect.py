"""What the dialect of a provider edge is: a vendor's words as data, and what was seen of a device in those words.

A circuit is made of *pieces*, a few kinds on each platform: an attachment (the VLAN on the port) and what joins its
bridge domain to the service. A dialect says for each kind the lines that make it, that take it away, and that the
configuration must then show. Whatever the device is, circuits are put together from pieces in one place.

Filling in the templates of an edge's dialect. Pure.
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
"""The kind of piece of the edge's core port: a service VLAN on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitPiece:
    """A piece of a circuit as it was read. ``domain`` is what joins it to others: bridge domain, VLAN or instance.

    ``service`` is the number that it says itself, or that our name on it says. ``body`` are its lines. ``ours`` is
    false for what cannot have been made by us.
    """

    kind: str
    domain: str
    service: int | None = None
    port: str | None = None
    vlan: int | None = None
    body: frozenset[str] = frozenset()
    ours: bool = True

    def __str__(self) -> str:
        """Say it in the device's words, for messages."""
        where = " ".join(str(one) for one in (self.port, self.vlan) if one is not None)
        return f"{self.kind} {where or self.domain}: {', '.join(sorted(self.body)) or 'empty'}"


@dataclass(frozen=True, slots=True)
class EdgeReading:
    """A whole edge as it was read: pieces, and every port with whether it takes circuits as it is.

    ``known`` is what templates need of the device, such as the number of its BGP process. ``empty`` are the ports whose
    list of allowed VLANs is empty, ``uses`` what others use ports for that take no circuits as they are, in words.
    """

    pieces: tuple[CircuitPiece, ...]
    ports: Mapping[str, bool]
    known: Mapping[str, str] = field(default_factory=dict)
    empty: frozenset[str] = frozenset()
    down: frozenset[str] = frozenset()
    """The ports that were shut down."""
    uses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CircuitRecipe:
    """How a circuit is made: for each kind of piece the lines that make it, in order, the attachment last.

    ``shown`` are the lines that the configuration then has for a piece, and no others of their sorts (a sort is a
    line's first word).
    """

    make: Mapping[str, Commands]
    shown: Mapping[str, Commands]


CircuitRecipes = Mapping[tuple[TransportKind, bool], CircuitRecipe]
"""What a platform makes, by the kind of transport and whether all its clusters share one service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeDialect:
    """A platform's words.

    ``see`` understands the answers to ``show``, in their order, and is told which VLAN numbers matter; it raises
    ValueError. ``domain`` says what a circuit's domain is called, or raises Refused. In templates ``{port}``,
    ``{vlan}``, ``{service}``, ``{name}``, ``{domain}``, ``{core}``, ``{rd}``, ``{rt}`` and ``{bgp}`` stand for
    the circuit's; a line with ``{peer}`` is repeated for every other edge. ``unmake`` is in the order of taking away.
    """

    title: str
    netmiko: str
    recipes: CircuitRecipes
    show: Commands
    see: Callable[[Sequence[str], VlanSet], EdgeReading]
    instead: Mapping[str, Commands] = field(default_factory=dict)
    """What is asked where a command of ``show`` is refused or answered with nothing; ``see`` understands it too."""
    domain: Callable[[Circuit, Transport], str]
    unmake: Mapping[str, Commands]
    errors: re.Pattern[str]
    save: Commands = ()
    """Empty where what was activated is persistent."""
    saved: re.Pattern[str] = re.compile(r"(?!)")
    """What the last line of ``save`` prints when the startup configuration was written; anything else is a failure."""
    prepare: Commands = ()
    """Sets an empty list of allowed VLANs on a port that takes no circuits as it is; read back before all else."""
    trunk: Commands = ()
    """Makes a port with an empty list a trunk."""
    configure: Commands = ("configure terminal",)
    leave: Commands = ("end",)
    give_up: Commands = ()
    """Instead of ``leave`` when something was refused, where a candidate can be thrown away; such a one is atomic."""
    global_vlans: bool = False
    """A VLAN is the same on all ports, so that a managed number belongs to us wherever it is found."""
    numbered_domains: bool = False
    """Bridge domains are numbered like VLANs, so that a shared service's number must be in no pool."""
    busy: re.Pattern[str] | None = None
    """Refusals that pass: somebody else is configuring the device."""
    reserved: VlanSet = field(default_factory=lambda: VlanSet([1]))
    may_fail: frozenset[str] = frozenset()
    answers: Mapping[str, str] = field(default_factory=dict)
    ports: PortNames = field(default_factory=lambda: PortNames({}))
    at_once: int = 1
    """Each line waits for the one before it: after a refused one it could be obeyed where it was not meant to be."""
    privileged: bool = False

    @property
    def facts(self) -> EdgeCapabilities:
        """Give what the platform can do."""
        return EdgeCapabilities(frozenset(kind for kind, _ in self.recipes), self.reserved, atomic=bool(self.give_up))

    def sorts(self, kind: str) -> frozenset[str]:
        """Give the sorts of lines that matter in a piece of this kind."""
        shown = (line for recipe in self.recipes.values() for line in recipe.shown.get(kind, ()))
        return frozenset(line.split()[0] for line in shown)


def format_service_name(service: int) -> str:
    """Give the name that a service has on devices."""
    return f"vc-{service}"


def parse_service_name(name: str | None) -> int | None:
    """Give the service of one of our names; None for anybody else's."""
    found = re.fullmatch(r"vc-([1-9]\d{0,9})", name or "")
    return int(found[1]) if found else None


SIXTEEN_BITS = 2**16


@dataclass(frozen=True, slots=True)
class EdgeTemplates:
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
        return tuple(
            one for one in self.backbone.transports if _recipe_key(one) in self.dialect.recipes and one.on_edges
        )

    def kinds(self, circuit: Circuit, *, joined: bool = False) -> tuple[str, ...]:
        """Give the kinds of pieces that a circuit is made of, in the order in which they are made.

        ``joined`` says that its service is there: then only what is of its port.
        """
        make = self._recipe(circuit).make
        return tuple(kind for kind, lines in make.items() if not joined or any("{port}" in line for line in lines))

    def placed(self, seen: EdgeReading) -> EdgeReading:
        """Tell the service VLANs on the core port from attachments.

        Where VLANs are the same on all ports, lists of others' ports are left out: whoever made them meant them.
        """
        canonical = self.dialect.ports.canonical
        ours = {canonical(port) for port in self.edge.ports}
        core = canonical(self.edge.core_port) if self.edge.core_port else None
        told = (_convert_core_piece(piece) if piece.port == core else piece for piece in seen.pieces)
        return replace(seen, pieces=tuple(one for one in told if not self._is_anothers(one, ours)))

    def _is_anothers(self, piece: CircuitPiece, ours: set[str]) -> bool:
        listed = piece.kind == ATTACHMENT and piece.ours and self.dialect.global_vlans
        return listed and piece.port not in ours

    def domain(self, circuit: Circuit) -> str:
        """Give the bridge domain, VLAN or instance of a circuit."""
        return self.dialect.domain(circuit, self._known(circuit))

    def made(self, kind: str, circuit: Circuit) -> list[str]:
        """Give the lines that make a piece."""
        return list(self._lines(self._recipe(circuit).make[kind], circuit))

    def is_as_shown(self, piece: CircuitPiece, circuit: Circuit) -> bool:
        """Say whether a piece has the lines that matter, and no other lines of their sorts."""
        sorts = self.dialect.sorts(piece.kind)
        has = {line for line in piece.body if line.split()[0] in sorts}
        return has == set(self._lines(self._recipe(circuit).shown.get(piece.kind, ()), circuit))

    def unmade(self, piece: CircuitPiece, service: int) -> list[str]:
        """Give the lines that take away a piece that was seen."""
        number = piece.service or service
        known: dict[str, object] = {"vlan": piece.vlan, "domain": piece.domain}
        known |= {"service": number, "name": format_service_name(number), "port": self._spelt(piece.port or "")}
        known["core"] = known["port"]
        return [line.format(**known, **self._of_the_device(line)) for line in self.dialect.unmake[piece.kind]]

    def _lines(self, template: Commands, circuit: Circuit) -> Iterator[str]:
        transport = self._known(circuit)
        known: dict[str, object] = {
            "vlan": circuit.vlan,
            "service": circuit.service,
            "name": format_service_name(circuit.service),
        }
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

    def _recipe(self, circuit: Circuit) -> CircuitRecipe:
        return self.dialect.recipes[_recipe_key(self._known(circuit))]

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


def _recipe_key(transport: Transport) -> tuple[TransportKind, bool]:
    return transport.kind, transport.shared is not None


def _convert_core_piece(piece: CircuitPiece) -> CircuitPiece:
    """Make an attachment at the core port into what it is there: the service of its VLAN."""
    return replace(piece, kind=CORE, service=piece.vlan, vlan=None) if piece.vlan else piece
