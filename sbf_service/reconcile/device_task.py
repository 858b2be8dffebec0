"""Base classes for the reconciliation of switches and edges: a task, a reading of the device's state, and a driver.

The conversations of :class:`TracedDriver` are spans of the reconciliation's trace.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

from sbf_service.drivers.contract import Backbone, EdgeScope, SwitchScope
from sbf_service.drivers.device_errors import ChangeFault
from sbf_service.reconcile import read_back
from sbf_service.store.observed_state import (
    list_observed_items,
)
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.call_context import CallContext
from virtcloud.model.edge import (
    DeviceDifference,
    DeviceObserved,
    EdgeWanted,
)
from virtcloud.model.element import Device, ElementKind
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import (
    SwitchWanted,
)
from virtcloud.tracing import child_span

DeviceScope = SwitchScope | EdgeScope
NO_VLANS = VlanSet()


class ReconcilableDriver(Protocol):
    """A driver of a switch or an edge, with the methods that workers use (``drivers/contract.py``)."""

    def read(self, scope: Any) -> Any:  # noqa: ANN401 - types of the device's kind
        """Return the observed state within ``scope``."""

    def apply(self, difference: Any) -> None:  # noqa: ANN401 - a type of the device's kind
        """Apply a difference to the running configuration."""

    def save(self) -> bool:
        """Copy the running configuration to the startup configuration.

        Return False if the device has no separate save step.
        """

    def close(self) -> None:
        """End the session with the device."""


@dataclass(frozen=True, slots=True)
class ReconcileTask(ABC):
    """A device, its wanted state, its scope, and the fencing token of its lease (``fence``).

    ``scope`` limits SBF's changes on the device. ``kept`` is the confirmed part of the wanted state. ``users`` contains
    the cluster key of each VLAN ID. ``saved`` contains the items that were in the startup configuration at the last
    check. ``unsaved`` is true when the running configuration may have changed after that check. ``may_save`` is false
    during the pause after a failed save. Of the VLAN IDs in ``held``, the device keeps what it carries, but sets up
    nothing more. ``postponed`` are the VLAN IDs of which the device lacks something. ``calls`` caused the changes since
    the confirmed revision.
    """

    kind: ClassVar[ElementKind]

    device: Device
    site: Name
    fence: int
    revision: int
    confirmed: int
    wanted: SwitchWanted | EdgeWanted
    kept: SwitchWanted | EdgeWanted
    scope: DeviceScope
    backbone: Backbone | None
    users: Mapping[VlanId, str]
    saved: frozenset[object] = frozenset()
    unsaved: bool = False
    may_save: bool = True
    held: VlanSet = NO_VLANS
    postponed: VlanSet = NO_VLANS
    calls: tuple[CallContext, ...] = ()

    @property
    def name(self) -> Name:
        """The device's name."""
        return self.device.name

    @property
    def change(self) -> str:
        """The name of the event that records a change of this device in the audit log and in the log."""
        return f"{self.kind}_change"

    @property
    def is_behind(self) -> bool:
        """Whether the device has not confirmed the wanted revision."""
        return self.confirmed < self.revision

    def read(self, driver: ReconcilableDriver) -> "DeviceReading":
        """Read the device, and compare the observed state with the wanted state."""
        return self.interpret(driver.read(self.scope))

    def with_created(self, vlans: VlanSet) -> Self:
        """Return a copy of the task in which ``vlans`` are recorded as created by SBF."""
        return replace(self, scope=replace(self.scope, created=self.scope.created | vlans))

    @abstractmethod
    def interpret(self, observed: Any) -> "DeviceReading":  # noqa: ANN401 - a type of the device's kind
        """Compare an observed state with the wanted state."""

    @staticmethod
    @abstractmethod
    def read_scope(unit: Unit, device: Device, site: Name, wanted: Any) -> Any:  # noqa: ANN401 - a type of the device's kind
        """Return the present scope, which limits SBF's changes on the device."""

    @staticmethod
    def read_backbone(_unit: Unit, _name: Name) -> Backbone | None:
        """Return the transports and the other edges, for the driver of an edge; None for switches."""
        return None

    def record_announced(self, unit: Unit, difference: Any) -> None:  # noqa: ANN401, B027 - nothing to record for edges
        """Record the ports that a change will take over, before the device receives the change.

        Raise Unsafe when an administrator has released an adopted port in the meantime.
        """

    def record_confirmed(self, unit: Unit, observed: Any) -> None:  # noqa: ANN401, B027 - nothing to record for edges
        """Record the ports whose former use is restored. Called after a reading that shows the wanted state."""


@dataclass(frozen=True)
class DeviceReading(ABC):
    """The observed state of a device, and the task that contains the wanted state."""

    task: ReconcileTask
    observed: DeviceObserved

    @cached_property
    @abstractmethod
    def difference(self) -> DeviceDifference:
        """The difference that has to be applied to the device."""

    @property
    def is_saved(self) -> bool:
        """Whether the startup configuration contains the observed state, as recorded in the database."""
        return not self.task.unsaved and list_observed_items(self.observed) == self.task.saved

    @property
    def has_drifted(self) -> bool:
        """Whether the device no longer carries its confirmed state."""
        shut = self._list_shut(self.task.kept)
        return read_back.has_drifted(self._compare(self.task.kept), shut, behind=self.task.is_behind)

    @property
    @abstractmethod
    def owned(self) -> VlanSet:
        """The VLAN IDs that belong to SBF, according to this reading and to the record of created VLANs."""

    @property
    @abstractmethod
    def blocked(self) -> VlanSet:
        """The wanted VLAN IDs that SBF cannot set up, because another user uses them."""

    def check_allowed(self) -> None:
        """Raise Unsafe for a difference that SBF must not apply."""
        self.check_scope()
        self.check_not_in_use()
        self.check_ownership()

    @abstractmethod
    def check_scope(self, scope: Any = None) -> None:  # noqa: ANN401 - a type of the device's kind
        """Raise Unsafe for a difference outside ``scope``; the default is the scope of the task."""

    def check_not_in_use(self) -> None:  # noqa: B027 - edges have no ports that others may use
        """Raise Unsafe for a difference that changes a port in other use."""

    @abstractmethod
    def check_ownership(self) -> None:
        """Raise Unsafe for a difference that touches a VLAN in other use."""

    def check_read_back(self) -> None:
        """Raise Refused if the device does not carry the wanted state."""
        read_back.check_read_back(self._prefix, self._list_shut(self.task.wanted), self._list_faults())

    @property
    @abstractmethod
    def _prefix(self) -> str: ...

    @abstractmethod
    def _compare(self, wanted: Any) -> DeviceDifference: ...  # noqa: ANN401 - a type of the device's kind

    @abstractmethod
    def _list_shut(self, wanted: Any) -> Iterator[ChangeFault]: ...  # noqa: ANN401 - a type of the device's kind

    @abstractmethod
    def _list_faults(self) -> Iterator[ChangeFault]: ...


@dataclass(frozen=True, slots=True)
class TracedDriver:
    """Passes each method on to ``inner``, within a span."""

    inner: ReconcilableDriver

    def read(self, scope: Any) -> Any:  # noqa: ANN401 - types of the device's kind
        """Return the observed state within ``scope``."""
        with child_span("device read"):
            return self.inner.read(scope)

    def apply(self, difference: Any) -> None:  # noqa: ANN401 - a type of the device's kind
        """Apply a difference to the running configuration."""
        with child_span("device apply"):
            self.inner.apply(difference)

    def save(self) -> bool:
        """Copy the running configuration to the startup configuration. Return False without a separate save step."""
        with child_span("device save"):
            return self.inner.save()

    def close(self) -> None:
        """End the session with the device."""
        self.inner.close()
