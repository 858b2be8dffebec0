"""Held VLAN IDs: a device keeps what it carries with a held VLAN ID, but SBF adds nothing with this ID. Pure.

After a restore of its database, SBF holds VLAN IDs until it has read the other elements that may carry them for other
clusters (``store/unchecked_elements.py``).
"""

from virtcloud.model.edge import EdgeObserved, EdgeWanted
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchObserved, SwitchWanted

HELD_REASON = (
    "the database was restored from a backup: SBF sets up the VLAN when it has read all elements that may carry it for "
    "another cluster (virtcloud element list)"
)


def limit_switch(wanted: SwitchWanted, observed: SwitchObserved, held: VlanSet) -> tuple[SwitchWanted, VlanSet]:
    """Return the wanted state without the held VLANs that ports do not carry yet, and the IDs of these VLANs."""
    missing = {
        port: (vlans & held) - observed.ports.get(port, VlanSet()) for port, vlans in wanted.ports.items() if vlans
    }
    ports = {port: vlans - missing.get(port, VlanSet()) for port, vlans in wanted.ports.items()}
    return wanted.model_copy(update={"ports": ports}), VlanSet(vlan for vlans in missing.values() for vlan in vlans)


def limit_edge(wanted: EdgeWanted, observed: EdgeObserved, held: VlanSet) -> tuple[EdgeWanted, VlanSet]:
    """Return the wanted state without the circuits of held VLANs that the edge lacks, and the IDs of these VLANs."""
    present = set(observed.circuits)
    missing = {circuit for circuit in wanted.circuits if circuit.vlan in held and circuit not in present}
    circuits = tuple(circuit for circuit in wanted.circuits if circuit not in missing)
    return wanted.model_copy(update={"circuits": circuits}), VlanSet(circuit.vlan for circuit in missing)


def describe_held_vlans(vlans: VlanSet) -> dict[int, str]:
    """Return a message for each VLAN ID that is not set up yet."""
    return {int(vlan): f"VLAN {vlan} waits: {HELD_REASON}" for vlan in vlans}
