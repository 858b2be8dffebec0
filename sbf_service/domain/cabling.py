"""The cable check compares LLDP neighbours (IEEE 802.1AB) with the links of the topology. Pure.

A neighbour is identified by its system name (with or without a domain) or by its management address. A neighbour's port
is identified by its port identifier or, if the topology has no such port, by its port description. The state of a cable
is *unknown* if SBF could read neither end, if its ports have no LLDP neighbour, or if the neighbour cannot be
identified.

A link between aggregates consists of several cables with separate LLDP neighbours. The order of the aggregates' members
does not matter.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, auto
from typing import Final

from virtcloud.model.element import Device
from virtcloud.model.message_text import printable
from virtcloud.model.site import CableState, CableView
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Site
from virtcloud.model.values import Name, PortRef

MAC_PATTERN = re.compile(r"(?:[0-9a-f]{2}){6}")


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An LLDP neighbour of ``local``, a port of the device that reports the neighbour.

    Fields that the neighbour did not send are empty. ``chassis`` and ``port`` are identifiers of any subtype.
    Unprintable characters are replaced, because the neighbour determines the texts.
    """

    local: str
    chassis: str
    port: str
    name: str = ""
    port_description: str = ""
    address: str = ""

    def __post_init__(self) -> None:
        """Replace unprintable characters in every field."""
        for text_field in fields(self):
            object.__setattr__(self, text_field.name, printable(getattr(self, text_field.name)))

    @property
    def short_name(self) -> str:
        """The system name without its domain, in lower case."""
        return self.name.partition(".")[0].lower()

    @property
    def names_its_port(self) -> bool:
        """Whether the port identifier is an interface name: neither a MAC address nor a number."""
        return bool(self.port) and not self.port.isdigit() and not is_mac(self.port)

    def __str__(self) -> str:
        """Return the neighbour's name and port."""
        device = self.name or f"a device without a name (chassis {self.chassis})"
        description = f" ({self.port_description})" if self.port_description not in ("", self.port) else ""
        return f"{device}, port {self.port}{description}"


def is_mac(text: str) -> bool:
    """Return whether a text is a MAC address, with any separators."""
    return MAC_PATTERN.fullmatch(re.sub(r"[.: -]", "", text.lower())) is not None


CanonicalPort = Callable[[Name, str], str]
"""A function that returns a port's name in the canonical form of an element's platform."""
ObservedNeighbours = Mapping[Name, tuple[Neighbour, ...]]
"""The observed neighbours of switches, by switch. Switches whose neighbours SBF could not read are missing."""


class ObservationResult(Enum):
    """The result of comparing one observed neighbour with one end of a cable."""

    EXPECTED = auto()
    OTHER_NEIGHBOUR = auto()
    OTHER_PORT = auto()
    UNIDENTIFIED = auto()


@dataclass(frozen=True, slots=True)
class NeighbourObservation:
    """A neighbour that a port reports, and the neighbour's identity in the topology.

    ``port`` is the reporting port, as in the topology if the topology has the port (``in_topology``). ``element`` and
    ``peer`` are the neighbour's element and port in the topology, or None if unknown.
    """

    port: str
    in_topology: bool
    neighbour: Neighbour
    element: Name | None
    peer: PortRef | None

    def __str__(self) -> str:
        """Return the neighbour's port in the topology or, if unknown, the name and port that the neighbour sent."""
        return str(self.peer or self.neighbour)


@dataclass(frozen=True, slots=True)
class TopologyNames:
    """The names of elements and ports in the topology, in forms that can be compared."""

    topology: Topology
    canonical: CanonicalPort

    def observations(self, observed: ObservedNeighbours) -> Iterator[NeighbourObservation]:
        """Yield every neighbour with its element and port in the topology."""
        addresses = dict(_device_addresses(self.topology))
        for name, neighbours in observed.items():
            for neighbour in neighbours:
                short_name = neighbour.short_name
                element = Name(short_name) if short_name in self.topology.elements else None
                yield self._observe(name, neighbour, element or addresses.get(neighbour.address))

    def _observe(self, name: Name, neighbour: Neighbour, element: Name | None) -> NeighbourObservation:
        local = self._find_port(name, neighbour.local)
        port = local or f"{name}:{self.canonical(name, neighbour.local)}"
        description = neighbour.port_description
        forms = (neighbour.port, description, description.partition(" ")[0])
        peers = () if element is None else (self._find_port(element, form) for form in forms)
        return NeighbourObservation(port, local is not None, neighbour, element, next(filter(None, peers), None))

    def _find_port(self, element: Name, name: str) -> PortRef | None:
        owner = self.topology.element(element)
        ports = {self.canonical(element, member): member for port in owner.ports for member in owner.members(port)}
        found = ports.get(self.canonical(element, name))
        return None if found is None else PortRef(f"{element}:{found}")


def compare_observation(observation: NeighbourObservation, peers: Sequence[PortRef]) -> tuple[ObservationResult, str]:
    """Compare an observed neighbour with ``peers``, the expected ports of one element.

    Return the result and a message. The message is "" if the neighbour is among ``peers``.
    """
    expected = peers[0].element
    if observation.peer in peers:
        return ObservationResult.EXPECTED, ""
    text = f"{observation.port} sees {observation}"
    if observation.element == expected:
        if observation.peer or observation.neighbour.names_its_port:
            return ObservationResult.OTHER_PORT, text
        return (
            ObservationResult.UNIDENTIFIED,
            f"{text}: this port identifier cannot be compared; configure {expected} to send interface names by LLDP",
        )
    if observation.element or observation.neighbour.name:
        unknown = "" if observation.element else f": the topology has no such name; is this {expected}?"
        return ObservationResult.OTHER_NEIGHBOUR, text + unknown
    return ObservationResult.UNIDENTIFIED, f"{text}: configure this device to send its system name by LLDP"


def _device_addresses(topology: Topology) -> Iterator[tuple[str, Name]]:
    for name, element in topology.elements.items():
        if isinstance(element, Device) and element.address:
            yield _strip_port(element.address), name


def _strip_port(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


WRONG_STATES: Final = {
    ObservationResult.OTHER_NEIGHBOUR: CableState.OTHER_NEIGHBOUR,
    ObservationResult.OTHER_PORT: CableState.OTHER_PORT,
}


@dataclass(frozen=True, slots=True)
class LinkCable:
    """One cable of a link.

    ``a`` and ``b`` are the ends of the cable. ``side_a`` and ``side_b`` contain all ports of the link on each side.
    """

    a: PortRef
    b: PortRef
    side_a: tuple[PortRef, ...]
    side_b: tuple[PortRef, ...]

    @property
    def link_ports(self) -> frozenset[PortRef]:
        """All ports of the link."""
        return frozenset((*self.side_a, *self.side_b))


def check_cables(
    topology: Topology, site: Site, observed: ObservedNeighbours, canonical: CanonicalPort
) -> tuple[CableView, ...]:
    """Return the state of every cable of a site, followed by observed cables that the topology does not contain."""
    check = _CableCheck(topology, observed, tuple(TopologyNames(topology, canonical).observations(observed)))
    elements = {element.name for element in site.elements}
    cables = [cable for cable in list_cables(topology) if {cable.a.element, cable.b.element} & elements]
    views = tuple(check.cable(cable) for cable in cables)
    return views + tuple(check.unlisted({end for view in views if view.is_wrong for end in (view.a, view.b)}))


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
    topology: Topology
    observed: ObservedNeighbours
    observations: Sequence[NeighbourObservation]

    def cable(self, cable: LinkCable) -> CableView:
        """Return the state of one cable, from the neighbours that the ports at both ends report."""
        sides = ((cable.a, cable.side_b), (cable.b, cable.side_a))
        readable = [(end, peers) for end, peers in sides if end.element in self.observed]
        results = [result for end, peers in readable for result in self._compare_neighbours(end, peers)]
        wrong = [(WRONG_STATES[result], text) for result, text in results if result in WRONG_STATES]
        misplaced = [seen for seen in self.observations if _is_misplaced(seen, cable)]
        elsewhere = [f"{seen.peer} is seen at {seen.port}" for seen in misplaced]
        if wrong:
            return _make_cable_view(cable, wrong[0][0], [*(text for _, text in wrong), *elsewhere])
        if any(result is ObservationResult.EXPECTED for result, _ in results):
            return _make_cable_view(cable, CableState.RIGHT, [])
        if elsewhere:
            return _make_cable_view(cable, CableState.ELSEWHERE, elsewhere)
        unread = [] if readable else [f"neither {cable.a.element} nor {cable.b.element} could be read"]
        return _make_cable_view(cable, CableState.UNKNOWN, [*unread, *(text for _, text in results)])

    def _compare_neighbours(self, end: PortRef, peers: tuple[PortRef, ...]) -> list[tuple[ObservationResult, str]]:
        """Compare a port's neighbours with its expected peers.

        If a neighbour is an expected peer, omit the other neighbours.
        """
        results = [compare_observation(seen, peers) for seen in self.observations if seen.port == end]
        if not results:
            text = f"{end} sees no neighbour: is the port up, and does {peers[0].element} send LLDP?"
            return [(ObservationResult.UNIDENTIFIED, text)]
        return [result for result in results if result[0] is ObservationResult.EXPECTED] or results

    def unlisted(self, reported: set[PortRef]) -> Iterator[CableView]:
        """Yield observed cables that the topology does not contain.

        Omit cables with an end in ``reported``, the ends of the topology's wrong cables (`CableView.is_wrong`).
        """
        linked = {end for cable in list_cables(self.topology) for end in cable.link_ports} | set(self._uplinks())
        yielded = set[frozenset[str]]()
        for seen in self.observations:
            pair = frozenset((seen.port, str(seen.peer)))
            is_unlisted = seen.in_topology and seen.port not in linked and not pair & reported
            if seen.peer and is_unlisted and pair not in yielded:
                yielded.add(pair)
                text = f"{seen.port} sees {seen.peer}"
                yield CableView(a=PortRef(seen.port), b=seen.peer, state=CableState.UNLISTED, found=(text,))

    def _uplinks(self) -> Iterator[PortRef]:
        for site in self.topology.sites:
            for attachment in site.attachments:
                yield from _aggregate_members(self.topology, attachment.port)


def _is_misplaced(seen: NeighbourObservation, cable: LinkCable) -> bool:
    """Return whether the neighbour is an end of the cable, but the reporting port is not in the cable's link."""
    return seen.peer in (cable.a, cable.b) and seen.port not in cable.link_ports


def _make_cable_view(cable: LinkCable, state: CableState, texts: Sequence[str]) -> CableView:
    return CableView(a=cable.a, b=cable.b, state=state, found=tuple(texts))
