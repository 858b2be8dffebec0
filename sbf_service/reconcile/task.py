"""The tasks and readings of switches and of provider edges. The base classes are in ``device_task.py``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from sbf_service.domain.ownership import find_owned_vlans, mark_foreign_vlans
from sbf_service.domain.wanted import find_edge_peers, limit_edge, limit_switch
from sbf_service.drivers.contract import Backbone, EdgeScope, SwitchScope
from sbf_service.drivers.device_errors import ChangeFault
from sbf_service.reconcile import read_back
from sbf_service.reconcile.device_task import DeviceReading, ReconcileTask
from sbf_service.store.elements.elements import read_confirmed_state, read_unconfirmed_calls, read_wanted_revision
from sbf_service.store.elements.observed_state import is_save_allowed, list_saved_items, read_edge_transports
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.elements.unchecked_elements import read_held_vlans
from sbf_service.store.store import Store
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlans.pools import read_cluster_keys, read_managed_vlans
from sbf_service.store.vlans.ports import parse_removed_switch, read_port_records, record_change, record_reading
from sbf_service.store.vlans.vlan_ownership import read_created_vlans
from virtcloud.model.edge import EdgeDifference, EdgeObserved, EdgeWanted, compare_edge, find_blocked_circuits
from virtcloud.model.element import Device, ElementKind, Switch, kind_of
from virtcloud.model.switch_state import (
    SwitchDifference,
    SwitchObserved,
    SwitchWanted,
    compare_switch,
    find_blocked_vlans,
)
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import HostWanted


@dataclass(frozen=True, slots=True)
class SwitchTask(ReconcileTask):
    """The reconciliation task of a switch. The wanted state assigns VLANs to the managed ports."""

    kind = ElementKind.SWITCH

    wanted: SwitchWanted
    kept: SwitchWanted
    scope: SwitchScope

    def interpret(self, observed: SwitchObserved) -> "SwitchTaskReading":
        """Mark the VLANs in other use in ``observed``, and return a reading with the marked state.

        A held VLAN ID (``store/elements/unchecked_elements.py``) stays wanted only on ports that already carry it.
        """
        marked = mark_foreign_vlans(observed, self.scope.created, self.scope.known)
        wanted, postponed = limit_switch(self.wanted, marked, self.held)
        return SwitchTaskReading(replace(self, wanted=wanted, postponed=self.postponed | postponed), marked)

    @staticmethod
    def read_scope(unit: Unit, device: Device, site: Name, wanted: SwitchWanted) -> SwitchScope:
        """Return the ports and VLAN IDs that SBF may change, and the original uses of adopted ports."""
        aggregates = device.aggregates if isinstance(device, Switch) else {}
        records = read_port_records(unit, device.name)
        former_uses = {port: record.before for port, record in records.items() if record.before is not None}
        returned = {port: use for port, use in former_uses.items() if records[port].is_returned(wanted)}
        return SwitchScope(
            ports=tuple(port for port in device.ports if port not in returned),
            vlans=read_managed_vlans(unit, site),
            access=tuple(port for port in wanted.access if port not in returned),
            taken=frozenset(port for port, record in records.items() if record.taken),
            adopted=former_uses,
            returned=returned,
            members=tuple(member for members in aggregates.values() for member in members),
            created=read_created_vlans(unit, device.name),
            known=require_element(unit, device.name).known_vlans,
            shut=frozenset(port for port, record in records.items() if record.shut),
        )

    def record_announced(self, unit: Unit, difference: SwitchDifference) -> None:
        """Record the original uses of the ports that SBF will configure for the first time."""
        record_change(unit, self.name, self.scope.adopted, difference)

    def record_confirmed(self, unit: Unit, observed: SwitchObserved) -> None:
        """Record the ports whose original use is restored."""
        record_reading(unit, self.name, self.scope.returned, observed)


class SwitchTaskReading(DeviceReading):
    """A reading of a switch."""

    task: SwitchTask
    observed: SwitchObserved

    @cached_property
    def difference(self) -> SwitchDifference:
        """The changes that turn the switch's observed state into its wanted state."""
        return self._compare(self.task.wanted)

    @property
    def owned(self) -> VlanSet:
        """The VLAN IDs that belong to SBF on this switch.

        The name of an existing VLAN, or the record of created VLANs, shows that SBF created it. A recorded VLAN ID that
        is wanted or on a port belongs to SBF in any case.
        """
        created, known = self.task.scope.created, self.task.scope.known
        on_ports = VlanSet(vlan for vlans in self.observed.ports.values() for vlan in vlans)
        return find_owned_vlans(self.observed, created, known) | (created & (self.task.wanted.vlans | on_ports))

    @property
    def blocked(self) -> VlanSet:
        """The wanted VLAN IDs that are in other use on the switch."""
        return find_blocked_vlans(self.task.wanted, self.observed)

    def adds_only(self, wanted: SwitchWanted) -> bool:
        """Return whether ``wanted`` contains every VLAN that the difference adds to a port, with or without a tag."""
        untagged, ports = set(self.difference.access), self.difference.add.keys()
        return untagged & ports == set(wanted.access) & ports and all(
            vlans <= wanted.ports.get(port, VlanSet()) for port, vlans in self.difference.add.items()
        )

    def check_scope(self, scope: SwitchScope | None = None) -> None:
        """Raise Unsafe if the difference changes anything outside ``scope``."""
        read_back.check_switch_scope(self.task.name, scope or self.task.scope, self.difference)

    def check_not_in_use(self) -> None:
        """Raise Unsafe if the difference changes a port in other use."""
        read_back.check_ports_not_in_use(self.task.name, self.task.scope, self.observed, self.difference)

    def check_ownership(self) -> None:
        """Raise Unsafe if the difference changes a VLAN in other use."""
        read_back.check_switch_ownership(self.task.name, self.task.scope, self.observed, self.difference)

    @property
    def _prefix(self) -> str:
        return f"switch {self.task.name}, "

    def _compare(self, wanted: SwitchWanted) -> SwitchDifference:
        return compare_switch(wanted, self.observed)

    def _list_shut(self, wanted: SwitchWanted) -> Iterator[ChangeFault]:
        return read_back.list_shut_ports(wanted, self.observed)

    def _list_faults(self) -> Iterator[ChangeFault]:
        return read_back.list_switch_faults(self.difference)


@dataclass(frozen=True, slots=True)
class EdgeTask(ReconcileTask):
    """The reconciliation task of a provider edge. The wanted state binds VLANs on ports to services of transports."""

    kind = ElementKind.EDGE

    wanted: EdgeWanted
    kept: EdgeWanted
    scope: EdgeScope

    def interpret(self, observed: EdgeObserved) -> "EdgeTaskReading":
        """Return a reading with an observed state.

        A held VLAN ID (``store/elements/unchecked_elements.py``) stays wanted only in circuits that the edge already
        has.
        """
        wanted, postponed = limit_edge(self.wanted, observed, self.held)
        return EdgeTaskReading(replace(self, wanted=wanted, postponed=self.postponed | postponed), observed)

    @staticmethod
    def read_scope(unit: Unit, device: Device, site: Name, _wanted: EdgeWanted) -> EdgeScope:
        """Return the ports, VLAN IDs and transports that SBF may change."""
        transports = read_edge_transports(unit, read_topology(unit), device.name)
        vlans, created = read_managed_vlans(unit, site), read_created_vlans(unit, device.name)
        known = require_element(unit, device.name).known_vlans
        return EdgeScope(device.ports, vlans, transports, created, known)

    @staticmethod
    def read_backbone(unit: Unit, name: Name) -> Backbone:
        """Return the edge's transports, and the addresses of the other edges of each transport."""
        topology = read_topology(unit)
        transports = read_edge_transports(unit, topology, name)
        return Backbone(transports, find_edge_peers(topology, name, transports))


class EdgeTaskReading(DeviceReading):
    """A reading of a provider edge."""

    task: EdgeTask
    observed: EdgeObserved

    @cached_property
    def difference(self) -> EdgeDifference:
        """The changes that turn the edge's observed state into its wanted state."""
        return self._compare(self.task.wanted)

    @property
    def owned(self) -> VlanSet:
        """The VLAN IDs of all observed circuits, and the wanted VLAN IDs that SBF recorded as created."""
        on_edge = VlanSet(circuit.vlan for circuit in self.observed.circuits)
        return on_edge | (self.task.scope.created & self.task.wanted.vlans)

    @property
    def blocked(self) -> VlanSet:
        """The wanted VLAN IDs that are in other use on the edge."""
        return find_blocked_circuits(self.task.wanted, self.observed)

    def adds_only(self, wanted: EdgeWanted) -> bool:
        """Return whether ``wanted`` contains every circuit that the difference adds."""
        return set(self.difference.add) <= set(wanted.circuits)

    def check_scope(self, scope: EdgeScope | None = None) -> None:
        """Raise Unsafe if the difference changes anything outside ``scope``."""
        read_back.check_edge_scope(self.task.name, scope or self.task.scope, self.difference)

    def check_ownership(self) -> None:
        """Raise Unsafe if the difference changes a VLAN in other use, or deletes a circuit that is not SBF's."""
        read_back.check_edge_ownership(self.task.name, self.task.scope, self.observed, self.difference)

    @property
    def _prefix(self) -> str:
        return f"edge {self.task.name}: "

    def _compare(self, wanted: EdgeWanted) -> EdgeDifference:
        return compare_edge(wanted, self.observed)

    def _list_shut(self, wanted: EdgeWanted) -> Iterator[ChangeFault]:
        return read_back.list_shut_circuits(wanted, self.observed)

    def _list_faults(self) -> Iterator[ChangeFault]:
        return read_back.list_edge_faults(self.difference)


TASKS: Mapping[ElementKind, type[ReconcileTask]] = {task.kind: task for task in (SwitchTask, EdgeTask)}


def read_task(store: Store, name: Name, fence: int) -> ReconcileTask:
    """Return a device's task from one snapshot. Raise the errors of :func:`make_task`."""
    with store.read() as unit:
        return make_task(unit, name, fence)


def make_task(unit: Unit, name: Name, fence: int) -> ReconcileTask:
    """Return a device's task, read in the transaction of ``unit``.

    Raise NotFound for an unknown element. Raise TypeError for a host or gateway.
    """
    row = require_element(unit, name)
    if (removed := parse_removed_switch(row)) is not None:
        return _make_removed_task(unit, row, removed, fence)
    target, topology = read_wanted_revision(unit, name), read_topology(unit)
    device, site = topology.element(name), topology.site_of[name].name
    task, wanted, kept = TASKS.get(kind_of(device)), target.wanted, read_confirmed_state(unit, name, target)
    if task is None or not isinstance(device, Device) or isinstance(wanted, HostWanted) or isinstance(kept, HostWanted):
        raise TypeError(f"{name}: expected a switch or an edge, got another kind of element")
    return task(
        device=device,
        site=site,
        fence=fence,
        revision=target.revision,
        confirmed=target.confirmed,
        wanted=wanted,
        kept=kept,
        scope=task.read_scope(unit, device, site, wanted),
        backbone=task.read_backbone(unit, name),
        users=read_cluster_keys(unit, site),
        saved=list_saved_items(row),
        unsaved=row.unsaved_since is not None,
        may_save=is_save_allowed(unit, row),
        reachable=row.reachable,
        held=read_held_vlans(unit, site),
        calls=read_unconfirmed_calls(unit, name, target.confirmed),
        topology=unit.topology_version,
    )


def _make_removed_task(unit: Unit, row: ElementRow, switch: Switch, fence: int) -> SwitchTask:
    none = SwitchWanted(ports={})
    scope = SwitchTask.read_scope(unit, switch, Name(row.site), none)
    return SwitchTask(
        device=switch,
        site=Name(row.site),
        fence=fence,
        revision=row.wanted_revision,
        confirmed=row.confirmed_revision,
        wanted=none,
        kept=none,
        scope=replace(scope, ports=(), vlans=VlanSet(), access=()),
        backbone=None,
        users={},
        saved=list_saved_items(row),
        unsaved=row.unsaved_since is not None,
        may_save=is_save_allowed(unit, row),
        reachable=row.reachable,
    )
