"""Sites, elements, ports, links and transports: what there is, as administrators describe it (DESIGN.md §2)."""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, model_validator

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, NotFound
from virtcloud.model.values import Name, PortName, PortRef, VlanId

T = TypeVar("T")

LatencyMs = Annotated[float, Field(ge=0, le=10_000)]
Path = tuple[str | int, ...]
BandwidthMbit = Annotated[float, Field(gt=0, le=1_000_000)]


class ElementKind(StrEnum):
    """What kind of thing is configured."""

    SWITCH = "switch"
    HOST = "host"
    GATEWAY = "gateway"


class Hypervisor(StrEnum):
    """How a host runs guests; the libvirt driver's name."""

    LXC = "lxc"
    QEMU = "qemu"


class Transport(Document):
    """How a VLAN gets from site to site; ``qinq`` puts all tagged frames of a site into the service VLAN ``s_tag``."""

    name: Name
    kind: Literal["qinq"]
    s_tag: VlanId


class Attachment(Document):
    """A site's edge port on a transport; latency is one way, bandwidth is of that circuit."""

    transport: Name
    port: PortRef
    latency_ms: LatencyMs = 0
    bandwidth_mbit: BandwidthMbit | None = None


class Element(Document):
    """A thing that must be configured, with its managed ports."""

    name: Name
    ports: Annotated[tuple[PortName, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _no_port_twice(self) -> Self:
        for port in _repeated(self.ports):
            raise BadInput(f"expected each port of {self.name} once, got {port} twice")
        return self


class Switch(Element):
    """A switch that SBF configures.

    ``address`` is host or host:port of its management interface; ``credential`` names an entry of the service's
    settings: no secret is ever in a topology.
    """

    platform: str
    address: str | None = None
    credential: Name | None = None


class Host(Element):
    """A machine that runs guests, converged by its own agent."""

    hypervisors: tuple[Hypervisor, ...] = (Hypervisor.LXC,)


class Gateway(Element):
    """A machine that lets users into their clusters, converged by its own agent."""


class Site(Document):
    """A place with hosts and switches. Attachments stand in order of preference."""

    name: Name
    attachments: tuple[Attachment, ...] = ()
    switches: tuple[Switch, ...] = ()
    hosts: tuple[Host, ...] = ()
    gateways: tuple[Gateway, ...] = ()

    @property
    def elements(self) -> tuple[Element, ...]:
        """All elements of the site: switches, hosts, gateways."""
        return (*self.switches, *self.hosts, *self.gateways)


class Link(Document):
    """Two ports joined. Latency is one way."""

    a: PortRef
    b: PortRef
    latency_ms: LatencyMs = 0
    bandwidth_mbit: BandwidthMbit | None = None

    @property
    def ends(self) -> tuple[PortRef, PortRef]:
        """Both ports."""
        return (self.a, self.b)


class Topology(Document):
    """Everything that SBF may configure. Refuses what cannot be: see ``tests/unit/model/test_topology.py``."""

    name: Name
    transports: tuple[Transport, ...] = ()
    sites: Annotated[tuple[Site, ...], Field(min_length=1)]
    links: tuple[Link, ...] = ()

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

    def site(self, name: str) -> Site:
        """Find a site; raises :class:`NotFound` that lists the known ones."""
        return _find("site", name, {site.name: site for site in self.sites})

    def element(self, name: str) -> Element:
        """Find an element; raises :class:`NotFound`."""
        return _find("element", name, self.elements)

    def host(self, name: str) -> Host:
        """Find a host; raises :class:`NotFound` that lists the known ones."""
        return _find("host", name, {host.name: host for site in self.sites for host in site.hosts})

    def transport(self, name: str) -> Transport:
        """Find a transport; raises :class:`NotFound` that lists the known ones."""
        return _find("transport", name, {one.name: one for one in self.transports})

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        for fault in _faults(self):
            raise fault
        return self


def kind_of(element: Element) -> ElementKind:
    """Say which kind an element is."""
    if isinstance(element, Switch):
        return ElementKind.SWITCH
    return ElementKind.HOST if isinstance(element, Host) else ElementKind.GATEWAY


def _find(what: str, name: str, known: dict[Name, T]) -> T:
    if name not in known:
        raise NotFound(f"{what} {name} is not known; known are: {', '.join(sorted(known)) or 'none'}")
    return known[Name(name)]


def _repeated(values: Iterable[T]) -> list[T]:
    return [value for value, times in Counter(values).items() if times > 1]


def _faults(topology: Topology) -> Iterator[BadInput]:
    """Give what makes a topology impossible; names come first, since all else relies on them."""
    yield from _name_faults(topology)
    yield from _port_faults(topology)
    yield from _attachment_faults(topology)
    yield from _unlinked(topology)


def _name_faults(topology: Topology) -> Iterator[BadInput]:
    names = [element.name for site in topology.sites for element in site.elements]
    names += [transport.name for transport in topology.transports]
    for name in _repeated(names):
        yield BadInput(f"expected each element and transport to have its own name, got {name} twice", ("sites",))
    for name in _repeated([site.name for site in topology.sites]):
        yield BadInput(f"expected each site to have its own name, got {name} twice", ("sites",))


def _ends(topology: Topology) -> Iterator[tuple[PortRef, Path]]:
    """Give every use of a port with where it stands."""
    for s, site in enumerate(topology.sites):
        for a, attachment in enumerate(site.attachments):
            yield attachment.port, ("sites", s, "attachments", a, "port")
    for index, link in enumerate(topology.links):
        yield link.a, ("links", index, "a")
        yield link.b, ("links", index, "b")


def _port_faults(topology: Topology) -> Iterator[BadInput]:
    used: set[PortRef] = set()
    for end, path in _ends(topology):
        element = topology.elements.get(end.element)
        if element is None:
            yield BadInput(f"port {end}: expected an element of this topology, got {end.element}", path)
        elif end.port not in element.ports:
            known = ", ".join(element.ports)
            yield BadInput(f"port {end}: expected a port of {end.element} ({known}), got {end.port}", path)
        if end in used:
            yield BadInput(f"port {end}: expected at most one link on a port, got two", path)
        used.add(end)


def _attachment_faults(topology: Topology) -> Iterator[BadInput]:
    known = {transport.name for transport in topology.transports}
    for s, site in enumerate(topology.sites):
        switches = {switch.name for switch in site.switches}
        for a, attachment in enumerate(site.attachments):
            path = ("sites", s, "attachments", a)
            if attachment.transport not in known:
                expected = ", ".join(sorted(known)) or "none is defined"
                message = f"site {site.name}: expected a known transport ({expected}), got {attachment.transport}"
                yield BadInput(message, (*path, "transport"))
            if attachment.port.element not in switches:
                message = f"site {site.name}: expected a port of one of its switches, got {attachment.port}"
                yield BadInput(message, (*path, "port"))


def _unlinked(topology: Topology) -> Iterator[BadInput]:
    for s, site in enumerate(topology.sites):
        switches = {switch.name for switch in site.switches}
        for field in ("hosts", "gateways"):
            for index, element in enumerate(getattr(site, field)):
                ends = [PortRef(f"{element.name}:{port}") for port in element.ports]
                if not any(end in topology.peers and topology.peers[end].element in switches for end in ends):
                    yield BadInput(
                        f"{kind_of(element)} {element.name} is on no switch: expected a link from one of its ports "
                        f"({', '.join(element.ports)}) to a port of a switch at {site.name}",
                        ("sites", s, field, index),
                    )
