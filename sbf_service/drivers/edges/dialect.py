"""What the dialect of a provider edge is: a vendor's words as data, and what was seen of a device in those words.

A circuit is made of *pieces*, a few kinds on each platform: an attachment (the VLAN on the port) and what joins its
bridge domain to the service. A dialect says for each kind the lines that make it, that take it away, and that the
configuration must then show. Whatever the device is, circuits are put together from pieces in one place.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sbf_service.drivers.dialects.dialect import Lines, PortNames
from sbf_service.drivers.edge import EdgeFacts
from virtcloud.model.edge import Circuit
from virtcloud.model.transport import Transport, TransportKind
from virtcloud.model.vlans import VlanSet

ATTACHMENT = "attachment"
"""The kind of piece that every recipe has: a VLAN on a port."""
CORE = "core"
"""The kind of piece of the edge's core port: a service VLAN on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
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
class Seen:
    """A whole edge as it was read: pieces, and every port with whether it takes circuits as it is.

    ``known`` is what templates need of the device, such as the number of its BGP process. ``empty`` are the ports whose
    list of allowed VLANs is empty, ``uses`` what others use ports for that take no circuits as they are, in words.
    """

    pieces: tuple[Piece, ...]
    ports: Mapping[str, bool]
    known: Mapping[str, str] = field(default_factory=dict)
    empty: frozenset[str] = frozenset()
    down: frozenset[str] = frozenset()
    """The ports that were shut down."""
    uses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a circuit is made: for each kind of piece the lines that make it, in order, the attachment last.

    ``shown`` are the lines that the configuration then has for a piece, and no others of their sorts (a sort is a
    line's first word).
    """

    make: Mapping[str, Lines]
    shown: Mapping[str, Lines]


Recipes = Mapping[tuple[TransportKind, bool], Recipe]
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
    recipes: Recipes
    show: Lines
    see: Callable[[Sequence[str], VlanSet], Seen]
    instead: Mapping[str, Lines] = field(default_factory=dict)
    """What is asked where a command of ``show`` is refused or answered with nothing; ``see`` understands it too."""
    domain: Callable[[Circuit, Transport], str]
    unmake: Mapping[str, Lines]
    errors: re.Pattern[str]
    save: Lines = ()
    """Empty where what was activated is persistent."""
    saved: re.Pattern[str] = re.compile(r"(?!)")
    """What the last line of ``save`` prints when the startup configuration was written; anything else is a failure."""
    prepare: Lines = ()
    """Sets an empty list of allowed VLANs on a port that takes no circuits as it is; read back before all else."""
    trunk: Lines = ()
    """Makes a port with an empty list a trunk."""
    configure: Lines = ("configure terminal",)
    leave: Lines = ("end",)
    give_up: Lines = ()
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
    def facts(self) -> EdgeFacts:
        """Give what the platform can do."""
        return EdgeFacts(frozenset(kind for kind, _ in self.recipes), self.reserved, atomic=bool(self.give_up))

    def sorts(self, kind: str) -> frozenset[str]:
        """Give the sorts of lines that matter in a piece of this kind."""
        shown = (line for recipe in self.recipes.values() for line in recipe.shown.get(kind, ()))
        return frozenset(line.split()[0] for line in shown)


def name_of(service: int) -> str:
    """Give the name that a service has on devices."""
    return f"vc-{service}"


def service_named(name: str | None) -> int | None:
    """Give the service of one of our names; None for anybody else's."""
    found = re.fullmatch(r"vc-([1-9]\d{0,9})", name or "")
    return int(found[1]) if found else None
