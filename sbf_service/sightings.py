"""Whom a neighbour that was heard is in the topology, and whether it is who was expected. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from sbf_service.neighbour import Neighbour
from virtcloud.model.element import Device
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortRef

Canonical = Callable[[Name, str], str]
"""Gives the one form of a port's name as an element's platform has it, so that two forms can be compared."""
Heard = Mapping[Name, tuple[Neighbour, ...]]
"""What each switch that could be asked heard."""


class Sight(Enum):
    """What one neighbour says of one end of a cable."""

    EXPECTED = auto()
    OTHER_NEIGHBOUR = auto()
    OTHER_PORT = auto()
    UNTOLD = auto()


@dataclass(frozen=True, slots=True)
class Sighting:
    """A neighbour and whom the topology knows it for: ``element``, and ``of``, a port of it; nothing where unknown.

    ``at`` is the port on which it was heard, spelt as the topology spells it where that has it (``is_ours``).
    """

    at: str
    is_ours: bool
    neighbour: Neighbour
    element: Name | None
    of: PortRef | None

    def __str__(self) -> str:
        """Say who was heard: by the topology's name where it has one."""
        return str(self.of or self.neighbour)


@dataclass(frozen=True, slots=True)
class Names:
    """The topology's names of elements and ports, in forms that can be compared."""

    topology: Topology
    canonical: Canonical

    def sightings(self, heard: Heard) -> Iterator[Sighting]:
        """Say of every neighbour whom the topology knows it for."""
        addresses = dict(_addresses(self.topology))
        for name, neighbours in heard.items():
            for one in neighbours:
                short = Name(one.short_name) if one.short_name in self.topology.elements else None
                element = short or addresses.get(one.address)
                yield self._sighting(name, one, element)

    def _sighting(self, name: Name, neighbour: Neighbour, element: Name | None) -> Sighting:
        local = self._port(name, neighbour.local)
        at = local or f"{name}:{self.canonical(name, neighbour.local)}"
        described = neighbour.port_description
        said = (neighbour.port, described, described.partition(" ")[0])
        of = None if element is None else next(filter(None, (self._port(element, one) for one in said)), None)
        return Sighting(at, local is not None, neighbour, element, of)

    def _port(self, element: Name, said: str) -> PortRef | None:
        """Find a port of an element by any form of its name."""
        described = self.topology.element(element)
        ports = {self.canonical(element, one): one for port in described.ports for one in described.members(port)}
        found = ports.get(self.canonical(element, said))
        return None if found is None else PortRef(f"{element}:{found}")


def judge(seen: Sighting, peers: Sequence[PortRef]) -> tuple[Sight, str]:
    """Say whether it is one of ``peers``, ports of one element, who is heard, and if not, in words who is."""
    expected = peers[0].element
    if seen.of in peers:
        return Sight.EXPECTED, ""
    words = f"{seen.at} hears {seen}"
    if seen.element == expected:
        if seen.of or seen.neighbour.names_its_port:
            return Sight.OTHER_PORT, words
        return Sight.UNTOLD, f"{words}: what it says of its port cannot be compared; let it send its interface's name"
    if seen.element or seen.neighbour.name:
        unknown = "" if seen.element else f": no name of this topology; is it {expected} under another name?"
        return Sight.OTHER_NEIGHBOUR, words + unknown
    return Sight.UNTOLD, f"{words}: let it send its system name"


def _addresses(topology: Topology) -> Iterator[tuple[str, Name]]:
    for name, element in topology.elements.items():
        if isinstance(element, Device) and element.address:
            yield _host(element.address), name


def _host(address: str) -> str:
    """Take the port off ``host:port`` or ``[IPv6]:port``."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address
