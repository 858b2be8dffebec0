"""What an element must carry, what it carries, and the difference: the one mechanism of the system (DESIGN.md §3)."""

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.values import Address, ClusterKey, Mac, Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet

PortVlans = dict[PortName, VlanSet]


class SwitchWanted(Document):
    """What a switch must carry, and carries, within what we manage: the VLANs tagged on each managed port.

    A port that is not a key is not managed. The VLANs that must exist on the switch are those on its ports.
    """

    ports: dict[PortName, VlanSet]

    @property
    def vlans(self) -> VlanSet:
        """Every VLAN on any port."""
        return VlanSet(number for carried in self.ports.values() for number in carried)


class SwitchCarried(Document):
    """What a switch was seen to carry on managed ports, of managed numbers; ``vlans`` are those that exist on it.

    ``open`` are managed ports without a list of their own: they carry every VLAN there is, or would if their neighbour
    asked. In ``ports`` they stand as empty: nothing was ever allowed on them by us.
    """

    vlans: VlanSet
    ports: dict[PortName, VlanSet]
    open: tuple[PortName, ...] = ()


class SwitchDifference(Document):
    """What to change on a switch; removals come first on each port, creations before they are used.

    ``close`` comes before all else: these ports get a list of their own, an empty one (DESIGN.md §7.4).
    """

    close: tuple[PortName, ...] = ()
    create: VlanSet = VlanSet()
    delete: VlanSet = VlanSet()
    add: PortVlans = Field(default_factory=dict)
    remove: PortVlans = Field(default_factory=dict)

    @property
    def numbers(self) -> VlanSet:
        """Every VLAN that this change touches."""
        on_ports = (vlans for ports in (self.add, self.remove) for vlans in ports.values())
        return VlanSet(number for vlans in (self.create, self.delete, *on_ports) for number in vlans)

    def __bool__(self) -> bool:
        """Say whether there is anything to do."""
        return any((self.close, self.create, self.delete, self.add, self.remove))


def switch_difference(wanted: SwitchWanted, carried: SwitchCarried) -> SwitchDifference:
    """Compute what makes ``carried`` into ``wanted``. Ports that are not wanted-managed are never named.

    Open ports are closed once the switch is to carry anything at all: what is created for one port would be carried on
    them too.
    """
    seen = {port: carried.ports.get(port, VlanSet()) for port in wanted.ports}
    return SwitchDifference(
        close=tuple(sorted(port for port in carried.open if port in wanted.ports and wanted.vlans)),
        create=wanted.vlans - carried.vlans,
        delete=carried.vlans - wanted.vlans,
        add=_kept({port: vlans - seen[port] for port, vlans in wanted.ports.items()}),
        remove=_kept({port: seen[port] - vlans for port, vlans in wanted.ports.items()}),
    )


def _kept(ports: dict[PortName, VlanSet]) -> dict[PortName, VlanSet]:
    return {port: vlans for port, vlans in sorted(ports.items()) if vlans}


class GuestWanted(Document):
    """A guest that a host must run. Memory is in MiB."""

    name: Name
    image: Name
    memory_mb: int
    cpus: int
    mac: Mac
    addresses: tuple[Address, ...] = ()


class Segment(Document):
    """A cluster's part of a host or gateway: its VLAN on a port, and its guests there.

    ``id`` tells two clusters apart that had the same key one after the other.
    """

    id: str
    key: ClusterKey
    vlan: VlanId
    port: PortName
    guests: tuple[GuestWanted, ...] = ()


class HostWanted(Document):
    """What a host or a gateway must carry: one segment for each cluster."""

    segments: tuple[Segment, ...] = ()


class WantedDocument(Document):
    """What an agent fetches: the wanted set and the revision it belongs to."""

    element: Name
    revision: int
    confirmed_revision: int
    wanted: HostWanted
