"""What one look at a device is about, read from the database in one transaction."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic

from sbf_service.converge.edges import EDGES
from sbf_service.converge.kind import C, D, Kind, M, Spoken, W
from sbf_service.converge.switches import SWITCHES
from sbf_service.drivers.edge import Backbone
from sbf_service.store.carried import carried_items, saved_items
from sbf_service.store.elements import kept_by, target_of
from sbf_service.store.pools import cluster_keys
from sbf_service.store.ports import leaving_switch
from sbf_service.store.reading import read_topology
from sbf_service.store.revisions import element_row
from sbf_service.store.saves import may_save
from sbf_service.store.session import Store, Unit
from sbf_service.store.tables import ElementRow
from virtcloud.model.element import Device, ElementKind, Switch, kind_of
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchWanted

KINDS: Mapping[ElementKind, Kind[Any, Any, Any, Any]] = {one.element: one for one in (SWITCHES, EDGES)}


@dataclass(frozen=True, slots=True)
class Task(Generic[W, M, C, D]):
    """A device, what it must carry and may be touched of it, and under which fencing number.

    ``kept`` is what it was confirmed to carry already, of what is wanted. ``saved`` is what its startup configuration
    was last verified to have, ``unsaved`` that it may be another one since, ``may_save`` that no failed save asks for a
    pause.
    """

    kind: Kind[W, M, C, D]
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

    def read(self, driver: Spoken[M, C, D]) -> C:
        """Read the device, with what is in other use there."""
        return self.kind.judge(self.managed, driver.read(self.managed))

    def is_saved(self, carried: C) -> bool:
        """Return whether the startup configuration has what the device carries, as far as the database knows."""
        return not self.unsaved and carried_items(carried) == self.saved

    @property
    def name(self) -> Name:
        """The device's name."""
        return self.device.name

    @property
    def change(self) -> str:
        """The event of a change to this device, in the audit and in the log."""
        return f"{self.kind.element}_change"


def read_task(store: Store, name: Name, fence: int) -> Task[Any, Any, Any, Any]:
    """Read it all in one snapshot. Raises NotFound."""
    with store.read() as unit:
        return task_in(unit, name, fence)


def task_in(unit: Unit, name: Name, fence: int) -> Task[Any, Any, Any, Any]:
    """Return a device's task as this unit of work sees the database. Raises NotFound."""
    row = element_row(unit, name)
    if (left := leaving_switch(row)) is not None:
        return _leaving_task(unit, row, left, fence)
    target, topology = target_of(unit, name), read_topology(unit)
    device, site = topology.element(name), topology.site_of[name].name
    kind = KINDS.get(kind_of(device))
    if kind is None or not isinstance(device, Device):
        raise TypeError(f"{name} is no device that SBF configures itself")
    return Task(
        kind=kind,
        device=device,
        site=site,
        fence=fence,
        revision=target.revision,
        confirmed=target.confirmed,
        wanted=target.wanted,
        kept=kept_by(unit, name),
        managed=kind.managed(unit, device, site, target.wanted),
        backbone=kind.backbone(unit, name),
        users=cluster_keys(unit, site),
        saved=saved_items(row),
        unsaved=row.unsaved_since is not None,
        may_save=may_save(unit, row),
    )


def _leaving_task(unit: Unit, row: ElementRow, switch: Switch, fence: int) -> Task[Any, Any, Any, Any]:
    """Return the task of a switch that left the topology: its ports are put back, and nothing else is touched."""
    nothing = SwitchWanted(ports={})
    managed = SWITCHES.managed(unit, switch, Name(row.site), nothing)
    return Task(
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
        saved=saved_items(row),
        unsaved=row.unsaved_since is not None,
        may_save=may_save(unit, row),
    )
