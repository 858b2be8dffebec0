"""Where cables are, by what devices hear of their neighbours (LLDP), beside where the topology says. Pure.

A neighbour is known by its system name, with or without a domain, or by its management address; its port by the port's
identifier, or by the port's description where the identifier is a MAC address or a number. What was not said is not
held against a cable: a silent port and a neighbour that cannot be told are *unknown*, not wrong.

A link between aggregates is as many cables; LLDP is spoken on each. Which member is joined to which does not matter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sbf_service.sightings import Canonical, Heard, Names, Sight, Sighting, judge
from virtcloud.model.cables import CableState, CableView
from virtcloud.model.topology import Site, Topology
from virtcloud.model.values import PortRef

WRONG = {Sight.OTHER_NEIGHBOUR: CableState.OTHER_NEIGHBOUR, Sight.OTHER_PORT: CableState.OTHER_PORT}


@dataclass(frozen=True, slots=True)
class Cable:
    """One cable of a link: its two ends, and with them all ends that are as good on either side."""

    a: PortRef
    b: PortRef
    side_a: tuple[PortRef, ...]
    side_b: tuple[PortRef, ...]

    @property
    def ends(self) -> frozenset[PortRef]:
        """All ends of the cable's link."""
        return frozenset((*self.side_a, *self.side_b))


def compare(topology: Topology, site: Site, heard: Heard, canonical: Canonical) -> tuple[CableView, ...]:
    """Judge every cable of a site; then come those that are seen and are not in the topology."""
    found = _Found(topology, heard, tuple(Names(topology, canonical).sightings(heard)))
    ours = {element.name for element in site.elements}
    views = tuple(found.cable(one) for one in cables(topology) if {one.a.element, one.b.element} & ours)
    return views + tuple(found.unlisted({end for one in views if one.is_wrong for end in (one.a, one.b)}))


def cables(topology: Topology) -> Iterator[Cable]:
    """Give every cable that the topology's links are made of."""
    for link in topology.links:
        side_a, side_b = (_members(topology, end) for end in link.ends)
        yield from (Cable(a, b, side_a, side_b) for a, b in zip(side_a, side_b, strict=True))


def _members(topology: Topology, end: PortRef) -> tuple[PortRef, ...]:
    members = topology.element(end.element).members(end.port)
    return tuple(PortRef(f"{end.element}:{member}") for member in members)


@dataclass(frozen=True, slots=True)
class _Found:
    """What was heard, beside the topology."""

    topology: Topology
    heard: Heard
    sightings: Sequence[Sighting]

    def cable(self, cable: Cable) -> CableView:
        """Judge one cable by what both its ends hear."""
        sides = ((cable.a, cable.side_b), (cable.b, cable.side_a))
        asked = [(end, peers) for end, peers in sides if end.element in self.heard]
        found = [one for end, peers in asked for one in self._from(end, peers)]
        wrong = [(WRONG[sight], words) for sight, words in found if sight in WRONG]
        elsewhere = [f"{one.of} is seen at {one.at}" for one in self.sightings if _strays(one, cable)]
        if wrong:
            return _view(cable, wrong[0][0], [*(words for _, words in wrong), *elsewhere])
        if any(sight is Sight.EXPECTED for sight, _ in found):
            return _view(cable, CableState.RIGHT, [])
        if elsewhere:
            return _view(cable, CableState.ELSEWHERE, elsewhere)
        nobody = [] if asked else [f"neither {cable.a.element} nor {cable.b.element} could be asked"]
        return _view(cable, CableState.UNKNOWN, [*nobody, *(words for _, words in found)])

    def _from(self, end: PortRef, peers: tuple[PortRef, ...]) -> list[tuple[Sight, str]]:
        """Say what an end hears. Where a peer is among several neighbours, the others do not matter."""
        found = [judge(one, peers) for one in self.sightings if one.at == end]
        if not found:
            return [(Sight.UNTOLD, f"{end} hears nobody: is it up, and does {peers[0].element} speak LLDP?")]
        return [one for one in found if one[0] is Sight.EXPECTED] or found

    def unlisted(self, told: set[PortRef]) -> Iterator[CableView]:
        """Give cables between ports of the topology that it has no link for; ``told`` are ends spoken of already."""
        ends = {end for one in cables(self.topology) for end in one.ends} | set(self._uplinks())
        given = set[frozenset[str]]()
        for one in self.sightings:
            pair = frozenset((one.at, str(one.of)))
            if one.of and one.is_ours and one.at not in ends and not pair & told and pair not in given:
                given.add(pair)
                words = f"{one.at} hears {one.of}"
                yield CableView(a=PortRef(one.at), b=one.of, state=CableState.UNLISTED, found=(words,))

    def _uplinks(self) -> Iterator[PortRef]:
        for site in self.topology.sites:
            for one in site.attachments:
                yield from _members(self.topology, one.port)


def _strays(one: Sighting, cable: Cable) -> bool:
    """Say whether an end of a cable is heard on a port that is not of its link."""
    return one.of in (cable.a, cable.b) and one.at not in cable.ends


def _view(cable: Cable, state: CableState, found: Sequence[str]) -> CableView:
    return CableView(a=cable.a, b=cable.b, state=state, found=tuple(found))
