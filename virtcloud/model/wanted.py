"""What an element must carry, what it carries, and the difference: the one mechanism of the system (DESIGN.md §3)."""

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
    """What a switch must carry, and carries, within what we manage: the VLANs on each managed port.

    A port that is not a key is not managed. The VLANs that must exist on the switch are those on its ports. They are
    tagged, but on ``access`` ports: those carry one cluster at most, untagged, and are in no VLAN at all without one.
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
    """A VLAN ID of the pool that a device uses for somebody else: it is never created, deleted, renamed or entered.

    ``name`` is the VLAN's name where SBF did not create it and the device shows names; ``ports`` are the unmanaged
    ports that carry it. With neither, the VLAN was there before SBF would have created it.
    """

    vlan: VlanId
    name: str | None = None
    ports: tuple[PortName, ...] = ()

    @property
    def use(self) -> str:
        """The evidence, as messages quote it."""
        named = None if self.name is None else f"it is named {self.name!r}"
        ports = f"unmanaged port{'s' * (len(self.ports) > 1)} {', '.join(self.ports)}" if self.ports else None
        told = " and ".join(one for one in (named, ports and f"it is on {ports}") if one)
        return told or "it exists and SBF did not create it"


class SwitchObserved(Document):
    """What a switch was seen to carry on managed ports, of managed numbers; ``vlans`` are those that exist on it.

    ``open`` are managed ports without a list of their own: they carry every VLAN there is, or would if their neighbour
    asked. In ``ports`` they stand as empty: nothing was ever allowed on them by us. An access port is open when it is
    anything but untagged in one managed number or in no VLAN: in the switch's default one, say.

    ``names`` are the names of the existing VLANs, None where the device shows none; the whole is None for a device
    without a table of VLANs, where a VLAN exists by the ports that carry it. ``elsewhere`` are the managed numbers on
    unmanaged ports, but for trunks that carry every VLAN: these are no statement about one. ``foreign`` follows from
    both (``domain/ownership.py``); what is foreign and not SBF's own stands neither in ``vlans`` nor in ``ports``.

    ``untaken`` are the uses of ports that SBF has not configured yet, ``in_use`` those of them that serve something
    else. ``down`` are ports that somebody shut down. ``astray`` are ports that SBF gave up and that are not as before:
    each with the use that is to be put back.
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
        """The VLAN IDs that are in other use."""
        return VlanSet(one.vlan for one in self.foreign)


class SwitchDifference(Document):
    """What to change on a switch; removals come first on each port, creations before they are used.

    ``close`` comes before all else: these ports get a list of their own, an empty one (DESIGN.md §7.4). ``access`` are
    those of the ports named that are access ports: there VLANs are untagged, and to close one takes it out of all.
    ``take`` are the ports that SBF configures for the first time, each with its use before. ``put_back`` comes last:
    ports that SBF gave up, each with the use that it had before.
    """

    access: tuple[PortName, ...] = ()
    """Access ports among the ports named here."""
    close: tuple[PortName, ...] = ()
    """Ports that get an empty list first, or leave all VLANs."""
    create: VlanSet = VlanSet()
    delete: VlanSet = VlanSet()
    add: PortVlans = Field(default_factory=dict)
    """VLANs to add to each port."""
    remove: PortVlans = Field(default_factory=dict)
    """VLANs to remove from each port."""
    take: dict[PortName, PortUse] = Field(default_factory=dict)
    """Ports that SBF configures for the first time, each with its use before."""
    put_back: dict[PortName, PortUse] = Field(default_factory=dict)
    """Ports that SBF gave up, each with the use to restore."""

    @property
    def numbers(self) -> VlanSet:
        """Every VLAN that this change touches."""
        on_ports = (vlans for ports in (self.add, self.remove) for vlans in ports.values())
        return VlanSet(number for vlans in (self.create, self.delete, *on_ports) for number in vlans)

    @property
    def made(self) -> VlanSet:
        """Every VLAN that this change creates or puts on a port: SBF's own from then on."""
        return VlanSet(number for vlans in (self.create, *self.add.values()) for number in vlans)

    def __bool__(self) -> bool:
        """Say whether there is anything to do."""
        return any((self.close, self.create, self.delete, self.add, self.remove, self.put_back))


def compare_switch(wanted: SwitchWanted, carried: SwitchObserved) -> SwitchDifference:
    """Compute what makes ``carried`` into ``wanted``, but for VLANs in other use: these are on no port added to.

    Ports that are not wanted-managed are never named. Open ports are closed once the switch is to carry anything at
    all: what is created for one port would be carried on them too. An access port is closed in any case: one that
    carries nobody is in no VLAN.
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
    """Return the wanted VLAN IDs in other use that a port lacks: they cannot be set up there."""
    lacking = (vlans - carried.ports.get(port, VlanSet()) for port, vlans in wanted.ports.items())
    return carried.foreign_vlans & [number for vlans in lacking for number in vlans]


def _without_empty(ports: dict[PortName, VlanSet]) -> dict[PortName, VlanSet]:
    return {port: vlans for port, vlans in sorted(ports.items()) if vlans}


class GuestWanted(Document):
    """A guest that a host must run. Memory is in MiB. ``cluster`` is the id of a member whose it is."""

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
    """A network's part of a host or gateway: its VLAN on a port, and the guests there of its cluster and its members.

    An agent ignores keys that it does not know, and refuses a segment that requires a word that it does not know
    (docs/decisions/0040).
    """

    id: str
    """Id of the network's cluster, which tells apart two clusters that had the same key one after the other."""
    key: ClusterKey
    vlan: VlanId
    """The VLAN ID on the port; of an untagged segment it concerns the switch alone."""
    port: PortName
    untagged: bool = False
    """Whether the segment has the port to itself, untagged."""
    guests: tuple[GuestWanted, ...] = ()
    """The guests on this host of the network's cluster and of its members."""
    members: dict[str, ClusterKey] = Field(default_factory=dict)
    """Keys of the clusters that joined the network and have a part here, by their ids."""
    origins: dict[str, ClusterOrigin] = Field(default_factory=dict)
    """Owner of each cluster, by its id, and whether a batch system asked for it; empty from an SBF of 0.1."""
    requires: tuple[str, ...] = ()
    """Words for what an agent must understand to set the segment up; an agent that does not know one refuses it."""


class HostWanted(Document):
    """What a host or a gateway must carry: one segment for each network."""

    segments: tuple[Segment, ...] = ()
    """One segment for each network."""


class WantedDocument(Document):
    """What an agent fetches: the wanted set and the revision it belongs to."""

    element: Name
    revision: int
    """The revision of this document."""
    confirmed_revision: int
    """The latest revision that the element confirmed."""
    wanted: HostWanted
    """What the element must carry."""
