"""Sites, elements, links and transports: what there is, as administrators describe it (DESIGN.md §2)."""

from functools import cached_property
from typing import Annotated, Self, TypeVar

from pydantic import Field, model_validator

from virtcloud.model.admission import Admits
from virtcloud.model.document import Document
from virtcloud.model.element import Device, Edge, Element, Gateway, Host, Switch
from virtcloud.model.errors import NoSuchHost, NotFound
from virtcloud.model.topology_faults import faults
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortRef

T = TypeVar("T")

LatencyMs = Annotated[float, Field(ge=0, le=10_000)]
BandwidthMbit = Annotated[float, Field(gt=0, le=1_000_000)]


class Attachment(Document):
    """A site's edge port on a transport; latency is one way, bandwidth is of that circuit.

    It is a port of a switch, or of a provider edge where the transport is made at provider edges: that port must be
    linked to a switch of the site.
    """

    transport: Name
    port: PortRef
    latency_ms: LatencyMs = 0
    """Latency one way, in milliseconds."""
    bandwidth_mbit: BandwidthMbit | None = None
    """Bandwidth of the circuit in Mbit/s; null when unknown."""


class Site(Document):
    """A place with hosts and switches. Attachments stand in order of preference.

    ``admits`` says whose clusters have a part on its hosts, all without it; ``images`` which images users may name who
    ask for themselves, any without it. A host may say otherwise.
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
    admits: Admits | None = None
    """Whose clusters may have a part on the site's hosts; null for all."""
    images: tuple[Name, ...] | None = None
    """Images that users may name themselves; null for any."""

    @property
    def elements(self) -> tuple[Element, ...]:
        """All elements of the site: switches, edges, hosts, gateways."""
        return (*self.devices, *self.hosts, *self.gateways)

    @property
    def devices(self) -> tuple[Device, ...]:
        """What SBF configures itself at the site: switches, edges."""
        return (*self.switches, *self.edges)


class Link(Document):
    """Two ports joined. Latency is one way.

    On an ``access`` link, from a host or gateway to a switch, one cluster at a time travels untagged.
    """

    a: PortRef
    b: PortRef
    access: bool = False
    """Whether the link carries one cluster at a time, untagged."""
    latency_ms: LatencyMs = 0
    """Latency one way, in milliseconds."""
    bandwidth_mbit: BandwidthMbit | None = None
    """Bandwidth in Mbit/s; null when unknown."""

    @property
    def ends(self) -> tuple[PortRef, PortRef]:
        """Both ports."""
        return (self.a, self.b)


class Topology(Document):
    """Everything that SBF may configure. Refuses what cannot be: see ``tests/unit/model/test_topology.py``."""

    name: Name
    transports: tuple[Transport, ...] = ()
    """The transports between sites."""
    sites: Annotated[tuple[Site, ...], Field(min_length=1)]
    """The sites."""
    links: tuple[Link, ...] = ()
    """The links between ports."""

    @cached_property
    def elements(self) -> dict[Name, Element]:
        """Every element by name."""
        return {element.name: element for site in self.sites for element in site.elements}

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

    def site(self, name: str) -> Site:
        """Find a site; raises :class:`NotFound` that lists the known ones."""
        return _find("site", name, {site.name: site for site in self.sites})

    def element(self, name: str) -> Element:
        """Find an element; raises :class:`NotFound`."""
        return _find("element", name, self.elements)

    def host(self, name: str) -> Host:
        """Find a host; raises :class:`NoSuchHost` that lists the known ones."""
        return _find("host", name, {host.name: host for site in self.sites for host in site.hosts}, NoSuchHost)

    def transport(self, name: str) -> Transport:
        """Find a transport; raises :class:`NotFound` that lists the known ones."""
        return _find("transport", name, {one.name: one for one in self.transports})

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        for fault in faults(self):
            raise fault
        return self


def _find(what: str, name: str, known: dict[Name, T], missing: type[NotFound] = NotFound) -> T:
    if name not in known:
        raise missing(f"{what} {name} is not known; known are: {', '.join(sorted(known)) or 'none'}")
    return known[Name(name)]
