"""Elements (switches, provider edges, hosts, gateways) and their ports."""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cache
from typing import Annotated, Self, TypeVar

from pydantic import Field, IPvAnyAddress, model_validator

from virtcloud.model.access import AdmissionRule
from virtcloud.model.document import OMIT_NONE, PlainDocument
from virtcloud.model.errors import BadInput
from virtcloud.model.gateway_access import OutsideLink
from virtcloud.model.nfs import NfsListener
from virtcloud.model.ssh_access import SshListener
from virtcloud.model.values import DeviceAddress, Name, PortName, UnicodeText
from virtcloud.model.vpn import VpnListener

T = TypeVar("T")


class ElementKind(StrEnum):
    """The kinds of elements."""

    SWITCH = "switch"
    EDGE = "edge"
    HOST = "host"
    GATEWAY = "gateway"


class Hypervisor(StrEnum):
    """The hypervisors of hosts, named like libvirt's drivers."""

    LXC = "lxc"
    QEMU = "qemu"


class Element(PlainDocument):
    """A system that SBF or an agent configures, with its managed ports.

    A port may be the interface of a link aggregate (``Port-channel1``, ``bond0``). For such a port, ``aggregates``
    lists the member ports of the aggregate. Cables are connected to the member ports. Member ports are never managed
    themselves.
    """

    name: Name
    ports: Annotated[tuple[PortName, ...], Field(min_length=1)]
    """The managed ports."""
    aggregates: dict[PortName, Annotated[tuple[PortName, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """The member ports of each link aggregate."""

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        for port in find_duplicates(self.ports):
            raise BadInput(f"expected each port of {self.name} once, got {port} twice")
        for fault in _aggregate_faults(self):
            raise fault
        return self

    def members(self, port: PortName) -> tuple[PortName, ...]:
        """Return the ports to which the cables of ``port`` are connected.

        These ports are the member ports if ``port`` is the interface of a link aggregate, otherwise only ``port``.
        """
        return self.aggregates.get(port, (port,))


class Device(Element):
    """An element that SBF configures itself: a switch or a provider edge.

    ``credential`` is the name of an entry in the service's settings, because a topology contains no secrets. If
    ``keep_session`` is true, each replica of the service keeps a session with the device open. If ``keep_session`` is
    false, a replica opens a session for each use of the device, and ends the session after this use. In this mode, all
    replicas together have at most one session at a time, because some devices allow few sessions.
    """

    platform: UnicodeText
    """The name of the driver; `docs/reference/platforms.md` lists the names."""
    address: DeviceAddress | None = None
    """The address of the management interface: host or host:port."""
    credential: Name | None = None
    """The name of a credential in the service's settings."""
    keep_session: bool = True
    """Whether sessions stay open between uses of the device."""


class Switch(Device):
    """A switch that SBF configures."""


class Edge(Device):
    """A provider edge. SBF binds a cluster's VLAN on a port of the edge to a service of the backbone.

    Administrators configure the loopback address, and the service VLANs on ``core_port``. SBF does not change these
    settings.
    """

    loopback: IPvAnyAddress | None = None
    """The address by which other edges reach this edge."""
    core_port: PortName | None = None
    """The port towards the backbone."""


class Host(Element):
    """A computer that runs guests. The agent on the host reconciles the host."""

    hypervisors: tuple[Hypervisor, ...] = (Hypervisor.LXC,)
    """The libvirt drivers with which the host runs guests."""
    admits: AdmissionRule | None = None
    """The admission rule of the host; null: the site's rule applies."""
    images: tuple[Name, ...] | None = None
    """Images that users may choose for guests; null: the site's list applies. For clusters of batch jobs, the list does
    not apply."""
    open_filters: bool | None = None
    """Whether the host runs guests of clusters with open filters; null: the site's value applies."""


class Gateway(Element):
    """A computer through which users reach their clusters. The agent on the gateway reconciles the gateway."""

    vpn: Annotated[VpnListener | None, OMIT_NONE] = None
    """The gateway's OpenVPN servers; null: none."""
    outside: Annotated[OutsideLink | None, OMIT_NONE] = None
    """The gateway's link to the outside, through which guests reach destinations; null: none."""
    nfs: Annotated[NfsListener | None, OMIT_NONE] = None
    """The gateway's file server for clusters that ask for the service `nfs`; null: none."""
    ssh: Annotated[SshListener | None, OMIT_NONE] = None
    """The gateway's sshd, through which users reach guests; null: none."""

    @model_validator(mode="after")
    def _check_published_ports(self) -> Self:
        ports = self.outside.publish_ports if self.outside is not None else None
        own = (*(self.vpn.ports.values() if self.vpn else ()), *((self.ssh.port,) if self.ssh else ()))
        for port in own:
            if ports is not None and port in ports.ports:
                raise BadInput(
                    f"gateway {self.name}: expected `publish_ports` without the ports of its own servers, got {ports}, "
                    f"which contains {port}",
                    ("outside", "publish_ports"),
                )
        return self


ELEMENT_KINDS: tuple[tuple[type[Element], ElementKind], ...] = (
    (Switch, ElementKind.SWITCH),
    (Edge, ElementKind.EDGE),
    (Host, ElementKind.HOST),
    (Gateway, ElementKind.GATEWAY),
)


def kind_of(element: Element) -> ElementKind:
    """Return the kind of an element, derived from its class."""
    return _kind_of_class(type(element))


@cache
def _kind_of_class(element_class: type[Element]) -> ElementKind:
    return next(kind for known_class, kind in ELEMENT_KINDS if issubclass(element_class, known_class))


def find_duplicates(values: Sequence[T]) -> list[T]:
    """Return the values that occur more than once."""
    if len(set(values)) == len(values):
        return []  # comparing the lengths is many times faster than counting
    return [value for value, times in Counter(values).items() if times > 1]


def _aggregate_faults(element: Element) -> Iterator[BadInput]:
    if not element.aggregates:
        return  # the usual case; a topology can have thousands of elements
    for port in element.aggregates.keys() - set(element.ports):
        yield BadInput(
            f"aggregate {element.name}:{port}: expected a port of {element.name} ({', '.join(element.ports)})"
        )
    members = [member for members in element.aggregates.values() for member in members]
    for member in find_duplicates(members):
        yield BadInput(f"port {element.name}:{member}: expected at most one use as a member of an aggregate, got two")
    for member in set(members) & set(element.ports):
        yield BadInput(f"port {element.name}:{member}: expected no member of an aggregate among the managed ports")
