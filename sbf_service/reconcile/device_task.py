"""Base classes for the reconciliation of switches and edges."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

from sbf_service.drivers.contract import Backbone, EdgeScope, SwitchScope
from sbf_service.drivers.device_errors import ChangeFault
from sbf_service.reconcile import read_back
from sbf_service.store.elements.observed_state import (
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
from virtcloud.model.switch_state import SwitchWanted
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.tracing import child_span

DeviceScope = SwitchScope | EdgeScope
NO_VLANS = VlanSet()


class ReconcilableDriver(Protocol):
    """The methods of a driver (``drivers/contract.py``) that workers use."""

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
    """A device, its wanted state, and the records that a reconciliation of the device needs.

    - ``fence``: the fencing token of the device's lease.
    - ``revision``, ``confirmed``: the wanted revision, and the last revision that the device confirmed.
    - ``kept``: the wanted state with only the clusters that the device has confirmed.
    - ``scope``: the ports and VLAN IDs that SBF may change on the device.
    - ``users``: for each VLAN ID that a cluster claimed at the site, the key of this cluster.
    - ``saved``: the last verified startup configuration of the device, as items of ``list_observed_items``.
    - ``unsaved``: whether the running configuration may have changed since SBF recorded ``saved``.
    - ``may_save``: false during the pause after a failed save.
    - ``reachable``: false if the last reading failed.
    - ``held``: VLAN IDs that SBF must not add to any port or circuit yet. Existing configuration stays.
    - ``postponed``: VLAN IDs in ``held`` that SBF omitted from the wanted state of some port or circuit.
    - ``calls``: the calls that caused the changes since the confirmed revision.
    - ``topology``: the version of the topology from which the task was read.
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
    reachable: bool = True
    held: VlanSet = NO_VLANS
    postponed: VlanSet = NO_VLANS
    calls: tuple[CallContext, ...] = ()
    topology: int | None = None

    @property
    def name(self) -> Name:
        """The device's name."""
        return self.device.name

    @property
    def change(self) -> str:
        """The name of a change's event in SBF's log and in the audit log: ``switch_change`` or ``edge_change``."""
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
        """Return the present value of ``scope``, read from the database."""

    @staticmethod
    def read_backbone(_unit: Unit, _name: Name) -> Backbone | None:
        """Return the transports of an edge, and the other edges of each transport; None for a switch."""
        return None

    def record_announced(self, unit: Unit, difference: Any) -> None:  # noqa: ANN401, B027 - nothing to record for edges
        """Record the ports that SBF will configure for the first time.

        Call this before the device receives the change. Raise Unsafe if an administrator has meanwhile released one of
        these ports.
        """

    def record_confirmed(self, unit: Unit, observed: Any) -> None:  # noqa: ANN401, B027 - nothing to record for edges
        """After a reading has shown the wanted state, record the ports whose original use is restored."""


@dataclass(frozen=True)
class DeviceReading(ABC):
    """The observed state of a device, and the task that contains the wanted state."""

    task: ReconcileTask
    observed: DeviceObserved

    @cached_property
    @abstractmethod
    def difference(self) -> DeviceDifference:
        """The changes that turn the observed state into the wanted state."""

    @property
    def is_saved(self) -> bool:
        """Whether, according to the database, the startup configuration contains the observed state."""
        return not self.task.unsaved and list_observed_items(self.observed) == self.task.saved

    @property
    def has_drifted(self) -> bool:
        """Whether the device has lost a part of its confirmed state, or was changed by anything other than SBF."""
        shut = self._list_shut(self.task.kept)
        return read_back.has_drifted(self._compare(self.task.kept), shut, behind=self.task.is_behind)

    @property
    @abstractmethod
    def owned(self) -> VlanSet:
        """The VLAN IDs that belong to SBF, according to this reading and the record of created VLANs."""

    @property
    @abstractmethod
    def blocked(self) -> VlanSet:
        """The wanted VLAN IDs that SBF cannot set up, because they are in other use on the device."""

    def check_allowed(self) -> None:
        """Raise Unsafe if SBF must not apply the difference."""
        self.check_scope()
        self.check_not_in_use()
        self.check_ownership()

    @abstractmethod
    def adds_only(self, wanted: Any) -> bool:  # noqa: ANN401 - a type of the device's kind
        """Return whether the wanted state ``wanted`` contains everything that the difference adds."""

    @abstractmethod
    def check_scope(self, scope: Any = None) -> None:  # noqa: ANN401 - a type of the device's kind
        """Raise Unsafe if the difference changes anything outside ``scope``. The default is the scope of the task."""

    def check_not_in_use(self) -> None:  # noqa: B027 - edges have no ports in other use
        """Raise Unsafe if the difference changes a port in other use."""

    @abstractmethod
    def check_ownership(self) -> None:
        """Raise Unsafe if the difference changes a VLAN in other use.

        Also raise Unsafe if the difference deletes a circuit that SBF cannot have created.
        """

    def check_read_back(self) -> None:
        """Raise Refused if the observed state is not the wanted state."""
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
    """Calls the driver ``inner``, each call except ``close`` within a span of the current trace."""

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
        """Copy the running configuration to the startup configuration."""
        with child_span("device save"):
            return self.inner.save()

    def close(self) -> None:
        """End the session with the device."""
        self.inner.close()
