"""The driver contract of provider edges: as for switches (``driver.py``), with circuits instead of VLANs on ports."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sbf_service.drivers.driver import Login
from virtcloud.model.edge import EdgeCarried, EdgeDifference
from virtcloud.model.transport import Transport, TransportKind
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet


@dataclass(frozen=True, slots=True)
class ManagedEdge:
    """What may be touched on an edge: these numbers on these ports, and of these transports' services those within.

    All else is left as it is: a service outside, or a managed service joined to what is not managed, is not ours.
    ``created`` are the numbers that SBF recorded as its own on this edge.
    """

    ports: tuple[PortName, ...]
    vlans: VlanSet
    transports: tuple[Transport, ...]
    created: VlanSet = field(default_factory=VlanSet)


@dataclass(frozen=True, slots=True)
class EdgeFacts:
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

    def read(self, managed: ManagedEdge) -> EdgeCarried:
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

    facts: EdgeFacts
    driver: Callable[[Login, Backbone], EdgeDriver]
