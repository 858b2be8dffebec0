"""Switches, as a kind of device."""

from dataclasses import replace

from sbf_service.converge.kind import Kind
from sbf_service.converge.verdict import has_drifted, refuse_foreign, refuse_in_use, refuse_leftover, refuse_outside
from sbf_service.drivers.driver import Managed
from sbf_service.ownership import owned_vlans, with_foreign
from sbf_service.store.created_vlans import created_on
from sbf_service.store.pools import managed_vlans
from sbf_service.store.ports import port_records, record_change, record_reading
from sbf_service.store.session import Unit
from virtcloud.model.element import Device, ElementKind, Switch
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchCarried, SwitchDifference, SwitchWanted, blocked_vlans, switch_difference


def _managed(unit: Unit, device: Device, site: Name, wanted: SwitchWanted) -> Managed:
    aggregates = device.aggregates if isinstance(device, Switch) else {}
    ports = port_records(unit, device.name)
    returned = {port: one.before for port, one in ports.items() if one.is_returned(wanted) and one.before is not None}
    return Managed(
        ports=tuple(port for port in device.ports if port not in returned),
        vlans=managed_vlans(unit, site),
        access=tuple(port for port in wanted.access if port not in returned),
        taken=frozenset(port for port, one in ports.items() if one.taken),
        adopted={port: one.before for port, one in ports.items() if one.before is not None},
        returned=returned,
        members=tuple(member for members in aggregates.values() for member in members),
        created=created_on(unit, device.name),
        shut=frozenset(port for port, one in ports.items() if one.shut),
    )


def _owning(managed: Managed, difference: SwitchDifference) -> Managed:
    return replace(managed, created=managed.created | difference.made)


def _owned(managed: Managed, wanted: SwitchWanted, carried: SwitchCarried) -> VlanSet:
    on_ports = VlanSet(number for vlans in carried.ports.values() for number in vlans)
    return owned_vlans(carried, managed.created) | (managed.created & (wanted.vlans | on_ports))


SWITCHES: Kind[SwitchWanted, Managed, SwitchCarried, SwitchDifference] = Kind(
    ElementKind.SWITCH,
    SwitchWanted,
    switch_difference,
    judge=lambda managed, carried: with_foreign(carried, managed.created),
    owning=_owning,
    owned=_owned,
    blocked=blocked_vlans,
    refuse_outside=refuse_outside,
    refuse_in_use=refuse_in_use,
    refuse_foreign=refuse_foreign,
    refuse_leftover=refuse_leftover,
    has_drifted=lambda kept, carried, behind: has_drifted(kept, carried, behind=behind),
    managed=_managed,
    backbone=lambda _unit, _name: None,
    announced=lambda unit, name, managed, difference: record_change(unit, name, managed.adopted, difference),
    settled=lambda unit, name, managed, carried: record_reading(unit, name, managed.returned, carried),
)
