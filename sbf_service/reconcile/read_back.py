"""Checks before and after a change of a device. Pure.

``check_*_scope`` and ``check_*_ownership`` are the last checks before a device receives a change
(docs/explanation/invariants.md, 4).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from sbf_service.domain.ownership import find_owned_vlans
from sbf_service.drivers.contract import EdgeScope, SwitchScope
from sbf_service.drivers.device_errors import ChangeFault, build_refusal
from virtcloud.model.edge import (
    NO_SERVICE,
    Circuit,
    CircuitRemnant,
    DeviceDifference,
    EdgeDifference,
    EdgeObserved,
    EdgeWanted,
)
from virtcloud.model.errors import Unsafe
from virtcloud.model.switch_state import SwitchDifference, SwitchObserved, SwitchWanted
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

ADOPT_COMMAND = "'virtcloud element adopt {} {}'"
UNKNOWN_CLUSTERS_REMEDY = (
    "they may belong to another SBF, or to clusters of a lost database: restore the database, or, if nobody needs "
    "them, let SBF delete them (virtcloud element clean {} --reason TEXT)"
)
_PORT_SHUT = (
    "expected an enabled port, because the port must carry a cluster, found a port that is shut down: enable the port "
    "on the switch; SBF enables only ports that SBF shut down"
)
_CIRCUIT_SHUT = (
    "expected an enabled circuit, because the circuit must carry a cluster, found the circuit or its port shut down: "
    "enable the circuit and the port on the edge; SBF enables neither"
)
_WANTED_LIST = "a list of allowed VLANs, found every VLAN allowed"
_WANTED_UNTAGGED = "at most one managed VLAN, untagged, found other VLANs"


def check_read_back(device: str, shut: Iterable[ChangeFault], missing: Iterable[ChangeFault]) -> None:
    """Raise Refused if a device does not have the wanted state, although the device accepted a change.

    ``shut`` contains the faults of wanted ports or circuits that are shut down. The error reports the other
    differences, ``missing``, only if ``shut`` is empty.
    """
    if faults := list(shut):
        raise build_refusal(device, faults)
    if faults := list(missing):
        raise build_refusal(device, faults, ": read back after the change; check the device's configuration")


def has_drifted(lost: DeviceDifference, shut: Iterable[ChangeFault], *, behind: bool) -> bool:
    """Return whether anything other than SBF has changed a device since the device confirmed its state.

    ``lost`` contains the changes that turn the observed state into the confirmed state. A port or circuit in ``shut``
    carries no frames, and counts as drift. If ``behind``, a worker may have applied a part of a newer revision, so that
    only missing VLANs and circuits count.
    """
    return any(True for _ in shut) or bool(lost.add if behind else lost)


def check_switch_scope(name: Name, scope: SwitchScope, difference: SwitchDifference) -> None:
    """Raise Unsafe if a difference changes unmanaged ports or VLANs."""
    for port, vlans in (*difference.add.items(), *difference.remove.items()):
        if port in scope.ports and (outside := vlans - scope.vlans):
            raise Unsafe(f"switch {name}, port {port}: {_describe_outside(outside, scope.vlans)}")
    unmanaged = [port for port in (*difference.add, *difference.remove, *difference.close) if port not in scope.ports]
    unmanaged += [port for port in difference.put_back if port not in scope.returned]
    if unmanaged:
        managed = ", ".join(scope.ports) or "none"
        listed = ", ".join(dict.fromkeys(unmanaged))
        raise Unsafe(f"switch {name}, port {listed}: outside the managed ports ({managed}); left unchanged")
    outside = (difference.create | difference.delete) - scope.vlans
    if outside:
        raise Unsafe(f"switch {name}: {_describe_outside(outside, scope.vlans)}")


def _describe_outside(outside: VlanSet, managed: VlanSet) -> str:
    return f"VLAN {outside} is outside the managed VLANs ({managed or 'none'}); left unchanged"


def check_ports_not_in_use(
    name: Name, scope: SwitchScope, observed: SwitchObserved, difference: SwitchDifference
) -> None:
    """Raise Unsafe for a change of a port *in other use*, unless an administrator adopted the port with this use.

    Also raise Unsafe for a new VLAN on an access port that is shut down: SBF enables only ports that SBF shut down.
    """
    for port, use in difference.take.items():
        adopted = scope.adopted.get(port)
        if port in observed.in_use and (adopted is None or not adopted.same_configuration(use)):
            since = "" if adopted is None else f", which differs from the adopted use ({adopted})"
            remedy = f"adopt the port ({ADOPT_COMMAND.format(name, port)}), or remove it from the topology"
            found = f"expected a port without other use, found {use}{since}: the port was left unchanged"
            raise Unsafe(f"switch {name}, port {port}: {found}; {remedy}")
    for port in set(difference.access) & difference.add.keys() & set(observed.down):
        raise Unsafe(f"switch {name}, port {port}: {_PORT_SHUT}")


def check_switch_ownership(
    name: Name, scope: SwitchScope, observed: SwitchObserved, difference: SwitchDifference
) -> None:
    """Raise Unsafe if a difference changes a VLAN in other use.

    The check does not use the computation of the difference, and therefore also finds errors of this computation.
    """
    owned = find_owned_vlans(observed, scope.created, scope.known)
    used = VlanSet(vlan for vlans in observed.elsewhere.values() for vlan in vlans)
    unowned = VlanSet(observed.names or ()) - owned
    removed = VlanSet(vlan for vlans in difference.remove.values() for vlan in vlans)
    wrong = ((difference.added_vlan_ids | difference.delete) & (used | unowned)) | (
        removed & ((used | unowned) - owned - scope.created)
    )
    if wrong:
        raise Unsafe(f"switch {name}: VLAN {wrong} is in other use; left unchanged (VLANs of SBF: {owned or 'none'})")


def list_shut_ports(wanted: SwitchWanted, observed: SwitchObserved) -> Iterator[ChangeFault]:
    """Yield a fault for each port that is shut down although it must carry a VLAN."""
    for port in observed.down:
        if wanted.ports.get(port):
            yield ChangeFault(f"port {port}: {_PORT_SHUT}", wanted.ports[port])


def list_switch_faults(left: SwitchDifference) -> Iterator[ChangeFault]:
    """Yield a fault for each difference that remains on a switch after a change."""
    tagged = defaultdict(lambda: "tagged", dict.fromkeys(left.access, "untagged"))
    for port, vlans in left.add.items():
        yield ChangeFault(f"port {port}: wanted VLAN {vlans} {tagged[port]}, found none", vlans)
    for port, vlans in left.remove.items():
        yield ChangeFault(f"port {port}: wanted VLAN {vlans} removed, found {tagged[port]}", vlans)
    for port in left.close:
        wanted = left.add.get(port, VlanSet())
        yield ChangeFault(f"port {port}: wanted {_WANTED_UNTAGGED if port in left.access else _WANTED_LIST}", wanted)
    for port, use in left.put_back.items():
        text = f"port {port}: wanted the use before SBF configured the port ({use}), found another configuration"
        yield ChangeFault(text, VlanSet())
    if left.create:
        yield ChangeFault(f"wanted VLAN {left.create} to exist, found none", left.create)
    if left.delete:
        yield ChangeFault(f"wanted VLAN {left.delete} deleted, found VLAN {left.delete}", left.delete)


def check_edge_scope(name: Name, scope: EdgeScope, difference: EdgeDifference) -> None:
    """Raise Unsafe if a difference changes unmanaged ports, VLANs or services."""
    for circuit in difference.subjects:
        if not _is_managed(circuit, scope):
            services = ", ".join(map(_describe_services, scope.transports)) or "no service"
            raise Unsafe(
                f"edge {name}: {_describe_circuit(circuit)} is outside the managed configuration (VLAN "
                f"{scope.vlans or 'none'} on port {', '.join(scope.ports) or 'none'}; {services}); left unchanged"
            )


def check_edge_ownership(name: Name, scope: EdgeScope, observed: EdgeObserved, difference: EdgeDifference) -> None:
    """Raise Unsafe if a difference changes a VLAN in other use, or deletes a circuit that SBF cannot have created.

    SBF cannot have created a circuit whose VLAN ID it neither recorded as created nor ever managed on this edge
    (decision 97).
    """
    of_remnants = (remnant.vlan for remnant in difference.clear if remnant.vlan is not None)
    deleted = VlanSet([*of_remnants, *(circuit.vlan for circuit in difference.remove)])
    if unknown := deleted - scope.known - scope.created:
        raise Unsafe(
            f"edge {name}: expected no circuits with VLAN IDs that SBF manages here for the first time, found circuits "
            f"with VLAN {unknown}; {UNKNOWN_CLUSTERS_REMEDY.format(name)}"
        )
    if wrong := difference.vlan_ids & observed.foreign_vlans:
        raise Unsafe(f"edge {name}: VLAN {wrong} is in other use; left unchanged")


def list_shut_circuits(wanted: EdgeWanted, observed: EdgeObserved) -> Iterator[ChangeFault]:
    """Yield a fault for each wanted circuit that is shut down."""
    for circuit in wanted.circuits:
        if circuit in observed.down:
            yield ChangeFault(f"{_describe_circuit(circuit)}: {_CIRCUIT_SHUT}", VlanSet([circuit.vlan]))


def list_edge_faults(left: EdgeDifference) -> Iterator[ChangeFault]:
    """Yield a fault for each difference that remains on an edge after a change."""
    for circuit in left.add:
        yield ChangeFault(f"wanted {_describe_circuit(circuit)}, found none", VlanSet([circuit.vlan]))
    for circuit in left.remove:
        yield ChangeFault(f"wanted {_describe_circuit(circuit)} removed, still found", VlanSet([circuit.vlan]))
    for remnant in left.clear:
        vlans = VlanSet() if remnant.vlan is None else VlanSet([remnant.vlan])
        yield ChangeFault(f"found an incomplete circuit ({_describe_circuit(remnant)})", vlans)


def _is_managed(circuit: Circuit | CircuitRemnant, scope: EdgeScope) -> bool:
    transport = {transport.name: transport for transport in scope.transports}.get(circuit.transport)
    return (
        transport is not None
        and (circuit.service in transport.service_ids or _is_unbound(circuit))
        and (circuit.port is None or circuit.port in scope.ports)
        and (circuit.vlan is None or circuit.vlan in scope.vlans)
    )


def _is_unbound(circuit: Circuit | CircuitRemnant) -> bool:
    return circuit.service == NO_SERVICE and circuit.port is not None and circuit.vlan is not None


def _describe_circuit(circuit: Circuit | CircuitRemnant) -> str:
    vlan = "" if circuit.vlan is None else f"VLAN {circuit.vlan} "
    port = "" if circuit.port is None else f"on port {circuit.port} "
    if circuit.service == NO_SERVICE:
        return f"{vlan}{port}in no service"
    preposition = "in " if vlan or port else ""
    return f"{vlan}{port}{preposition}service {circuit.service} of {circuit.transport}"


def _describe_services(transport: Transport) -> str:
    services = transport.service_ids
    return f"services {services[0]}-{services[-1]} of {transport.name}"
