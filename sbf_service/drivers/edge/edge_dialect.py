"""The data of a provider edge's dialect, and the readings of an edge. Pure.

A circuit consists of *pieces*: an attachment (the VLAN on the port), and the pieces that join the attachment's bridge
domain to the service. For each kind of piece, a dialect defines the lines that create, show and remove a piece.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sbf_service.drivers.contract import EdgeCapabilities
from sbf_service.drivers.switch.dialect import Commands, PortNames
from virtcloud.model.edge import Circuit
from virtcloud.model.transport import Transport, TransportKind
from virtcloud.model.vlans import VlanSet

ATTACHMENT = "attachment"
"""The kind of piece that is a VLAN on a port. Every circuit has an attachment."""
CORE = "core"
"""The kind of piece that is the VLAN of a service on the edge's core port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitPiece:
    """A piece of a circuit, as read from the edge.

    ``domain`` is the bridge domain, VLAN or instance that joins the piece to other pieces. ``service`` is the number of
    the service that the piece names. ``by_sbf`` is False for a piece that SBF cannot have created.
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
    """The configuration read from an edge: pieces of circuits, and states of ports.

    - ``ports``: whether each port accepts circuits in its present state.
    - ``known``: values of the device for templates, such as the number of the BGP process.
    - ``empty``: the ports whose list of allowed VLANs is empty.
    - ``down``: the ports that are shut down.
    - ``uses``: the other use, as text, of ports. Trunks with only SBF's VLANs can be included; the driver ignores
      ``uses`` for ports that accept circuits. Empty for a dialect without ``prepare``.
    """

    pieces: tuple[CircuitPiece, ...]
    ports: Mapping[str, bool]
    known: Mapping[str, str] = field(default_factory=dict)
    empty: frozenset[str] = frozenset()
    down: frozenset[str] = frozenset()
    uses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CircuitRecipe:
    """The lines that create a circuit, by kind of piece, in the order of creation.

    ``shown`` contains the lines that a complete piece has in the device's configuration. The piece can have further
    lines that do not begin with one of ``EdgeDialect.first_words(kind)``.
    """

    make: Mapping[str, Commands]
    shown: Mapping[str, Commands]


CircuitRecipes = Mapping[tuple[TransportKind, bool], CircuitRecipe]
"""The recipes of a platform, by a transport's kind and by whether all clusters of the transport share a service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeDialect:
    """The commands and answers of a platform.

    - ``see`` parses the answers to ``show``, in the order of the commands, and returns the reading for the given VLAN
      IDs. Raises ValueError for an unknown answer.
    - ``domain`` returns the name of a circuit's domain, or raises Refused.
    - ``unmake`` contains the lines that remove each kind of piece, in the order of removal.

    The placeholders of templates are ``{port}``, ``{vlan}``, ``{service}``, ``{name}``, ``{domain}``, ``{core}``,
    ``{rd}``, ``{rt}``, ``{bgp}`` and ``{peer}``. A line with ``{peer}`` is repeated for each other edge of the
    transport.
    """

    title: str
    netmiko: str
    recipes: CircuitRecipes
    show: Commands
    see: Callable[[Sequence[str], VlanSet], EdgeReading]
    instead: Mapping[str, Commands] = field(default_factory=dict)
    """Alternatives to commands of ``show``, by command.

    The driver sends the alternatives if the device refuses the command or the answer is empty. ``see`` parses the
    answer to the alternatives.
    """
    domain: Callable[[Circuit, Transport], str]
    unmake: Mapping[str, Commands]
    errors: re.Pattern[str]
    save: Commands = ()
    """The commands that write the startup configuration; empty if activated configuration survives a restart."""
    saved: re.Pattern[str] = re.compile(r"(?!)")
    """The output of the last command of ``save`` after a successful save."""
    prepare: Commands = ()
    """Commands that set an empty list of allowed VLANs on a port that does not accept circuits yet."""
    trunk: Commands = ()
    """Commands that turn a port with an empty list of allowed VLANs into a trunk."""
    configure: Commands = ("configure terminal",)
    leave: Commands = ("end",)
    give_up: Commands = ()
    """Commands to send instead of ``leave`` after a refusal, on platforms that can discard a candidate configuration.

    A platform with these commands is atomic.
    """
    global_vlans: bool = False
    """Whether a VLAN ID denotes the same VLAN on all ports, so that SBF must check all ports."""
    numbered_domains: bool = False
    """Whether the number of a bridge domain is a VLAN ID. The number of a shared service must then be in no pool.

    A VLAN ID is in other use if its bridge domain contains configuration that SBF did not create.
    """
    busy: re.Pattern[str] | None = None
    """The pattern of the refusal while another user is configuring the device."""
    reserved: VlanSet = field(default_factory=lambda: VlanSet([1]))
    may_fail: frozenset[str] = frozenset()
    answers: Mapping[str, str] = field(default_factory=dict)
    ports: PortNames = field(default_factory=lambda: PortNames({}))
    at_once: int = 1
    """Always 1: after a refused line, a line that was already sent could take effect in the wrong mode."""
    privileged: bool = False

    @property
    def capabilities(self) -> EdgeCapabilities:
        """The capabilities of the platform."""
        return EdgeCapabilities(frozenset(kind for kind, _ in self.recipes), self.reserved, atomic=bool(self.give_up))

    def first_words(self, kind: str) -> frozenset[str]:
        """Return the first words of the lines that recipes define for a kind of piece."""
        shown = (line for recipe in self.recipes.values() for line in recipe.shown.get(kind, ()))
        return frozenset(line.split()[0] for line in shown)


def format_service_name(service: int) -> str:
    """Return the name of a service on devices."""
    return f"vc-{service}"


def parse_service_name(name: str | None) -> int | None:
    """Return the number of the service with this name; None for a name that SBF does not create."""
    found = re.fullmatch(r"vc-([1-9]\d{0,9})", name or "")
    return int(found[1]) if found else None
