"""Switches, as a kind of device."""

from sbf_service.converge.kind import Kind
from sbf_service.converge.verdict import has_drifted, refuse_leftover, refuse_outside
from sbf_service.drivers.driver import Managed
from sbf_service.store.pools import managed_vlans
from sbf_service.store.session import Unit
from virtcloud.model.element import Device, ElementKind
from virtcloud.model.values import Name
from virtcloud.model.wanted import SwitchCarried, SwitchDifference, SwitchWanted, switch_difference


def _managed(unit: Unit, device: Device, site: Name, wanted: SwitchWanted) -> Managed:
    return Managed(device.ports, managed_vlans(unit, site), wanted.access)


SWITCHES: Kind[SwitchWanted, Managed, SwitchCarried, SwitchDifference] = Kind(
    ElementKind.SWITCH,
    SwitchWanted,
    switch_difference,
    refuse_outside,
    refuse_leftover,
    has_drifted=lambda kept, carried, behind: has_drifted(kept, carried, behind=behind),
    managed=_managed,
    backbone=lambda _unit, _name: None,
)
