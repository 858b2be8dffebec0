"""The cable check: compares LLDP neighbours (IEEE 802.1AB) with the links of the topology. Pure.

A neighbour is identified by its system name, with or without a domain, or by its management address. A neighbour's port
is identified by the port identifier, or by the port description where the identifier is a MAC address or a number. A
cable is *unknown*, not wrong, when its ports see no neighbour or the neighbour cannot be identified.

A link between aggregates consists of several cables; each cable has its own LLDP neighbours. The order of the members
does not matter.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, auto

from virtcloud.model.element import Device
from virtcloud.model.errors import printable
from virtcloud.model.site import CableState, CableView
from virtcloud.model.topology import Site, Topology
from virtcloud.model.values import Name, PortRef

MAC_PATTERN = re.compile(r"(?:[0-9a-f]{2}){6}")


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An LLDP neighbour seen on ``local``, a port of the device that reports the neighbour.

    Fields that the neighbour did not send are empty. ``chassis`` and ``port`` are identifiers of any subtype: MAC
    addresses, interface names, or numbers. The device at the other end of the cable chooses these texts, so unprintable
    characters are replaced.
    """

    local: str
    chassis: str
    port: str
    name: str = ""
    port_description: str = ""
    address: str = ""

    def __post_init__(self) -> None:
        """Replace unprintable characters in every field."""
        for one in fields(self):
            object.__setattr__(self, one.name, printable(getattr(self, one.name)))

    @property
    def short_name(self) -> str:
        """The system name without its domain, in lower case."""
        return self.name.partition(".")[0].lower()

    @property
    def names_its_port(self) -> bool:
        """Whether the port identifier is a name: neither a MAC address nor a plain number, which may be any index."""
        return bool(self.port) and not self.port.isdigit() and not is_mac(self.port)

    def __str__(self) -> str:
        """Return the neighbour's name and port."""
        who = self.name or f"a device without a name (chassis {self.chassis})"
        description = f" ({self.port_description})" if self.port_description not in ("", self.port) else ""
        return f"{who}, port {self.port}{description}"


def is_mac(text: str) -> bool:
    """Return whether a text is a MAC address, with any separators."""
    return MAC_PATTERN.fullmatch(re.sub(r"[.: -]", "", text.lower())) is not None


CanonicalPort = Callable[[Name, str], str]
"""A function that returns the canonical form of a port's name on an element's platform, to compare two names."""
ObservedNeighbours = Mapping[Name, tuple[Neighbour, ...]]
"""The neighbours of each switch that could be read."""


class ObservationResult(Enum):
    """The result of comparing one observed neighbour with one end of a cable."""

    EXPECTED = auto()
    OTHER_NEIGHBOUR = auto()
    OTHER_PORT = auto()
    UNIDENTIFIED = auto()


@dataclass(frozen=True, slots=True)
class NeighbourObservation:
    """A neighbour together with the port that sees it and the neighbour's identity in the topology.

    ``element`` and its port ``of`` identify the neighbour in the topology; None stands for unknown. ``at`` is the port
    that sees the neighbour. If the topology contains this port (``is_ours``), ``at`` is spelled as in the topology.
    """

    at: str
    is_ours: bool
    neighbour: Neighbour
    element: Name | None
    of: PortRef | None

    def __str__(self) -> str:
        """Return the neighbour's port in the topology if it is known, otherwise the name and port that were sent."""
        return str(self.of or self.neighbour)


@dataclass(frozen=True, slots=True)
class TopologyNames:
    """The names of elements and ports in the topology, in forms that can be compared."""

    topology: Topology
    canonical: CanonicalPort

    def observations(self, observed: ObservedNeighbours) -> Iterator[NeighbourObservation]:
        """Yield every neighbour with its element and port in the topology."""
        addresses = dict(_device_addresses(self.topology))
        for name, neighbours in observed.items():
            for one in neighbours:
                short = Name(one.short_name) if one.short_name in self.topology.elements else None
                element = short or addresses.get(one.address)
                yield self._observe(name, one, element)

    def _observe(self, name: Name, neighbour: Neighbour, element: Name | None) -> NeighbourObservation:
        local = self._port(name, neighbour.local)
        at = local or f"{name}:{self.canonical(name, neighbour.local)}"
        described = neighbour.port_description
        names = (neighbour.port, described, described.partition(" ")[0])
        of = None if element is None else next(filter(None, (self._port(element, one) for one in names)), None)
        return NeighbourObservation(at, local is not None, neighbour, element, of)

    def _port(self, element: Name, name: str) -> PortRef | None:
        """Find a port of an element by any form of its name."""
        described = self.topology.element(element)
        ports = {self.canonical(element, one): one for port in described.ports for one in described.members(port)}
        found = ports.get(self.canonical(element, name))
        return None if found is None else PortRef(f"{element}:{found}")


def compare_observation(seen: NeighbourObservation, peers: Sequence[PortRef]) -> tuple[ObservationResult, str]:
    """Compare an observed neighbour with ``peers``, the expected ports of one element.

    Return the result, with a message unless the neighbour is one of ``peers``.
    """
    expected = peers[0].element
    if seen.of in peers:
        return ObservationResult.EXPECTED, ""
    text = f"{seen.at} sees {seen}"
    if seen.element == expected:
        if seen.of or seen.neighbour.names_its_port:
            return ObservationResult.OTHER_PORT, text
        return (
            ObservationResult.UNIDENTIFIED,
            f"{text}: its port identifier cannot be compared; let it send its interface's name",
        )
    if seen.element or seen.neighbour.name:
        unknown = "" if seen.element else f": no name of this topology; is it {expected} under another name?"
        return ObservationResult.OTHER_NEIGHBOUR, text + unknown
    return ObservationResult.UNIDENTIFIED, f"{text}: let it send its system name"


def _device_addresses(topology: Topology) -> Iterator[tuple[str, Name]]:
    for name, element in topology.elements.items():
        if isinstance(element, Device) and element.address:
            yield _strip_port(element.address), name


def _strip_port(address: str) -> str:
    """Return the host of ``host:port`` or ``[IPv6]:port``."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


WRONG_STATES = {
    ObservationResult.OTHER_NEIGHBOUR: CableState.OTHER_NEIGHBOUR,
    ObservationResult.OTHER_PORT: CableState.OTHER_PORT,
}


@dataclass(frozen=True, slots=True)
class LinkCable:
    """One cable of a link: its two ends, and all members of the aggregates on either side."""

    a: PortRef
    b: PortRef
    side_a: tuple[PortRef, ...]
    side_b: tuple[PortRef, ...]

    @property
    def ends(self) -> frozenset[PortRef]:
        """All ports on both sides of the cable's link."""
        return frozenset((*self.side_a, *self.side_b))


def check_cables(
    topology: Topology, site: Site, observed: ObservedNeighbours, canonical: CanonicalPort
) -> tuple[CableView, ...]:
    """Return the state of every cable of a site, followed by observed cables that the topology does not contain."""
    found = _CableCheck(topology, observed, tuple(TopologyNames(topology, canonical).observations(observed)))
    site_elements = {element.name for element in site.elements}
    views = tuple(found.cable(one) for one in list_cables(topology) if {one.a.element, one.b.element} & site_elements)
    return views + tuple(found.unlisted({end for one in views if one.is_wrong for end in (one.a, one.b)}))


def list_cables(topology: Topology) -> Iterator[LinkCable]:
    """Yield every cable of the topology's links."""
    for link in topology.links:
        side_a, side_b = (_aggregate_members(topology, end) for end in link.ends)
        yield from (LinkCable(a, b, side_a, side_b) for a, b in zip(side_a, side_b, strict=True))


def _aggregate_members(topology: Topology, end: PortRef) -> tuple[PortRef, ...]:
    members = topology.element(end.element).members(end.port)
    return tuple(PortRef(f"{end.element}:{member}") for member in members)


@dataclass(frozen=True, slots=True)
class _CableCheck:
    """The observed neighbours, for comparison with the topology."""

    topology: Topology
    observed: ObservedNeighbours
    observations: Sequence[NeighbourObservation]

    def cable(self, cable: LinkCable) -> CableView:
        """Return the state of one cable, from the neighbours that both its ends see."""
        sides = ((cable.a, cable.side_b), (cable.b, cable.side_a))
        readable = [(end, peers) for end, peers in sides if end.element in self.observed]
        found = [one for end, peers in readable for one in self._from(end, peers)]
        wrong = [(WRONG_STATES[result], text) for result, text in found if result in WRONG_STATES]
        elsewhere = [f"{one.of} is seen at {one.at}" for one in self.observations if _is_misplaced(one, cable)]
        if wrong:
            return _cable_view(cable, wrong[0][0], [*(text for _, text in wrong), *elsewhere])
        if any(result is ObservationResult.EXPECTED for result, _ in found):
            return _cable_view(cable, CableState.RIGHT, [])
        if elsewhere:
            return _cable_view(cable, CableState.ELSEWHERE, elsewhere)
        unread = [] if readable else [f"neither {cable.a.element} nor {cable.b.element} could be read"]
        return _cable_view(cable, CableState.UNKNOWN, [*unread, *(text for _, text in found)])

    def _from(self, end: PortRef, peers: tuple[PortRef, ...]) -> list[tuple[ObservationResult, str]]:
        """Return the results for all neighbours that an end sees. A peer among them hides other neighbours."""
        found = [compare_observation(one, peers) for one in self.observations if one.at == end]
        if not found:
            return [
                (
                    ObservationResult.UNIDENTIFIED,
                    f"{end} sees no neighbour: is it up, and does {peers[0].element} send LLDP?",
                )
            ]
        return [one for one in found if one[0] is ObservationResult.EXPECTED] or found

    def unlisted(self, reported: set[PortRef]) -> Iterator[CableView]:
        """Yield observed cables that the topology does not contain, without those at ends ``reported`` as wrong."""
        ends = {end for one in list_cables(self.topology) for end in one.ends} | set(self._uplinks())
        given = set[frozenset[str]]()
        for one in self.observations:
            pair = frozenset((one.at, str(one.of)))
            if one.of and one.is_ours and one.at not in ends and not pair & reported and pair not in given:
                given.add(pair)
                text = f"{one.at} sees {one.of}"
                yield CableView(a=PortRef(one.at), b=one.of, state=CableState.UNLISTED, found=(text,))

    def _uplinks(self) -> Iterator[PortRef]:
        for site in self.topology.sites:
            for one in site.attachments:
                yield from _aggregate_members(self.topology, one.port)


def _is_misplaced(one: NeighbourObservation, cable: LinkCable) -> bool:
    """Return whether an end of a cable is seen on a port outside the cable's link."""
    return one.of in (cable.a, cable.b) and one.at not in cable.ends


def _cable_view(cable: LinkCable, state: CableState, found: Sequence[str]) -> CableView:
    return CableView(a=cable.a, b=cable.b, state=state, found=tuple(found))
