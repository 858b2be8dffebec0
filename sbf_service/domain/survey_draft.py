"""The draft of a site's topology: the links between the surveyed switches and hosts, from LLDP neighbours. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from sbf_service.domain.cabling import CanonicalPort, Neighbour, NeighbourObservation, TopologyNames, is_mac
from virtcloud.model.element import Host, Switch
from virtcloud.model.port_use import PortUse
from virtcloud.model.site import SitePart
from virtcloud.model.site_survey import SurveyedNeighbour
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Link, Site
from virtcloud.model.values import Name, PortName, PortRef
from virtcloud.model.vlans import VlanSet

PLACEHOLDER = PortName("unknown")
"""The single port of a switch whose ports are unknown. Only the survey's provisional topology has this port."""


@dataclass(frozen=True, slots=True)
class PortSurvey:
    """A port: its port use, its VLANs, and whether an aggregate contains the port."""

    use: PortUse
    vlans: VlanSet
    is_member: bool = False


@dataclass(frozen=True, slots=True)
class SwitchSurvey:
    """A switch and the data read from it. ``is_read`` is False if the switch's VLANs and ports could not be read."""

    switch: Switch
    ports: Mapping[str, PortSurvey] = field(default_factory=dict)
    vlans: VlanSet = field(default_factory=VlanSet)
    names: Mapping[int, str] = field(default_factory=dict)
    reserved: VlanSet = field(default_factory=VlanSet)
    neighbours: tuple[Neighbour, ...] = ()
    listed_ports: tuple[PortName, ...] = ()
    is_read: bool = True
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class TopologyDraft:
    """The draft of the topology of ``site``. ``hosts`` are patterns of the hosts' names, such as ``node*``."""

    site: Name
    surveys: Sequence[SwitchSurvey]
    hosts: Sequence[str]
    canonical: CanonicalPort

    def part(self) -> SitePart:
        """Return the draft: the switches, the hosts, and a link for each cable.

        A switch has its listed ports and the ports of its cables; a switch without such ports is omitted.
        """
        cables = list(self._cables())
        links = tuple(Link(a=a, b=b) for a, b in cables)
        ends = {end for cable in cables for end in cable}
        switches = tuple(
            survey.switch.model_copy(update={"ports": ports})
            for survey in self.surveys
            if (ports := self._ports_of(survey, ends))
        )
        names = {survey.switch.name for survey in self.surveys}
        found = sorted(end for end in ends if end.element not in names)
        hosts: dict[Name, list[PortName]] = {}
        for end in found:
            hosts.setdefault(end.element, []).append(end.port)
        host_documents = tuple(Host(name=name, ports=tuple(ports)) for name, ports in hosts.items())
        return SitePart(site=Site(name=self.site, switches=switches, hosts=host_documents), links=links)

    @staticmethod
    def _ports_of(survey: SwitchSurvey, ends: set[PortRef]) -> tuple[PortName, ...]:
        linked = [end.port for end in sorted(ends) if end.element == survey.switch.name]
        return tuple(dict.fromkeys([*survey.listed_ports, *linked]))

    def observations(self) -> list[NeighbourObservation]:
        """Return every neighbour, with the switch's name and port if the neighbour is a switch of the survey."""
        switches = [survey.switch.model_copy(update={"ports": self._known_ports(survey)}) for survey in self.surveys]
        provisional = Topology(name=Name("survey"), sites=(Site(name=self.site, switches=tuple(switches)),))
        observed = {survey.switch.name: survey.neighbours for survey in self.surveys}
        return list(TopologyNames(provisional, self.canonical).observations(observed))

    def _known_ports(self, survey: SwitchSurvey) -> tuple[PortName, ...]:
        """Return the ports of a switch that SBF read, and those that the administrator listed.

        For an unread switch, add the ports that other switches see by LLDP. Return only ``PLACEHOLDER`` if no port is
        known.
        """
        name = survey.switch.name
        seen = (
            self.canonical(name, neighbour.port)
            for other in self.surveys
            for neighbour in other.neighbours
            if neighbour.short_name == name and neighbour.names_its_port
        )
        texts = dict.fromkeys([*survey.ports, *survey.listed_ports, *([] if survey.is_read else seen)])
        return tuple(PortName(text) for text in texts if PortName.matches(text)) or (PLACEHOLDER,)

    def _cables(self) -> Iterator[tuple[PortRef, PortRef]]:
        pairs = {tuple(sorted(pair)) for seen in self.observations() if (pair := self._pair(seen))}
        uses = Counter(end for pair in pairs for end in pair)
        yield from sorted((a, b) for a, b in pairs if uses[a] == uses[b] == 1)

    def _pair(self, seen: NeighbourObservation) -> tuple[PortRef, PortRef] | None:
        if not seen.in_topology or self._is_member(PortRef(seen.port)):
            return None
        peer = seen.peer if seen.element else self._find_host_port(seen.neighbour)
        return None if peer is None or self._is_member(peer) else (PortRef(seen.port), peer)

    def _find_host_port(self, neighbour: Neighbour) -> PortRef | None:
        name, words = neighbour.short_name, neighbour.port_description.split()
        port = neighbour.port if neighbour.names_its_port else next(iter(words), "")
        is_host = Name.matches(name) and any(fnmatchcase(name, pattern) for pattern in self.hosts)
        return PortRef(f"{name}:{port}") if is_host and PortName.matches(port) and not is_mac(port) else None

    def _is_member(self, end: PortRef) -> bool:
        ports = next((survey.ports for survey in self.surveys if survey.switch.name == end.element), {})
        found = ports.get(end.port) or ports.get(self.canonical(end.element, end.port))
        return found is not None and found.is_member

    def others(self) -> Iterator[SurveyedNeighbour]:
        """Yield each neighbour at a port that has no link in the draft."""
        linked = {end for cable in self._cables() for end in cable}
        for seen in self.observations():
            switch, _, port = seen.port.partition(":")
            if seen.port not in linked:
                neighbour = seen.neighbour
                name = neighbour.name or f"chassis {neighbour.chassis}"
                yield SurveyedNeighbour(
                    switch=Name(switch),
                    port=port,
                    name=replace_unprintable(name),
                    neighbour_port=replace_unprintable(neighbour.port),
                )

    def notes(self, part: SitePart) -> Iterator[str]:
        """Yield notes on missing parts of the draft, unless no switch was read: then no draft is written."""
        if not any(survey.is_read for survey in self.surveys):
            return
        drafted = {switch.name for switch in part.site.switches}
        for survey in self.surveys:
            name = survey.switch.name
            if name not in drafted:
                yield f"switch {name} is not in the draft, because {_explain_absence(survey)}"
            elif survey.is_read and not survey.neighbours and survey.fault is None:
                yield f"switch {name} has no LLDP neighbours: add its links to the draft"
        members = sorted({seen.port for seen in self.observations() if self._has_member_port(seen)})
        if members:
            yield (
                f"members of link aggregates: {', '.join(members)}: in the draft, add each aggregate to the switch's "
                "ports, list its members under the key 'aggregates', and add one link for each aggregate"
            )
        uses = Counter(seen.port for seen in self.observations())
        for port in (port for port, times in uses.items() if times > 1):
            yield f"port {port} has {uses[port]} LLDP neighbours: add the link to the draft yourself"
        if not part.site.hosts:
            yield "no host is in the draft: add hosts with their links, or name them by a pattern (hosts: [node*])"
        yield "add to the draft the site's attachments to transports; operators know the transports"

    def _has_member_port(self, seen: NeighbourObservation) -> bool:
        return seen.in_topology and self._is_member(PortRef(seen.port))


def _explain_absence(survey: SwitchSurvey) -> str:
    ports = "or list its ports (ports: […]) in the file"
    if survey.fault is None:
        return f"LLDP shows no cable of this switch: enable LLDP on the switch and its neighbours, {ports}"
    unread = "its LLDP neighbours" if survey.is_read else "the switch"
    return f"{unread} could not be read: correct the cause that the error of this switch names, {ports}"


def replace_unprintable(name: str) -> str:
    """Return a name without characters that change the display of other text, such as U+202E."""
    return "".join(character if character.isprintable() else "\ufffd" for character in name)
