"""The topology: sites, elements, links and transports, as administrators describe them, and the checks of a topology.

``tests/unit/model/test_topology.py`` has an example of each fault.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import combinations
from typing import Annotated, Any, Final, Self, TypeVar

from pydantic import Field, ValidationInfo, model_validator

from virtcloud.model.access import AdmissionRule
from virtcloud.model.document import OMIT_EMPTY, Document
from virtcloud.model.element import Device, Edge, Element, ElementKind, Gateway, Host, Switch, find_duplicates, kind_of
from virtcloud.model.errors import BadInput, NoSuchHost, NotFound
from virtcloud.model.gateway_access import Destination
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortRef

T = TypeVar("T")
STORED: Final = "stored"
"""The context in which a topology is parsed without a check for faults, because SBF checked it before it was stored."""
Path = tuple[str | int, ...]

LatencyMs = Annotated[float, Field(ge=0, le=10_000)]
BandwidthMbit = Annotated[float, Field(gt=0, le=1_000_000)]


class Attachment(Document):
    """A site's port on a transport.

    The port belongs to a switch, unless the transport is configured at provider edges. Then the port belongs to an edge
    and must be linked to a switch of the site.
    """

    transport: Name
    port: PortRef
    latency_ms: LatencyMs = 0
    """One-way latency in milliseconds."""
    bandwidth_mbit: BandwidthMbit | None = None
    """Bandwidth of the circuit in Mbit/s; null if unknown."""


class Site(Document):
    """A location with hosts and switches.

    ``admits``, ``images`` and ``open_filters`` of a host override the site's values.
    """

    name: Name
    attachments: tuple[Attachment, ...] = ()
    """Attachments to transports, in order of preference."""
    switches: tuple[Switch, ...] = ()
    """The switches."""
    edges: tuple[Edge, ...] = ()
    """The provider edges."""
    hosts: tuple[Host, ...] = ()
    """The hosts."""
    gateways: tuple[Gateway, ...] = ()
    """The gateways."""
    admits: AdmissionRule | None = None
    """The admission rule of the site's hosts; null: the hosts accept all clusters."""
    images: tuple[Name, ...] | None = None
    """Images that users may choose for guests of clusters outside batch jobs; null: any image."""
    destinations: Annotated[tuple[Destination, ...], OMIT_EMPTY] = ()
    """Services outside that clusters may reach through the site's gateways, if they request them by name."""
    open_filters: bool = False
    """Whether hosts run guests of clusters with open filters, which may use any MAC address."""

    @property
    def elements(self) -> tuple[Element, ...]:
        """All elements of the site: switches, edges, hosts, gateways."""
        return (*self.devices, *self.hosts, *self.gateways)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The elements of the site that SBF configures itself: switches, edges."""
        return (*self.switches, *self.edges)


class Link(Document):
    """A link between two ports.

    An ``access`` link connects a host or gateway to a switch, and carries one cluster at a time, untagged.
    """

    a: PortRef
    b: PortRef
    access: bool = False
    """Whether the link carries one cluster at a time, untagged."""
    latency_ms: LatencyMs = 0
    """One-way latency in milliseconds."""
    bandwidth_mbit: BandwidthMbit | None = None
    """Bandwidth in Mbit/s; null if unknown."""

    @property
    def ends(self) -> tuple[PortRef, PortRef]:
        """Both ports."""
        return (self.a, self.b)


class Topology(Document):
    """All sites, elements, links and transports that SBF may configure. Raise BadInput with the first fault, if any."""

    name: Name
    transports: tuple[Transport, ...] = ()
    """The transports between sites."""
    sites: Annotated[tuple[Site, ...], Field(min_length=1)]
    """The sites."""
    links: tuple[Link, ...] = ()
    """The links between ports."""

    @cached_property
    def computed(self) -> dict[object, Any]:
        """Values that were computed from this topology only, such as paths, by function and arguments.

        The values live as long as the topology object, so they never become outdated (docs/decisions/0078).
        """
        return {}

    @cached_property
    def sites_by_name(self) -> dict[Name, Site]:
        """Every site by name."""
        return {site.name: site for site in self.sites}

    @cached_property
    def site_positions(self) -> dict[Name, int]:
        """The position of each site in the topology's order."""
        return {site.name: position for position, site in enumerate(self.sites)}

    @cached_property
    def transports_by_name(self) -> dict[Name, Transport]:
        """Every transport by name."""
        return {transport.name: transport for transport in self.transports}

    @cached_property
    def elements(self) -> dict[Name, Element]:
        """Every element by name."""
        return {element.name: element for site in self.sites for element in site.elements}

    @cached_property
    def hosts(self) -> dict[Name, Host]:
        """Every host by name."""
        return {host.name: host for site in self.sites for host in site.hosts}

    @cached_property
    def gateways(self) -> dict[Name, Gateway]:
        """Every gateway by name, in the topology's order."""
        return {gateway.name: gateway for site in self.sites for gateway in site.gateways}

    @cached_property
    def site_of(self) -> dict[Name, Site]:
        """The site of every element."""
        return {element.name: site for site in self.sites for element in site.elements}

    @cached_property
    def peers(self) -> dict[PortRef, PortRef]:
        """The port at the other end of each linked port."""
        return {end: peer for link in self.links for end, peer in (link.ends, link.ends[::-1])}

    @cached_property
    def access_ports(self) -> frozenset[PortRef]:
        """The ports on which frames travel untagged: both ends of access links."""
        return frozenset(end for link in self.links if link.access for end in link.ends)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a changed copy, without the look-ups and computed values of this topology."""
        copy = super().model_copy(update=update, deep=deep)
        for name in set(vars(copy)) - type(self).model_fields.keys():
            del vars(copy)[name]
        return copy

    @cached_property
    def links_by_site(self) -> dict[Name, tuple[Link, ...]]:
        """The links between two elements of the same site, by site."""
        return self._links_within_and_between[0]

    @cached_property
    def linked_sites(self) -> frozenset[Name]:
        """The sites with a link to an element of another site."""
        return self._links_within_and_between[1]

    @cached_property
    def _links_within_and_between(self) -> tuple[dict[Name, tuple[Link, ...]], frozenset[Name]]:
        within: dict[Name, list[Link]] = defaultdict(list)
        between = set()
        for link in self.links:
            first, second = (self.site_of[end.element].name for end in link.ends)
            if first == second:
                within[first].append(link)
            else:
                between |= {first, second}
        return {name: tuple(links) for name, links in within.items()}, frozenset(between)

    def with_site(self, site: Site, links: tuple[Link, ...]) -> "Topology":
        """Return a topology in which ``site`` replaces the site of the same name, and ``links`` its inner links.

        Look-ups are derived from those of this topology. Raise ValidationError for a topology with faults.
        """
        former, former_links = self.sites_by_name[site.name], self.links_by_site.get(site.name, ())
        replaced = set(map(id, former_links))
        others = self.links if links == former_links else tuple(one for one in self.links if id(one) not in replaced)
        sites = list(self.sites)
        sites[self.site_positions[site.name]] = site
        fields: dict[str, Any] = {
            "name": self.name,
            "transports": self.transports,
            "sites": tuple(sites),
            "links": others if links == former_links else (*others, *links),
        }
        if not self._is_separate(former, site, links):
            return Topology.model_validate(fields)
        topology = Topology.model_construct(**fields)
        _derive_look_ups(self, topology, former, site)
        return topology

    def _is_separate(self, former: Site, site: Site, links: tuple[Link, ...]) -> bool:
        """Return whether a new site has no fault, and no relation to other sites except for their common transports."""
        names = {element.name for element in former.elements}
        others = (element.name for element in site.elements if element.name not in names)
        if site.name in self.linked_sites or any(name in self.elements for name in others):
            return False
        try:
            Topology(name=self.name, transports=self.transports, sites=(site,), links=links)
        except BadInput:
            return False
        return True

    def site(self, name: str) -> Site:
        """Return a site. Raise NotFound with the names of the known sites."""
        return _find("site", name, self.sites_by_name)

    def element(self, name: str) -> Element:
        """Return an element. Raise NotFound for an unknown name."""
        return _find("element", name, self.elements)

    def host(self, name: str) -> Host:
        """Return a host. Raise NoSuchHost with the names of the known hosts."""
        return _find("host", name, self.hosts, NoSuchHost)

    def transport(self, name: str) -> Transport:
        """Return a transport. Raise NotFound with the names of the known transports."""
        return _find("transport", name, self.transports_by_name)

    @model_validator(mode="after")
    def _check_faults(self, information: ValidationInfo) -> Self:
        """Check the whole topology, unless the context is ``STORED``."""
        if information.context == STORED:
            return self
        for fault in find_topology_faults(self):
            raise fault
        return self


def _derive_look_ups(before: Topology, after: Topology, former: Site, site: Site) -> None:
    """Set the look-ups that are cheap to derive. Others are made on first use.

    If the names of elements or their order change, the order of the look-ups changes too.
    """
    look_ups: dict[str, object] = {
        "transports_by_name": before.transports_by_name,
        "site_positions": before.site_positions,
        "sites_by_name": before.sites_by_name | {site.name: site},
    }
    if [element.name for element in former.elements] == [element.name for element in site.elements]:
        look_ups["elements"] = before.elements | {element.name: element for element in site.elements}
        look_ups["site_of"] = before.site_of | {element.name: site for element in site.elements}
        look_ups["hosts"] = before.hosts | {host.name: host for host in site.hosts}
        look_ups["gateways"] = before.gateways | {gateway.name: gateway for gateway in site.gateways}
    if after.links is before.links:
        look_ups["peers"], look_ups["access_ports"] = before.peers, before.access_ports
        look_ups["links_by_site"], look_ups["linked_sites"] = before.links_by_site, before.linked_sites
    vars(after).update(look_ups)


def _find(kind: str, name: str, known: dict[Name, T], error: type[NotFound] = NotFound) -> T:
    if name not in known:
        raise error(f"{kind} {name} is not known; known {kind}s: {', '.join(sorted(known)) or 'none'}")
    return known[Name(name)]


def find_topology_faults(topology: Topology) -> Iterator[BadInput]:
    """Yield the faults of a topology. Names are checked first, because all other checks assume valid names."""
    yield from _name_faults(topology)
    yield from _port_faults(topology)
    yield from _transport_faults(topology)
    yield from _attachment_faults(topology)
    yield from _link_faults(topology)
    yield from _unlinked_faults(topology)


def _name_faults(topology: Topology) -> Iterator[BadInput]:
    names = [element.name for site in topology.sites for element in site.elements]
    names += [transport.name for transport in topology.transports]
    for name in find_duplicates(names):
        yield BadInput(f"expected each element and transport to have its own name, got {name} twice", ("sites",))
    for index, site in enumerate(topology.sites):
        for name in find_duplicates([destination.name for destination in site.destinations]):
            message = f"site {site.name}: expected each destination to have its own name, got {name} twice"
            yield BadInput(message, ("sites", index, "destinations"))
        for gateway in site.gateways:
            if gateway.outside is not None and gateway.outside.interface in gateway.ports:
                message = f"gateway {gateway.name}: expected an interface outside of its managed ports as link to the "
                yield BadInput(f"{message}outside, got {gateway.outside.interface}", ("sites", index, "gateways"))
    for name in find_duplicates([site.name for site in topology.sites]):
        yield BadInput(f"expected each site to have its own name, got {name} twice", ("sites",))


def _port_faults(topology: Topology) -> Iterator[BadInput]:
    used: set[PortRef] = set()
    for end, path in _port_uses(topology):
        element = topology.elements.get(end.element)
        if element is None:
            yield BadInput(f"port {end}: expected an element of this topology, got {end.element}", path)
        elif end.port not in element.ports:
            known = ", ".join(element.ports)
            yield BadInput(f"port {end}: expected a port of {end.element} ({known}), got {end.port}", path)
        elif path[0] == "sites" and isinstance(element, Edge):
            continue  # an edge's attachment port also has a link to a switch
        if end in used:
            yield BadInput(f"port {end}: expected at most one link on a port, got two", path)
        used.add(end)


def _port_uses(topology: Topology) -> Iterator[tuple[PortRef, Path]]:
    """Yield every use of a port, with the path of this use in the document."""
    for site_index, site in enumerate(topology.sites):
        for index, attachment in enumerate(site.attachments):
            yield attachment.port, ("sites", site_index, "attachments", index, "port")
    for index, link in enumerate(topology.links):
        yield link.a, ("links", index, "a")
        yield link.b, ("links", index, "b")


def _transport_faults(topology: Topology) -> Iterator[BadInput]:
    """Yield a fault for each pair of transports of the same kind with common service IDs.

    Pairs without a transport at provider edges are allowed. In all other pairs, clusters on both transports could get
    the same service ID.
    """
    indexed = [(index, transport) for index, transport in enumerate(topology.transports) if transport.service_ids]
    for (_, transport), (index, other) in combinations(indexed, 2):
        first = max(transport.service_ids[0], other.service_ids[0])
        last = min(transport.service_ids[-1], other.service_ids[-1])
        if transport.kind is other.kind and first <= last and (transport.on_edges or other.on_edges):
            both = f"{first}-{last}" if first < last else str(first)
            yield BadInput(
                f"transports {transport.name} and {other.name} of kind {transport.kind}: expected different service "
                f"IDs, got {both} in both",
                ("transports", index),
            )


def _attachment_faults(topology: Topology) -> Iterator[BadInput]:
    known = {transport.name: transport for transport in topology.transports}
    for site_index, site in enumerate(topology.sites):
        for index, attachment in enumerate(site.attachments):
            path = ("sites", site_index, "attachments", index)
            transport = known.get(attachment.transport)
            if transport is None:
                expected = ", ".join(sorted(known)) or "none is defined"
                message = f"site {site.name}: expected a known transport ({expected}), got {attachment.transport}"
                yield BadInput(message, (*path, "transport"))
            else:
                yield from _attachment_port_faults(topology, site, attachment.port, transport, (*path, "port"))


def _attachment_port_faults(
    topology: Topology, site: Site, port: PortRef, transport: Transport, path: Path
) -> Iterator[BadInput]:
    """Yield a fault if the port's element has the wrong kind or site, or if an edge's port has no link to a switch."""
    kind, allowed = ("edges", site.edges) if transport.on_edges else ("switches", site.switches)
    if port.element not in {element.name for element in allowed}:
        reason = f" (transport {transport.name} is configured at provider edges)" if transport.on_edges else ""
        yield BadInput(f"site {site.name}: expected a port of one of its {kind}{reason}, got {port}", path)
        return
    peer = topology.peers.get(port)
    if transport.on_edges and (peer is None or peer.element not in {switch.name for switch in site.switches}):
        yield BadInput(f"port {port}: expected a link to a switch of {site.name}, got {peer or 'none'}", path)


def _link_faults(topology: Topology) -> Iterator[BadInput]:
    for index, link in enumerate(topology.links):
        a, b = (len(topology.element(end.element).members(end.port)) for end in link.ends)
        if a != b:
            message = f"link {link.a} to {link.b}: expected the same number of cables at both ends, got {a} and {b}"
            yield BadInput(message, ("links", index))
        kinds = {kind_of(topology.element(end.element)) for end in link.ends}
        if link.access and kinds not in (
            {ElementKind.HOST, ElementKind.SWITCH},
            {ElementKind.GATEWAY, ElementKind.SWITCH},
        ):
            message = f"access link {link.a} to {link.b}: expected a host or gateway at one end, a switch at the other"
            yield BadInput(message, ("links", index, "access"))
        for element in (topology.element(end.element) for end in link.ends if link.access):
            for key in ("vpn", "nfs"):
                if isinstance(element, Gateway) and getattr(element, key) is not None:
                    wanted = f"expected a tagged link, because {element.name} has `{key}`"
                    yield BadInput(f"access link {link.a} to {link.b}: {wanted}", ("links", index, "access"))


def _unlinked_faults(topology: Topology) -> Iterator[BadInput]:
    for site_index, site in enumerate(topology.sites):
        switches = {switch.name for switch in site.switches}
        for field in ("hosts", "gateways"):
            for index, element in enumerate(getattr(site, field)):
                ends = [PortRef.of(element.name, port) for port in element.ports]
                if not any(end in topology.peers and topology.peers[end].element in switches for end in ends):
                    yield BadInput(
                        f"{kind_of(element)} {element.name} has no link to a switch: expected a link from one of its "
                        f"ports ({', '.join(element.ports)}) to a port of a switch at {site.name}",
                        ("sites", site_index, field, index),
                    )
