"""What a provider edge must carry, carries, and the difference: as for switches, with circuits instead of VLANs.

What is said of switches and provider edges alike: SBF configures both itself, by the one mechanism.
"""

from virtcloud.model.document import Document
from virtcloud.model.element import ElementKind
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import ForeignVlan, SwitchDifference, SwitchObserved

NO_SERVICE = 0


class Circuit(Document):
    """A cluster's VLAN on a port of an edge, joined to a service of a transport (an attachment circuit, RFC 4664).

    ``service`` is the S-tag, the VPN id or the VNI. Where every cluster has a service of its own the tag is taken off
    within it, so that ``vlan`` may differ from site to site; in a shared one it stays.
    """

    transport: Name
    port: PortName
    vlan: VlanId
    """The VLAN ID on the port."""
    service: int
    """The S-tag, VPN id or VNI of the service."""


class CircuitRemnant(Document):
    """What is left of a circuit that is not whole, or is there twice: the service and what else could be told.

    Where not even the service could be told it is :data:`NO_SERVICE`, and the port and the VLAN say what is meant.
    """

    transport: Name
    service: int
    """The service, or 0 where it is not known."""
    port: PortName | None = None
    """The port, where it is known."""
    vlan: VlanId | None = None
    """The VLAN ID, where it is known."""


Circuits = tuple[Circuit, ...]


class EdgeWanted(Document):
    """Every circuit that an edge must carry, in order."""

    circuits: Circuits = ()

    @property
    def vlans(self) -> VlanSet:
        """Every VLAN of any circuit."""
        return VlanSet(one.vlan for one in self.circuits)


class EdgeObserved(Document):
    """The circuits that an edge was seen to carry within what is managed; ``parts`` are those that are not whole.

    ``foreign`` are managed VLAN IDs in other use; circuits and parts of these are left out. ``down`` are the circuits
    that carry nothing, since they, their port or their VLAN were shut down.
    """

    circuits: Circuits = ()
    parts: tuple[CircuitRemnant, ...] = ()
    foreign: tuple[ForeignVlan, ...] = ()
    down: Circuits = ()

    @property
    def foreign_vlans(self) -> VlanSet:
        """The VLAN IDs that are in other use."""
        return VlanSet(one.vlan for one in self.foreign)


class EdgeDifference(Document):
    """What to change on an edge, in this order: clear what is not whole, remove, add."""

    clear: tuple[CircuitRemnant, ...] = ()
    """Remains of circuits, removed first."""
    remove: Circuits = ()
    """Circuits to remove."""
    add: Circuits = ()
    """Circuits to create."""

    @property
    def circuits(self) -> Circuits:
        """Every whole circuit that this change touches."""
        return (*self.remove, *self.add)

    @property
    def subjects(self) -> tuple[Circuit | CircuitRemnant, ...]:
        """All that this change touches."""
        return (*self.clear, *self.circuits)

    @property
    def numbers(self) -> VlanSet:
        """Every VLAN that this change is known to touch."""
        return VlanSet(one.vlan for one in self.subjects if one.vlan is not None)

    @property
    def made(self) -> VlanSet:
        """Every VLAN that this change puts on a port: SBF's own from then on."""
        return VlanSet(one.vlan for one in self.add)

    def __bool__(self) -> bool:
        """Say whether there is anything to do."""
        return any((self.clear, self.remove, self.add))


def compare_edge(wanted: EdgeWanted, carried: EdgeObserved) -> EdgeDifference:
    """Compute what makes ``carried`` into ``wanted``, but for VLANs in other use: these get no circuit."""
    foreign = carried.foreign_vlans
    return EdgeDifference(
        clear=carried.parts,
        remove=sort_circuits(set(carried.circuits) - set(wanted.circuits)),
        add=sort_circuits({one for one in set(wanted.circuits) - set(carried.circuits) if one.vlan not in foreign}),
    )


def find_blocked_circuits(wanted: EdgeWanted, carried: EdgeObserved) -> VlanSet:
    """Return the VLAN IDs in other use of wanted circuits that are missing: they cannot be set up."""
    missing = set(wanted.circuits) - set(carried.circuits)
    return carried.foreign_vlans & [one.vlan for one in missing]


def sort_circuits(circuits: set[Circuit]) -> Circuits:
    """Sort circuits by transport, service, port and VLAN."""
    return tuple(sorted(circuits, key=lambda one: (one.transport, one.service, one.port, one.vlan)))


DEVICE_KINDS = frozenset({ElementKind.SWITCH, ElementKind.EDGE})
"""The kinds of elements that SBF configures itself; the others have agents."""

DeviceObserved = SwitchObserved | EdgeObserved
DeviceDifference = SwitchDifference | EdgeDifference
