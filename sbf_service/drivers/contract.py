"""The driver contract: what is asked of every kind of switch (DESIGN.md §8).

The driver contract of provider edges: as for switches (``driver.py``), with circuits instead of VLANs on ports.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.transport.device_session import CancelScope
from sbf_service.secret_source import Secret
from virtcloud.model.edge import EdgeDifference, EdgeObserved
from virtcloud.model.element import Device
from virtcloud.model.port_use import PortUse
from virtcloud.model.transport import Transport, TransportKind
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference, SwitchObserved

D_contra = TypeVar("D_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class SwitchScope:
    """What may be touched on a switch: these ports, and on them these numbers. All else is left as it is.

    ``access`` are those of the ports on which numbers are untagged. ``members`` are the ports that aggregates among
    ``ports`` are made of. ``created`` are the numbers that SBF recorded as its own on this switch. ``taken`` are
    those that SBF has configured before, ``adopted`` those that an administrator gave to SBF although others used them,
    with that use. ``returned`` are ports that SBF gave up, with the use that they had before. ``shut`` are ports
    that SBF itself may have shut down.
    """

    ports: tuple[PortName, ...]
    vlans: VlanSet
    access: tuple[PortName, ...] = ()
    members: tuple[PortName, ...] = ()
    created: VlanSet = field(default_factory=VlanSet)
    taken: frozenset[PortName] = frozenset()
    adopted: Mapping[PortName, PortUse] = field(default_factory=dict)
    returned: Mapping[PortName, PortUse] = field(default_factory=dict)
    shut: frozenset[PortName] = frozenset()


@dataclass(frozen=True, slots=True)
class SwitchCapabilities:
    """What a platform can do, and which numbers it keeps for itself.

    ``atomic``: a difference is applied wholly or not at all. ``confirm_timer``: a change that is not confirmed is
    taken back by the device. ``translation``: a number may differ from port to port. ``access``: a port may carry a
    cluster untagged.
    """

    reserved: VlanSet = field(default_factory=VlanSet)
    atomic: bool = False
    confirm_timer: bool = False
    translation: bool = False
    access: bool = False


@dataclass(frozen=True, slots=True)
class DeviceLogin:
    """How to reach a device: what the topology says of it, who to be, how long to wait (seconds).

    ``enable`` is the password for the privileged mode where it is another one than the login's. With
    ``known_hosts`` only the host keys of that file are believed, with ``ca_file`` only its certificates.
    ``wire`` limits how long the connection is used.
    """

    device: Device
    username: str = ""
    key_file: Path | None = None
    password: Secret | None = None
    connect_timeout: float = 5
    read_timeout: float = 10
    enable: Secret | None = None
    known_hosts: Path | None = None
    ca_file: Path | None = None
    wire: CancelScope = field(default_factory=CancelScope, compare=False, repr=False)


class SwitchDriver(Protocol):
    """One switch. It raises Unreachable, Refused and Unsafe, nothing else, and is used by one thread at a time."""

    def read(self, managed: SwitchScope) -> SwitchObserved:
        """Read what the managed ports carry of the managed numbers, and what unmanaged ports do. Changes nothing.

        Raises Unsafe when the answer cannot be understood or a managed number is used in a way that is not ours.
        """

    def apply(self, difference: SwitchDifference) -> None:
        """Apply this change to the running configuration; may be repeated. What came of it is for :meth:`read` to say.

        Raises Refused for a line that was refused; other lines may have been obeyed.
        """

    def save(self) -> bool:
        """Make the running configuration the startup configuration; may be repeated.

        Returns False where that is no step of its own: an applied change is persistent, or no change outlives a
        restart. Raises Refused in the device's words unless the device printed that it saved.
        """

    def close(self) -> None:
        """End the session; may be repeated, and never raises."""


@runtime_checkable
class ListsCommands(Protocol[D_contra]):
    """A driver that can say beforehand what it would tell its device; for dry runs."""

    def lines(self, difference: D_contra) -> tuple[str, ...]:
        """Give the lines that :meth:`Driver.apply` would say, in order, from what :meth:`Driver.read` read last."""


@runtime_checkable
class ReadsNeighbours(Protocol):
    """A driver that can ask its switch for its neighbours (LLDP)."""

    def neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:
        """Read who is heard, on ``ports`` at least. Changes nothing; raises what :meth:`Driver.read` does."""


@dataclass(frozen=True, slots=True)
class SwitchPlatform:
    """A kind of switch: its facts, and how a driver for one of them is made. Making it connects to nothing.

    ``port`` gives the one form of a port's name, so that two forms can be compared.
    """

    facts: SwitchCapabilities
    driver: Callable[[DeviceLogin], SwitchDriver]
    port: Callable[[str], str] = str.strip


@dataclass(frozen=True, slots=True)
class EdgeScope:
    """What may be touched on an edge: these numbers on these ports, and of these transports' services those within.

    All else is left as it is: a service outside, or a managed service joined to what is not managed, is not ours.
    ``created`` are the numbers that SBF recorded as its own on this edge.
    """

    ports: tuple[PortName, ...]
    vlans: VlanSet
    transports: tuple[Transport, ...]
    created: VlanSet = field(default_factory=VlanSet)


@dataclass(frozen=True, slots=True)
class EdgeCapabilities:
    """What a platform can do, and which VLAN numbers it keeps for itself.

    ``atomic``: a difference is applied wholly or not at all. ``confirm_timer``: a change that is not confirmed is
    taken back by the device.
    """

    kinds: frozenset[TransportKind]
    reserved: VlanSet = field(default_factory=VlanSet)
    atomic: bool = False
    confirm_timer: bool = False


class EdgeDriver(Protocol):
    """One provider edge. It raises Unreachable, Refused and Unsafe, nothing else; one thread at a time uses it."""

    def read(self, managed: EdgeScope) -> EdgeObserved:
        """Read which managed circuits there are, and what is left of broken ones. Changes nothing.

        Raises Unsafe when the answer cannot be understood, or when something managed is used in a way that is not ours.
        """

    def apply(self, difference: EdgeDifference) -> None:
        """Make this change, in its order; may be repeated. What came of it is for :meth:`read` to say."""

    def save(self) -> bool:
        """Make the running configuration the startup configuration, as :meth:`driver.Driver.save` does."""

    def close(self) -> None:
        """End the session; may be repeated, and never raises."""


@dataclass(frozen=True, slots=True)
class Backbone:
    """What an edge must know beside itself: the transports it is on, and the loopbacks of the other edges on each."""

    transports: tuple[Transport, ...]
    peers: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class EdgePlatform:
    """A kind of provider edge. Making its driver connects to nothing."""

    facts: EdgeCapabilities
    driver: Callable[[DeviceLogin, Backbone], EdgeDriver]
