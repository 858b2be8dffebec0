"""What tells one kind of device from another while it is converged; all else is the same (DESIGN.md §3).

Switches, as a kind of device.

Provider edges, as a kind of device.

What one look at a device is about, read from the database in one transaction.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from sbf_service.domain.ownership import find_owned_vlans, mark_foreign_vlans
from sbf_service.domain.wanted import find_edge_peers
from sbf_service.drivers.contract import Backbone, EdgeScope, SwitchScope
from sbf_service.reconcile.read_back import (
    check_edge_ownership,
    check_edge_read_back,
    check_edge_scope,
    check_ports_not_in_use,
    check_switch_ownership,
    check_switch_read_back,
    check_switch_scope,
    has_edge_drifted,
    has_switch_drifted,
)
from sbf_service.store.elements import read_confirmed_state, read_wanted_revision
from sbf_service.store.observed_state import (
    is_save_allowed,
    list_observed_items,
    list_saved_items,
    read_edge_transports,
)
from sbf_service.store.pools import read_cluster_keys, read_managed_vlans
from sbf_service.store.ports import parse_removed_switch, read_port_records, record_change, record_reading
from sbf_service.store.revisions import require_element
from sbf_service.store.tables import ElementRow
from sbf_service.store.unit_of_work import Store, Unit, read_topology
from sbf_service.store.vlan_ownership import read_created_vlans
from virtcloud.model.edge import (
    DeviceDifference,
    DeviceObserved,
    EdgeDifference,
    EdgeObserved,
    EdgeWanted,
    compare_edge,
    find_blocked_circuits,
)
from virtcloud.model.element import Device, ElementKind, Switch, kind_of
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference, SwitchObserved, SwitchWanted, compare_switch, find_blocked_vlans

W = TypeVar("W", bound=SwitchWanted | EdgeWanted)
M = TypeVar("M", bound=SwitchScope | EdgeScope)
C = TypeVar("C", bound=DeviceObserved)
D = TypeVar("D", bound=DeviceDifference)
M_contra = TypeVar("M_contra", contravariant=True)
C_co = TypeVar("C_co", covariant=True)
D_contra = TypeVar("D_contra", contravariant=True)


class ReconcilableDriver(Protocol[M_contra, C_co, D_contra]):
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
class DeviceKind(Generic[W, M, C, D]):
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


def _managed_switch(unit: Unit, device: Device, site: Name, wanted: SwitchWanted) -> SwitchScope:
    aggregates = device.aggregates if isinstance(device, Switch) else {}
    ports = read_port_records(unit, device.name)
    returned = {port: one.before for port, one in ports.items() if one.is_returned(wanted) and one.before is not None}
    return SwitchScope(
        ports=tuple(port for port in device.ports if port not in returned),
        vlans=read_managed_vlans(unit, site),
        access=tuple(port for port in wanted.access if port not in returned),
        taken=frozenset(port for port, one in ports.items() if one.taken),
        adopted={port: one.before for port, one in ports.items() if one.before is not None},
        returned=returned,
        members=tuple(member for members in aggregates.values() for member in members),
        created=read_created_vlans(unit, device.name),
        shut=frozenset(port for port, one in ports.items() if one.shut),
    )


def _with_created_on_switch(managed: SwitchScope, difference: SwitchDifference) -> SwitchScope:
    return replace(managed, created=managed.created | difference.added_vlan_ids)


def _owned_on_switch(managed: SwitchScope, wanted: SwitchWanted, carried: SwitchObserved) -> VlanSet:
    on_ports = VlanSet(number for vlans in carried.ports.values() for number in vlans)
    return find_owned_vlans(carried, managed.created) | (managed.created & (wanted.vlans | on_ports))


SWITCHES: DeviceKind[SwitchWanted, SwitchScope, SwitchObserved, SwitchDifference] = DeviceKind(
    ElementKind.SWITCH,
    SwitchWanted,
    compare_switch,
    judge=lambda managed, carried: mark_foreign_vlans(carried, managed.created),
    owning=_with_created_on_switch,
    owned=_owned_on_switch,
    blocked=find_blocked_vlans,
    refuse_outside=check_switch_scope,
    refuse_in_use=check_ports_not_in_use,
    refuse_foreign=check_switch_ownership,
    refuse_leftover=check_switch_read_back,
    has_drifted=lambda kept, carried, behind: has_switch_drifted(kept, carried, behind=behind),
    managed=_managed_switch,
    backbone=lambda _unit, _name: None,
    announced=lambda unit, name, managed, difference: record_change(unit, name, managed.adopted, difference),
    settled=lambda unit, name, managed, carried: record_reading(unit, name, managed.returned, carried),
)


def _managed_edge(unit: Unit, device: Device, site: Name, _wanted: EdgeWanted) -> EdgeScope:
    transports = read_edge_transports(unit, read_topology(unit), device.name)
    return EdgeScope(device.ports, read_managed_vlans(unit, site), transports, read_created_vlans(unit, device.name))


def _with_created_on_edge(managed: EdgeScope, difference: EdgeDifference) -> EdgeScope:
    return replace(managed, created=managed.created | difference.added_vlan_ids)


def _owned_on_edge(managed: EdgeScope, wanted: EdgeWanted, carried: EdgeObserved) -> VlanSet:
    return VlanSet(one.vlan for one in carried.circuits) | (managed.created & wanted.vlans)


def _backbone(unit: Unit, name: Name) -> Backbone:
    topology = read_topology(unit)
    transports = read_edge_transports(unit, topology, name)
    return Backbone(transports, find_edge_peers(topology, name, transports))


EDGES: DeviceKind[EdgeWanted, EdgeScope, EdgeObserved, EdgeDifference] = DeviceKind(
    ElementKind.EDGE,
    EdgeWanted,
    compare_edge,
    judge=lambda _managed, carried: carried,
    owning=_with_created_on_edge,
    owned=_owned_on_edge,
    blocked=find_blocked_circuits,
    refuse_outside=check_edge_scope,
    refuse_in_use=lambda _name, _managed, _carried, _difference: None,
    refuse_foreign=check_edge_ownership,
    refuse_leftover=check_edge_read_back,
    has_drifted=lambda kept, carried, behind: has_edge_drifted(kept, carried, behind=behind),
    managed=_managed_edge,
    backbone=_backbone,
    announced=lambda _unit, _name, _managed, _difference: None,
    settled=lambda _unit, _name, _managed, _carried: None,
)


RECONCILED_KINDS: Mapping[ElementKind, DeviceKind[Any, Any, Any, Any]] = {one.element: one for one in (SWITCHES, EDGES)}


@dataclass(frozen=True, slots=True)
class ReconcileTask(Generic[W, M, C, D]):
    """A device, what it must carry and may be touched of it, and under which fencing number.

    ``kept`` is what it was confirmed to carry already, of what is wanted. ``saved`` is what its startup configuration
    was last verified to have, ``unsaved`` that it may be another one since, ``may_save`` that no failed save asks for a
    pause.
    """

    kind: DeviceKind[W, M, C, D]
    device: Device
    site: Name
    fence: int
    revision: int
    confirmed: int
    wanted: W
    kept: W
    managed: M
    backbone: Backbone | None
    users: Mapping[VlanId, str]
    saved: frozenset[object] = frozenset()
    unsaved: bool = False
    may_save: bool = True

    def read(self, driver: ReconcilableDriver[M, C, D]) -> C:
        """Read the device, with what is in other use there."""
        return self.kind.judge(self.managed, driver.read(self.managed))

    def is_saved(self, carried: C) -> bool:
        """Return whether the startup configuration has what the device carries, as far as the database knows."""
        return not self.unsaved and list_observed_items(carried) == self.saved

    @property
    def name(self) -> Name:
        """The device's name."""
        return self.device.name

    @property
    def change(self) -> str:
        """The event of a change to this device, in the audit and in the log."""
        return f"{self.kind.element}_change"


def read_task(store: Store, name: Name, fence: int) -> ReconcileTask[Any, Any, Any, Any]:
    """Read it all in one snapshot. Raises NotFound."""
    with store.read() as unit:
        return make_task(unit, name, fence)


def make_task(unit: Unit, name: Name, fence: int) -> ReconcileTask[Any, Any, Any, Any]:
    """Return a device's task as this unit of work sees the database. Raises NotFound."""
    row = require_element(unit, name)
    if (left := parse_removed_switch(row)) is not None:
        return _leaving_task(unit, row, left, fence)
    target, topology = read_wanted_revision(unit, name), read_topology(unit)
    device, site = topology.element(name), topology.site_of[name].name
    kind = RECONCILED_KINDS.get(kind_of(device))
    if kind is None or not isinstance(device, Device):
        raise TypeError(f"{name} is no device that SBF configures itself")
    return ReconcileTask(
        kind=kind,
        device=device,
        site=site,
        fence=fence,
        revision=target.revision,
        confirmed=target.confirmed,
        wanted=target.wanted,
        kept=read_confirmed_state(unit, name),
        managed=kind.managed(unit, device, site, target.wanted),
        backbone=kind.backbone(unit, name),
        users=read_cluster_keys(unit, site),
        saved=list_saved_items(row),
        unsaved=row.unsaved_since is not None,
        may_save=is_save_allowed(unit, row),
    )


def _leaving_task(unit: Unit, row: ElementRow, switch: Switch, fence: int) -> ReconcileTask[Any, Any, Any, Any]:
    """Return the task of a switch that left the topology: its ports are put back, and nothing else is touched."""
    nothing = SwitchWanted(ports={})
    managed = SWITCHES.managed(unit, switch, Name(row.site), nothing)
    return ReconcileTask(
        kind=SWITCHES,
        device=switch,
        site=Name(row.site),
        fence=fence,
        revision=row.wanted_revision,
        confirmed=row.confirmed_revision,
        wanted=nothing,
        kept=nothing,
        managed=replace(managed, ports=(), vlans=VlanSet(), access=()),
        backbone=None,
        users={},
        saved=list_saved_items(row),
        unsaved=row.unsaved_since is not None,
        may_save=is_save_allowed(unit, row),
    )
