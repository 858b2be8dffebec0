"""Wanted and observed states of provider edges, and the difference between them."""

from virtcloud.model.document import Document
from virtcloud.model.element import ElementKind
from virtcloud.model.switch_state import ForeignVlan, SwitchDifference, SwitchObserved
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet

NO_SERVICE = 0


class Circuit(Document):
    """An attachment circuit (RFC 4664): a cluster's VLAN on a port of an edge, bound to a service of a transport.

    ``service`` is the S-tag, the VPN id or the VNI. A service of a single cluster carries frames without the VLAN tag.
    Therefore ``vlan`` may differ from site to site. A service that clusters share carries frames with the tag.
    """

    transport: Name
    port: PortName
    vlan: VlanId
    """The VLAN ID on the port."""
    service: int
    """The S-tag, VPN id or VNI of the service."""


class CircuitRemnant(Document):
    """Configuration of an incomplete or duplicate circuit on an edge. SBF deletes this configuration.

    If the service is unknown, ``service`` is :data:`NO_SERVICE`, and the port and the VLAN identify the remnant.
    """

    transport: Name
    service: int
    """The service ID, or 0 if the service is unknown."""
    port: PortName | None = None
    """The port; null if the port is unknown."""
    vlan: VlanId | None = None
    """The VLAN ID; null if the VLAN ID is unknown."""


Circuits = tuple[Circuit, ...]


class EdgeWanted(Document):
    """The wanted state of an edge: all its circuits, in the order of :func:`sort_circuits`."""

    circuits: Circuits = ()

    @property
    def vlans(self) -> VlanSet:
        """The VLAN IDs of all circuits."""
        return VlanSet(circuit.vlan for circuit in self.circuits)


class EdgeObserved(Document):
    """The observed state of an edge within the managed scope. ``parts`` are the remnants of circuits.

    ``foreign`` are managed VLAN IDs *in other use*: SBF does not own the VLAN, or an unmanaged port carries the VLAN.
    ``circuits`` and ``parts`` do not contain these VLAN IDs. ``down`` are circuits that carry no frames, because the
    circuit, its port or its VLAN is shut down.
    """

    circuits: Circuits = ()
    parts: tuple[CircuitRemnant, ...] = ()
    foreign: tuple[ForeignVlan, ...] = ()
    down: Circuits = ()

    @property
    def foreign_vlans(self) -> VlanSet:
        """The VLAN IDs in other use."""
        return VlanSet(vlan.vlan for vlan in self.foreign)


class EdgeDifference(Document):
    """The changes of an edge, in this order: delete remnants, remove circuits, add circuits."""

    clear: tuple[CircuitRemnant, ...] = ()
    """Remnants of circuits, deleted first."""
    remove: Circuits = ()
    """Circuits to remove."""
    add: Circuits = ()
    """Circuits to create."""

    @property
    def circuits(self) -> Circuits:
        """Every complete circuit that this difference changes."""
        return (*self.remove, *self.add)

    @property
    def subjects(self) -> tuple[Circuit | CircuitRemnant, ...]:
        """Every circuit and remnant that this difference changes."""
        return (*self.clear, *self.circuits)

    @property
    def vlan_ids(self) -> VlanSet:
        """Every known VLAN ID that this difference changes."""
        return VlanSet(subject.vlan for subject in self.subjects if subject.vlan is not None)

    @property
    def added_vlan_ids(self) -> VlanSet:
        """Every VLAN ID that this difference adds to a port. After the change, SBF owns these VLANs on the edge."""
        return VlanSet(circuit.vlan for circuit in self.add)

    def __bool__(self) -> bool:
        """Return whether there is anything to change."""
        return any((self.clear, self.remove, self.add))


def compare_edge(wanted: EdgeWanted, carried: EdgeObserved) -> EdgeDifference:
    """Return the difference between an edge's observed and wanted states. VLAN IDs in other use get no circuit."""
    foreign = carried.foreign_vlans
    return EdgeDifference(
        clear=carried.parts,
        remove=sort_circuits(set(carried.circuits) - set(wanted.circuits)),
        add=sort_circuits(
            {circuit for circuit in set(wanted.circuits) - set(carried.circuits) if circuit.vlan not in foreign}
        ),
    )


def find_blocked_circuits(wanted: EdgeWanted, carried: EdgeObserved) -> VlanSet:
    """Return the VLAN IDs in other use that prevent the set-up of missing circuits."""
    missing = set(wanted.circuits) - set(carried.circuits)
    return carried.foreign_vlans & [circuit.vlan for circuit in missing]


def sort_circuits(circuits: set[Circuit]) -> Circuits:
    """Sort circuits by transport, service, port and VLAN."""
    return tuple(sorted(circuits, key=lambda circuit: (circuit.transport, circuit.service, circuit.port, circuit.vlan)))


DEVICE_KINDS = frozenset({ElementKind.SWITCH, ElementKind.EDGE})
"""The kinds of elements that SBF configures itself. All other elements have agents."""

DeviceObserved = SwitchObserved | EdgeObserved
DeviceDifference = SwitchDifference | EdgeDifference
