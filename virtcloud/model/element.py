"""Elements: the things that are configured, and their ports (DESIGN.md §2)."""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Self, TypeVar

from pydantic import Field, IPvAnyAddress, model_validator

from virtcloud.model.access import AdmissionRule
from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput
from virtcloud.model.values import DeviceAddress, Name, PortName

T = TypeVar("T")


class ElementKind(StrEnum):
    """What kind of thing is configured."""

    SWITCH = "switch"
    EDGE = "edge"
    HOST = "host"
    GATEWAY = "gateway"


class Hypervisor(StrEnum):
    """How a host runs guests; the libvirt driver's name."""

    LXC = "lxc"
    QEMU = "qemu"


class Element(Document):
    """A thing that must be configured, with its managed ports.

    A port may be a link aggregate's own interface (``Port-channel1``, ``bond0``); ``aggregates`` then names the ports
    that it is made of. Those are its cables, and never managed themselves.
    """

    name: Name
    ports: Annotated[tuple[PortName, ...], Field(min_length=1)]
    """The managed ports."""
    aggregates: dict[PortName, Annotated[tuple[PortName, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """The member ports of each link aggregate."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        for port in find_duplicates(self.ports):
            raise BadInput(f"expected each port of {self.name} once, got {port} twice")
        for fault in _aggregate_faults(self):
            raise fault
        return self

    def members(self, port: PortName) -> tuple[PortName, ...]:
        """Give the ports that cables are in: those of an aggregate, or the port itself."""
        return self.aggregates.get(port, (port,))


class Device(Element):
    """What SBF configures itself.

    ``address`` is host or host:port of its management interface; ``credential`` names an entry of the service's
    settings: no secret is ever in a topology. Each replica of the service keeps a session with it, unless
    ``keep_session`` is false: then there is one at a time in all, opened anew for each change.
    """

    platform: str
    """The name of the driver; `docs/reference/platforms.md` lists them."""
    address: DeviceAddress | None = None
    """Where the management interface answers."""
    credential: Name | None = None
    """The name of a credential in the service's settings."""
    keep_session: bool = True
    """Whether sessions are kept between changes."""


class Switch(Device):
    """A switch that SBF configures."""


class Edge(Device):
    """A provider edge that SBF configures: it puts a cluster's VLAN on one of its ports into a service of the backbone.

    ``loopback`` is the address by which the other edges know it; ``core_port`` its port towards the backbone, where
    service VLANs are made on one. Neither is ever changed.
    """

    loopback: IPvAnyAddress | None = None
    """The address by which other edges know this one."""
    core_port: PortName | None = None
    """The port towards the backbone."""


class Host(Element):
    """A machine that runs guests, converged by its own agent.

    ``admits`` says whose clusters have a part on it, ``images`` which images users may name who ask for themselves;
    without them it is as its site says.
    """

    hypervisors: tuple[Hypervisor, ...] = (Hypervisor.LXC,)
    """The libvirt drivers with which the host runs guests."""
    admits: AdmissionRule | None = None
    """Whose clusters may have a part on the host; null for the site's rule."""
    images: tuple[Name, ...] | None = None
    """Images that users may name themselves; null for the site's rule."""


class Gateway(Element):
    """A machine that lets users into their clusters, converged by its own agent."""


ELEMENT_KINDS: tuple[tuple[type[Element], ElementKind], ...] = (
    (Switch, ElementKind.SWITCH),
    (Edge, ElementKind.EDGE),
    (Host, ElementKind.HOST),
    (Gateway, ElementKind.GATEWAY),
)


def kind_of(element: Element) -> ElementKind:
    """Say which kind an element is."""
    return next(kind for made, kind in ELEMENT_KINDS if isinstance(element, made))


def find_duplicates(values: Iterable[T]) -> list[T]:
    """Give what is there more than once."""
    return [value for value, times in Counter(values).items() if times > 1]


def _aggregate_faults(element: Element) -> Iterator[BadInput]:
    for port in element.aggregates.keys() - set(element.ports):
        yield BadInput(
            f"aggregate {element.name}:{port}: expected a port of {element.name} ({', '.join(element.ports)})"
        )
    members = [member for members in element.aggregates.values() for member in members]
    for member in find_duplicates(members):
        yield BadInput(f"port {element.name}:{member}: expected it once in one aggregate, got it twice")
    for member in set(members) & set(element.ports):
        yield BadInput(f"port {element.name}:{member}: expected no member of an aggregate among the managed ports")
