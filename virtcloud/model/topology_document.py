"""The documents of a topology: sites, attachments to transports, and links, with look-ups by name."""

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field

from virtcloud.model.access import AdmissionRule
from virtcloud.model.document import OMIT_EMPTY, Document, PlainDocument
from virtcloud.model.element import Device, Edge, Element, Gateway, Host, Switch
from virtcloud.model.errors import NoSuchHost, NotFound
from virtcloud.model.gateway_access import Destination
from virtcloud.model.message_text import list_known
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortRef

T = TypeVar("T")

LatencyMs = Annotated[float, Field(ge=0, le=10_000)]
BandwidthMbit = Annotated[float, Field(gt=0, le=1_000_000)]


class Attachment(Document):
    """A site's port on a transport.

    If the transport is configured at provider edges, the port belongs to an edge, and must be linked to a switch of the
    site. For all other transports, the port belongs to a switch.
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
    """Images that users may choose for guests; null: any image. For clusters of batch jobs, the list does not apply."""
    destinations: Annotated[tuple[Destination, ...], OMIT_EMPTY] = ()
    """Outside services that clusters may reach through the site's gateways. Specs refer to these services by name."""
    open_filters: Annotated[bool, OMIT_EMPTY] = False
    """Whether hosts run guests of clusters with open filters. Such guests may use any MAC address."""

    @property
    def elements(self) -> tuple[Element, ...]:
        """All elements of the site: switches, edges, hosts, gateways."""
        return (*self.devices, *self.hosts, *self.gateways)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The elements of the site that SBF configures itself: switches, edges."""
        return (*self.switches, *self.edges)


class Link(PlainDocument):
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


class TopologyDocument(Document):
    """All sites, elements, links and transports that SBF may configure, with look-ups by name.

    The look-ups assume a document without faults.
    """

    name: Name
    transports: tuple[Transport, ...] = ()
    """The transports between sites."""
    sites: Annotated[tuple[Site, ...], Field(min_length=1)]
    """The sites."""
    links: tuple[Link, ...] = ()
    """The links between ports."""

    @cached_property
    def computed(self) -> dict[object, Any]:
        """A cache of values computed from the topology's wiring alone, such as paths.

        The key is a function with its arguments. The values never become outdated (docs/decisions/0078): a later
        topology shares this dictionary only if no path can differ
        (:func:`~virtcloud.model.topology_parts.has_equal_paths`).
        """
        return {}

    @cached_property
    def sites_by_name(self) -> dict[Name, Site]:
        """Every site by name."""
        return {site.name: site for site in self.sites}

    @cached_property
    def sites_in_order(self) -> tuple[Site, ...]:
        """The sites in the order of their names."""
        return tuple(sorted(self.sites, key=lambda site: site.name))

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
        """For each linked port, the port at the other end of the link."""
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
    def links_between(self) -> tuple[Link, ...]:
        """The links between elements of two sites."""
        return self._links_within_and_between[1]

    @cached_property
    def _links_within_and_between(self) -> tuple[dict[Name, tuple[Link, ...]], tuple[Link, ...]]:
        within: dict[Name, list[Link]] = defaultdict(list)
        between = []
        site_of = self.site_of
        for link in self.links:
            first, second = site_of[link.a.element].name, site_of[link.b.element].name
            if first == second:
                within[first].append(link)
            else:
                between.append(link)
        return {name: tuple(links) for name, links in within.items()}, tuple(between)

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


def _find(kind: str, name: str, known: dict[Name, T], error: type[NotFound] = NotFound) -> T:
    if name not in known:
        raise error(f"{kind} {name} is not known; known {kind}s: {list_known(name, known)}")
    return known[Name(name)]
