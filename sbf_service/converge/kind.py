"""What tells one kind of device from another while it is converged; all else is the same (DESIGN.md §3)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sbf_service.drivers.driver import Managed
from sbf_service.drivers.edge import Backbone, ManagedEdge
from sbf_service.store.session import Unit
from virtcloud.model.device import DeviceCarried, DeviceDifference
from virtcloud.model.edge import EdgeWanted
from virtcloud.model.element import Device, ElementKind
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchWanted

W = TypeVar("W", bound=SwitchWanted | EdgeWanted)
M = TypeVar("M", bound=Managed | ManagedEdge)
C = TypeVar("C", bound=DeviceCarried)
D = TypeVar("D", bound=DeviceDifference)
M_contra = TypeVar("M_contra", contravariant=True)
C_co = TypeVar("C_co", covariant=True)
D_contra = TypeVar("D_contra", contravariant=True)


class Spoken(Protocol[M_contra, C_co, D_contra]):
    """A driver, of whichever kind: ``drivers/driver.py`` and ``drivers/edge.py`` say what each must do."""

    def read(self, managed: M_contra) -> C_co:
        """Read what is carried of what is managed."""

    def apply(self, difference: D_contra) -> None:
        """Make a change."""

    def save(self) -> bool:
        """Make the running configuration the startup configuration. Return whether that was a step of its own."""

    def close(self) -> None:
        """End the session."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[W, M, C, D]):
    """A kind of device: its wanted set, and the pure decisions about it.

    ``managed`` reads what may be touched on a device of a site. ``backbone`` says what its driver must know of others.
    ``refuse_in_use`` guards what others use on the device. ``announced`` records what a change takes from others before
    the device is changed; it raises Unsafe when an adoption ended since ``managed`` was read. ``settled`` records what
    is known once the device was read as wanted.
    ``judge`` completes a reading with what is in other use. ``owning`` is what may be touched once a difference is
    recorded; ``owned`` are SBF's VLANs by a reading and the record; ``blocked`` are those that are in other use and
    wanted, and cannot be set up.
    """

    element: ElementKind
    wanted: type[W]
    difference: Callable[[W, C], D]
    judge: Callable[[M, C], C]
    owning: Callable[[M, D], M]
    owned: Callable[[M, W, C], VlanSet]
    blocked: Callable[[W, C], VlanSet]
    refuse_outside: Callable[[Name, M, D], None]
    refuse_in_use: Callable[[Name, M, C, D], None]
    refuse_foreign: Callable[[Name, M, C, D], None]
    refuse_leftover: Callable[[Name, W, C], None]
    has_drifted: Callable[[W, C, bool], bool]
    managed: Callable[[Unit, Device, Name, W], M]
    backbone: Callable[[Unit, Name], Backbone | None]
    announced: Callable[[Unit, Name, M, D], None]
    settled: Callable[[Unit, Name, M, C], None]
