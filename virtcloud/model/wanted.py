"""Wanted and observed states of switches and hosts, and the difference between them (DESIGN.md §3).

``virtcloud.model.edge`` defines these states and the difference for provider edges.
"""

from typing import Self

from pydantic import Field, model_validator

from virtcloud.model.access import ClusterOrigin
from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput
from virtcloud.model.port_use import PortUse
from virtcloud.model.values import Address, ClusterKey, Mac, Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet

PortVlans = dict[PortName, VlanSet]


class SwitchWanted(Document):
    """The wanted state of a switch within the managed scope: the VLANs on each managed port.

    A port that is not a key of ``ports`` is not managed. The VLANs on the ports are those that must exist on the
    switch. Ports carry VLANs tagged. A port in ``access`` carries at most one VLAN, untagged. Without a cluster, an
    access port is in no VLAN.
    """

    ports: dict[PortName, VlanSet]
    access: tuple[PortName, ...] = ()

    @model_validator(mode="after")
    def _one_on_an_access_port(self) -> Self:
        for port in self.access:
            if len(self.ports[port]) > 1:
                raise BadInput(f"access port {port}: expected one VLAN at most, got {self.ports[port]}")
        return self

    @property
    def vlans(self) -> VlanSet:
        """Every VLAN on any port."""
        return VlanSet(number for carried in self.ports.values() for number in carried)


class ForeignVlan(Document):
    """A VLAN ID of the pool that a device uses for something other than clusters.

    SBF never creates, deletes or renames such a VLAN.

    ``name`` is the VLAN's name, if SBF did not create the VLAN and the device shows names. ``ports`` are the unmanaged
    ports that carry it. Without name and ports, the VLAN existed before SBF would have created it.
    """

    vlan: VlanId
    name: str | None = None
    ports: tuple[PortName, ...] = ()

    @property
    def use(self) -> str:
        """The evidence of the use, as text for messages."""
        named = None if self.name is None else f"it is named {self.name!r}"
        ports = f"unmanaged port{'s' * (len(self.ports) > 1)} {', '.join(self.ports)}" if self.ports else None
        evidence = " and ".join(one for one in (named, ports and f"it is on {ports}") if one)
        return evidence or "it exists and SBF did not create it"


class SwitchObserved(Document):
    """The observed state of a switch: managed VLAN IDs on managed ports. ``vlans`` are those that exist on it.

    ``open`` are managed ports without an allowed-VLAN list: they carry every existing VLAN, or would if the neighbour
    requested it. In ``ports`` they have no VLANs, because SBF allowed none on them. An access port is open unless it
    is untagged in one managed VLAN or in no VLAN; an open access port may be in the switch's default VLAN, for example.

    ``names`` maps the existing VLANs to their names (None if the device shows no names). ``names`` is None for a device
    without a VLAN table, where a VLAN exists if a port carries it. ``elsewhere`` are the managed VLAN IDs on unmanaged
    ports. It omits trunks that carry every VLAN, because these indicate no use of a particular VLAN. ``foreign`` is
    derived from ``names`` and ``elsewhere`` (``sbf_service/domain/ownership.py``); neither ``vlans`` nor ``ports``
    includes foreign VLANs.

    ``untaken`` are the uses of ports that SBF has not configured yet, and ``in_use`` are the ports among them with
    another use. ``down`` are ports that were shut down. ``astray`` maps the ports that SBF released, and whose former
    use is not restored yet, to that use.
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
        return VlanSet(one.vlan for one in self.foreign)


class SwitchDifference(Document):
    """The changes of a switch.

    On each port, VLANs are removed before others are added. A VLAN is created before it is added to a port.

    ``close`` is applied before everything else: these ports get an empty allowed-VLAN list (DESIGN.md §7.4). ``access``
    are the access ports among the ports of this difference: their VLANs are untagged, and to close an access port is to
    remove it from all VLANs. ``take`` maps the ports that SBF configures for the first time to their former uses.
    ``put_back`` is applied last: it maps the ports that SBF released to the uses to restore.
    """

    access: tuple[PortName, ...] = ()
    """Access ports among the ports of this difference."""
    close: tuple[PortName, ...] = ()
    """Ports that first get an empty list or are removed from all VLANs."""
    create: VlanSet = VlanSet()
    delete: VlanSet = VlanSet()
    add: PortVlans = Field(default_factory=dict)
    """VLANs to add to each port."""
    remove: PortVlans = Field(default_factory=dict)
    """VLANs to remove from each port."""
    take: dict[PortName, PortUse] = Field(default_factory=dict)
    """Ports that SBF configures for the first time, each with its former use."""
    put_back: dict[PortName, PortUse] = Field(default_factory=dict)
    """Ports that SBF released, each with the use to restore."""

    @property
    def vlan_ids(self) -> VlanSet:
        """Every VLAN ID that this difference changes."""
        on_ports = (vlans for ports in (self.add, self.remove) for vlans in ports.values())
        return VlanSet(number for vlans in (self.create, self.delete, *on_ports) for number in vlans)

    @property
    def added_vlan_ids(self) -> VlanSet:
        """Every VLAN ID that this difference creates or adds to a port. After the change, SBF owns these VLANs."""
        return VlanSet(number for vlans in (self.create, *self.add.values()) for number in vlans)

    def __bool__(self) -> bool:
        """Return whether there is anything to change."""
        return any((self.close, self.create, self.delete, self.add, self.remove, self.put_back))


def compare_switch(wanted: SwitchWanted, carried: SwitchObserved) -> SwitchDifference:
    """Return the difference between a switch's observed and wanted states. VLANs in other use are added to no port.

    The difference contains no unmanaged ports. Open ports are closed if the switch shall carry any VLAN, because they
    would carry every VLAN created for another port. An open access port is always closed: without a cluster it is in no
    VLAN.
    """
    seen = {port: carried.ports.get(port, VlanSet()) for port in wanted.ports}
    close = sorted(port for port in carried.open if port in wanted.ports and (wanted.vlans or port in wanted.access))
    add = _without_empty({port: vlans - seen[port] - carried.foreign_vlans for port, vlans in wanted.ports.items()})
    remove = _without_empty({port: seen[port] - vlans for port, vlans in wanted.ports.items()})
    return SwitchDifference(
        access=tuple(sorted({*close, *add, *remove} & set(wanted.access))),
        close=tuple(close),
        create=wanted.vlans - carried.vlans - carried.foreign_vlans,
        delete=carried.vlans - wanted.vlans - carried.foreign_vlans,
        add=add,
        remove=remove,
        take={port: use for port, use in carried.untaken.items() if port in {*close, *add, *remove}},
        put_back=carried.astray,
    )


def find_blocked_vlans(wanted: SwitchWanted, carried: SwitchObserved) -> VlanSet:
    """Return the wanted VLAN IDs that are missing on a port and cannot be set up because they are in other use."""
    lacking = (vlans - carried.ports.get(port, VlanSet()) for port, vlans in wanted.ports.items())
    return carried.foreign_vlans & [number for vlans in lacking for number in vlans]


def _without_empty(ports: dict[PortName, VlanSet]) -> dict[PortName, VlanSet]:
    return {port: vlans for port, vlans in sorted(ports.items()) if vlans}


class GuestWanted(Document):
    """A guest that a host must run. Memory is in MiB. ``cluster`` is the id of the member that owns the guest."""

    name: Name
    image: Name
    memory_mb: int
    """Memory in MiB."""
    cpus: int
    """Number of virtual processors."""
    mac: Mac
    addresses: tuple[Address, ...] = ()
    """Addresses of `eth0`, each with its prefix length."""
    cluster: str | None = None
    """Id of the member that the guest belongs to; null for the network's own cluster."""


class Segment(Document):
    """A network's part on a host or gateway: its VLAN on a port, and the guests of its cluster and members there.

    An agent ignores unknown keys, and rejects a segment that requires an unknown capability (docs/decisions/0040).
    """

    id: str
    """Id of the network's cluster. It distinguishes successive clusters with the same key."""
    key: ClusterKey
    vlan: VlanId
    """The VLAN ID on the port. If the segment is untagged, only the switch uses it."""
    port: PortName
    untagged: bool = False
    """Whether the segment is untagged and the only segment on the port."""
    guests: tuple[GuestWanted, ...] = ()
    """The guests of the network's cluster and of its members on this host."""
    members: dict[str, ClusterKey] = Field(default_factory=dict)
    """Keys of the clusters that joined the network and have a part on this host, by their ids."""
    origins: dict[str, ClusterOrigin] = Field(default_factory=dict)
    """Owner of each cluster, by its id, and whether a batch system requested it; empty from an SBF of version 0.1."""
    requires: tuple[str, ...] = ()
    """Capabilities that an agent needs to set up the segment. An agent without one of them refuses it."""


class HostWanted(Document):
    """The wanted state of a host or gateway: one segment for each network."""

    segments: tuple[Segment, ...] = ()
    """One segment for each network."""


class WantedDocument(Document):
    """The document that an agent fetches: the wanted state and its revision."""

    element: Name
    revision: int
    """The revision of this document."""
    confirmed_revision: int
    """The latest revision that the element confirmed."""
    wanted: HostWanted
    """The wanted state of the element."""
