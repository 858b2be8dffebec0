"""Checks before and after a change of a device: the limits of SBF's changes, and the read-back check. Pure.

``check_*_scope`` and ``check_*_ownership`` are the last checks before a device receives a change. ``check_read_back``
and ``has_drifted`` apply to switches and edges; separate functions list the faults of each kind.
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
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference, SwitchObserved, SwitchWanted

ADOPT_COMMAND = "'virtcloud element adopt {} {}'"
_PORT_SHUT = (
    "expected it enabled, since it must carry a cluster, found it shut down: enable it on the switch; SBF enables only "
    "ports that it shut down itself"
)
_CIRCUIT_SHUT = (
    "expected it enabled, since it must carry a cluster, found it or its port shut down: enable it on the edge; SBF "
    "enables nothing there"
)
_WANTED_LIST = "a list of allowed VLANs, found all allowed"
_WANTED_UNTAGGED = "one VLAN of ours untagged or none at all, found something else"


def check_read_back(device: str, shut: Iterable[ChangeFault], missing: Iterable[ChangeFault]) -> None:
    """Raise Refused when a device accepted a change and does not carry the wanted state afterwards.

    ``shut`` are faults of wanted ports or circuits that are shut down. If there are any, only these are reported.
    ``missing`` are all other differences between the read-back and the wanted state.
    """
    if faults := list(shut):
        raise build_refusal(device, faults)
    if faults := list(missing):
        raise build_refusal(device, faults, ": read back after the change; look at its configuration")


def has_drifted(lost: DeviceDifference, shut: Iterable[ChangeFault], *, behind: bool) -> bool:
    """Return whether a device no longer carries its confirmed state.

    ``lost`` is the difference from the confirmed state. A port or circuit that was shut down carries nothing. A device
    that is ``behind`` (has not confirmed its wanted revision) may carry more than the confirmed state, or a part of a
    change. Any other device may not.
    """
    return any(True for _ in shut) or bool(lost.add if behind else lost)


def check_switch_scope(name: Name, scope: SwitchScope, difference: SwitchDifference) -> None:
    """Raise Unsafe for a difference that touches unmanaged ports or VLANs: the last check (DESIGN.md §7.4)."""
    for port, vlans in (*difference.add.items(), *difference.remove.items()):
        if port not in scope.ports or vlans - scope.vlans:
            raise Unsafe(f"switch {name}, port {port}: VLAN {vlans} is not all ours to change (ours: {scope.vlans})")
    unmanaged = [port for port in difference.close if port not in scope.ports]
    unmanaged += [port for port in difference.put_back if port not in scope.returned]
    if unmanaged:
        raise Unsafe(f"switch {name}, port {', '.join(unmanaged)}: not ours to change (ours: {', '.join(scope.ports)})")
    outside = (difference.create | difference.delete) - scope.vlans
    if outside:
        raise Unsafe(f"switch {name}: VLAN {outside} is not ours to create or delete (ours: {scope.vlans})")


def check_ports_not_in_use(
    name: Name, scope: SwitchScope, observed: SwitchObserved, difference: SwitchDifference
) -> None:
    """Raise Unsafe when the difference changes a port in other use, unless an administrator adopted it with this use.

    Raise Unsafe also for an access port that somebody else shut down: SBF enables only ports that SBF shut down.
    """
    for port, use in difference.take.items():
        agreed = scope.adopted.get(port)
        if port in observed.in_use and (agreed is None or not agreed.same_configuration(use)):
            since = "" if agreed is None else f", which is not how it was adopted ({agreed})"
            remedy = f"it was left alone; adopt it ({ADOPT_COMMAND.format(name, port)}), or take it out of the topology"
            raise Unsafe(f"switch {name}, port {port}: expected a port without other use, found {use}{since}: {remedy}")
    for port in set(difference.access) & difference.add.keys() & set(observed.down):
        raise Unsafe(f"switch {name}, port {port}: {_PORT_SHUT}")


def check_switch_ownership(
    name: Name, scope: SwitchScope, observed: SwitchObserved, difference: SwitchDifference
) -> None:
    """Raise Unsafe for a difference that touches a VLAN in other use: the last check (DESIGN.md §3, Ownership).

    The check uses the reading and the records, not the data from which the difference was computed.
    """
    owned = find_owned_vlans(observed, scope.created)
    used = VlanSet(vlan for vlans in observed.elsewhere.values() for vlan in vlans)
    unowned = VlanSet(observed.names or ()) - owned
    removed = VlanSet(vlan for vlans in difference.remove.values() for vlan in vlans)
    wrong = ((difference.added_vlan_ids | difference.delete) & (used | unowned)) | (
        removed & ((used | unowned) - owned - scope.created)
    )
    if wrong:
        raise Unsafe(f"switch {name}: VLAN {wrong} is in other use and not SBF's to change (SBF's: {owned or 'none'})")


def list_shut_ports(wanted: SwitchWanted, observed: SwitchObserved) -> Iterator[ChangeFault]:
    """Yield a fault for each port that is shut down although it must carry a VLAN."""
    for port in observed.down:
        if wanted.ports.get(port):
            yield ChangeFault(f"port {port}: {_PORT_SHUT}", wanted.ports[port])


def list_switch_faults(left: SwitchDifference) -> Iterator[ChangeFault]:
    """Yield a fault for each difference that a read-back shows on a switch."""
    tagged = defaultdict(lambda: "tagged", dict.fromkeys(left.access, "untagged"))
    for port, vlans in left.add.items():
        yield ChangeFault(f"port {port}: wanted VLAN {vlans} {tagged[port]}, found none", vlans)
    for port, vlans in left.remove.items():
        yield ChangeFault(f"port {port}: wanted no VLAN {vlans}, found it {tagged[port]}", vlans)
    for port in left.close:
        wanted = left.add.get(port, VlanSet())
        yield ChangeFault(f"port {port}: wanted {_WANTED_UNTAGGED if port in left.access else _WANTED_LIST}", wanted)
    for port, use in left.put_back.items():
        text = f"port {port}: wanted it as before SBF took it ({use}), found another configuration"
        yield ChangeFault(text, VlanSet())
    if left.create:
        yield ChangeFault(f"wanted VLAN {left.create} to exist, found none", left.create)
    if left.delete:
        yield ChangeFault(f"wanted no VLAN {left.delete}, found it", left.delete)


def check_edge_scope(name: Name, scope: EdgeScope, difference: EdgeDifference) -> None:
    """Raise Unsafe for a difference that touches unmanaged VLANs or services: the last check (DESIGN.md §7.4)."""
    for one in difference.subjects:
        if not _is_managed(one, scope):
            raise Unsafe(
                f"edge {name}: {_describe_circuit(one)} is not ours to change (ours: VLAN {scope.vlans or 'none'} on "
                f"{', '.join(scope.ports)}, {', '.join(map(_describe_services, scope.transports)) or 'no transport'})"
            )


def check_edge_ownership(name: Name, observed: EdgeObserved, difference: EdgeDifference) -> None:
    """Raise Unsafe for a difference that touches a VLAN in other use: the last check (DESIGN.md §3, Ownership)."""
    if wrong := difference.vlan_ids & observed.foreign_vlans:
        raise Unsafe(f"edge {name}: VLAN {wrong} is in other use and not SBF's to change")


def list_shut_circuits(wanted: EdgeWanted, observed: EdgeObserved) -> Iterator[ChangeFault]:
    """Yield a fault for each wanted circuit that is shut down."""
    for one in wanted.circuits:
        if one in observed.down:
            yield ChangeFault(f"{_describe_circuit(one)}: {_CIRCUIT_SHUT}", VlanSet([one.vlan]))


def list_edge_faults(left: EdgeDifference) -> Iterator[ChangeFault]:
    """Yield a fault for each difference that a read-back shows on an edge."""
    for one in left.add:
        yield ChangeFault(f"wanted {_describe_circuit(one)}, found none", VlanSet([one.vlan]))
    for one in left.remove:
        yield ChangeFault(f"wanted no {_describe_circuit(one)}, found it", VlanSet([one.vlan]))
    for part in left.clear:
        vlans = VlanSet() if part.vlan is None else VlanSet([part.vlan])
        yield ChangeFault(f"found {_describe_circuit(part)}, incomplete", vlans)


def _is_managed(one: Circuit | CircuitRemnant, scope: EdgeScope) -> bool:
    transport = {transport.name: transport for transport in scope.transports}.get(one.transport)
    return (
        transport is not None
        and (one.service in transport.service_ids or _is_unbound(one))
        and (one.port is None or one.port in scope.ports)
        and (one.vlan is None or one.vlan in scope.vlans)
    )


def _is_unbound(one: Circuit | CircuitRemnant) -> bool:
    """Return whether a circuit or part has a port and a VLAN ID, but no service."""
    return one.service == NO_SERVICE and one.port is not None and one.vlan is not None


def _describe_circuit(one: Circuit | CircuitRemnant) -> str:
    vlan = "" if one.vlan is None else f"VLAN {one.vlan} "
    port = "" if one.port is None else f"on port {one.port} "
    if one.service == NO_SERVICE:
        return f"{vlan}{port}in no service"
    within = "in " if vlan or port else ""
    return f"{vlan}{port}{within}service {one.service} of {one.transport}"


def _describe_services(transport: Transport) -> str:
    numbers = transport.service_ids
    return f"services {numbers[0]}-{numbers[-1]} of {transport.name}"
