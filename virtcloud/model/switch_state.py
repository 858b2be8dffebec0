"""Wanted and observed states of switches, and their differences."""

import re
from typing import Self

from pydantic import Field, model_validator

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput
from virtcloud.model.port_use import PortUse
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet

PortVlans = dict[PortName, VlanSet]


class SwitchWanted(Document):
    """The wanted state of a switch within the managed scope: the VLANs on each managed port.

    The keys of ``ports`` are the managed ports. A VLAN must exist on the switch if a port carries the VLAN. A port in
    ``access`` carries at most one VLAN, untagged; without a cluster, this port is in no VLAN. All other ports carry
    VLANs tagged.
    """

    ports: dict[PortName, VlanSet]
    access: tuple[PortName, ...] = ()

    @model_validator(mode="after")
    def _check_access_ports(self) -> Self:
        for port in self.access:
            if len(self.ports[port]) > 1:
                raise BadInput(f"access port {port}: expected at most one VLAN, got VLAN {self.ports[port]}")
        return self

    @property
    def vlans(self) -> VlanSet:
        """The VLANs of all ports."""
        return VlanSet(vlan for vlans in self.ports.values() for vlan in vlans)


class ForeignVlan(Document):
    """A VLAN ID of the pool *in other use*: a device uses the VLAN ID for something other than clusters.

    SBF never changes such a VLAN. ``name`` is the VLAN's name on the device, or None if the device shows no name.
    ``ports`` are the unmanaged ports that carry the VLAN. If SBF owns a switch's VLAN, these ports are the only other
    use, and ``name`` is None. If ``name`` is None and ``ports`` is empty, the VLAN exists on the device, but SBF has no
    record of the VLAN's creation.
    """

    vlan: VlanId
    name: str | None = None
    ports: tuple[PortName, ...] = ()

    @property
    def use(self) -> str:
        """The evidence of the use, as text for messages."""
        named = None if self.name is None else f"it is named {self.name!r}{self._hint}"
        ports = f"unmanaged port{'s' * (len(self.ports) > 1)} {', '.join(self.ports)}" if self.ports else None
        evidence = " and ".join(text for text in (named, ports and f"it is on {ports}") if text)
        return evidence or "it exists and SBF did not create it"

    @property
    def _hint(self) -> str:
        """The remedy for a VLAN with a name of SBF's VLANs, which this SBF did not create."""
        if not re.fullmatch(rf"vc-{self.vlan}(-\d+)?", self.name or ""):
            return ""
        return (
            " like a cluster's VLAN, but this SBF did not create it (restore the database if it was lost; if nobody "
            "needs the VLAN, let SBF delete it: virtcloud element clean NAME --reason TEXT)"
        )


class SwitchObserved(Document):
    """The observed state of a switch: the managed VLAN IDs on managed ports.

    - ``vlans``: the managed VLANs that exist on the switch. ``ports``: the managed VLANs on each managed port.
    - ``open``: the managed ports that SBF must close (see :func:`compare_switch`). ``ports`` lists no VLANs for an open
      port. A trunk without an allowed-VLAN list is open, because it carries every existing VLAN. A port that becomes a
      trunk when its neighbour requests a trunk is open, too. An access port is not open if it is in no VLAN, or if it
      is untagged in one managed VLAN; otherwise, it is open.
    - ``names``: the names of existing VLANs; a name is None if the device shows no names. ``names`` is None for a
      device without a VLAN table. On these devices, a VLAN exists if a port carries the VLAN.
    - ``elsewhere``: the managed VLAN IDs on each unmanaged port, except trunks that carry every VLAN: such a trunk does
      not show that a particular VLAN is in use.
    - ``foreign``: the foreign VLANs. ``mark_foreign_vlans`` (``sbf_service/domain/ownership.py``) computes ``foreign``
      from ``names`` and ``elsewhere``. After this, ``vlans`` and ``ports`` contain no foreign VLAN that SBF does not
      own. Exception: a VLAN that SBF created and another program renamed stays in ``ports``.
    - ``untaken``: the managed ports that SBF has not configured yet, each with its present use. ``in_use``: the ports
      in ``untaken`` that serve something other than SBF's clusters.
    - ``down``: the managed ports that are shut down, except the access ports that SBF itself shut down.
    - ``astray``: the released ports whose original use SBF has not restored yet, each with its original use.
    """

    vlans: VlanSet
    ports: dict[PortName, VlanSet]
    open: tuple[PortName, ...] = ()
    names: dict[VlanId, str | None] | None = None
    elsewhere: dict[PortName, VlanSet] = Field(default_factory=dict)
    foreign: tuple[ForeignVlan, ...] = ()
    untaken: dict[PortName, PortUse] = Field(default_factory=dict)
    in_use: tuple[PortName, ...] = ()
    down: tuple[PortName, ...] = ()
    astray: dict[PortName, PortUse] = Field(default_factory=dict)

    @property
    def foreign_vlans(self) -> VlanSet:
        """The VLAN IDs in other use."""
        return VlanSet(vlan.vlan for vlan in self.foreign)


class SwitchDifference(Document):
    """The changes of a switch.

    ``close`` is applied first, and ``put_back`` last. On each port, VLANs are removed before other VLANs are added. A
    VLAN is created before it is added to a port. On access ports, VLANs are untagged.
    """

    access: tuple[PortName, ...] = ()
    """Access ports among the ports of this difference."""
    close: tuple[PortName, ...] = ()
    """Ports to close: a trunk gets an empty allowed-VLAN list, an access port is removed from all VLANs."""
    create: VlanSet = VlanSet()
    delete: VlanSet = VlanSet()
    add: PortVlans = Field(default_factory=dict)
    """VLANs to add to each port."""
    remove: PortVlans = Field(default_factory=dict)
    """VLANs to remove from each port."""
    take: dict[PortName, PortUse] = Field(default_factory=dict)
    """Ports that SBF configures for the first time, each with its original use."""
    put_back: dict[PortName, PortUse] = Field(default_factory=dict)
    """Ports that SBF released, each with the use to restore."""

    @property
    def vlan_ids(self) -> VlanSet:
        """Every VLAN ID that this difference changes."""
        on_ports = (vlans for ports in (self.add, self.remove) for vlans in ports.values())
        return VlanSet(vlan for vlans in (self.create, self.delete, *on_ports) for vlan in vlans)

    @property
    def added_vlan_ids(self) -> VlanSet:
        """Every VLAN ID that this difference creates or adds to a port. After the change, SBF owns these VLANs."""
        return VlanSet(vlan for vlans in (self.create, *self.add.values()) for vlan in vlans)

    def __bool__(self) -> bool:
        """Return whether there is anything to change."""
        return any((self.close, self.create, self.delete, self.add, self.remove, self.put_back))


def compare_switch(wanted: SwitchWanted, carried: SwitchObserved) -> SwitchDifference:
    """Return the difference between a switch's observed and wanted states. VLANs in other use are added to no port.

    Only ``put_back`` contains ports that are not managed: the released ports. If a VLAN is wanted on any port, open
    trunks are closed, because an open trunk would also carry this VLAN. Open access ports are always closed.
    """
    vlans, foreign = wanted.vlans, carried.foreign_vlans
    present = {port: carried.ports.get(port, VlanSet()) for port in wanted.ports}
    close = sorted(port for port in carried.open if port in wanted.ports and (vlans or port in wanted.access))
    add = _without_empty({port: vlans - present[port] - foreign for port, vlans in wanted.ports.items()})
    remove = _without_empty({port: present[port] - vlans for port, vlans in wanted.ports.items()})
    return SwitchDifference(
        access=tuple(sorted({*close, *add, *remove} & set(wanted.access))),
        close=tuple(close),
        create=vlans - carried.vlans - foreign,
        delete=carried.vlans - vlans - foreign,
        add=add,
        remove=remove,
        take={port: use for port, use in carried.untaken.items() if port in {*close, *add, *remove}},
        put_back=carried.astray,
    )


def find_blocked_vlans(wanted: SwitchWanted, carried: SwitchObserved) -> VlanSet:
    """Return the VLAN IDs in other use that are wanted on a port and missing there."""
    missing = (vlans - carried.ports.get(port, VlanSet()) for port, vlans in wanted.ports.items())
    return carried.foreign_vlans & [vlan for vlans in missing for vlan in vlans]


def _without_empty(ports: dict[PortName, VlanSet]) -> dict[PortName, VlanSet]:
    return {port: vlans for port, vlans in sorted(ports.items()) if vlans}
