"""What a read-back means. Pure.

What the read-back of a provider edge means, and what may be touched on one. Pure.
"""

from collections import defaultdict
from collections.abc import Iterator

from sbf_service.domain.ownership import find_owned_vlans
from sbf_service.drivers.contract import EdgeScope, SwitchScope
from sbf_service.drivers.device_errors import ChangeFault, build_refusal
from virtcloud.model.edge import (
    NO_SERVICE,
    Circuit,
    CircuitRemnant,
    EdgeDifference,
    EdgeObserved,
    EdgeWanted,
    compare_edge,
)
from virtcloud.model.errors import Unsafe
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference, SwitchObserved, SwitchWanted, compare_switch

ADOPT_COMMAND = "'virtcloud element adopt {} {}'"
_PORT_SHUT = (
    "expected it enabled, since it must carry a cluster, found it shut down: enable it on the switch; SBF enables only "
    "ports that it shut down itself"
)
_WANTED_LIST = "a list of allowed VLANs, found all allowed"
_WANTED_UNTAGGED = "one VLAN of ours untagged or none at all, found something else"


def check_switch_scope(name: Name, managed: SwitchScope, difference: SwitchDifference) -> None:
    """Raise Unsafe for a difference that touches what is not managed: the last guard before a device (DESIGN §7.4)."""
    for port, vlans in (*difference.add.items(), *difference.remove.items()):
        if port not in managed.ports or vlans - managed.vlans:
            raise Unsafe(f"switch {name}, port {port}: VLAN {vlans} is not all ours to change (ours: {managed.vlans})")
    strangers = [port for port in difference.close if port not in managed.ports]
    strangers += [port for port in difference.put_back if port not in managed.returned]
    if strangers:
        raise Unsafe(
            f"switch {name}, port {', '.join(strangers)}: not ours to change (ours: {', '.join(managed.ports)})"
        )
    outside = (difference.create | difference.delete) - managed.vlans
    if outside:
        raise Unsafe(f"switch {name}: VLAN {outside} is not ours to create or delete (ours: {managed.vlans})")


def check_ports_not_in_use(
    name: Name, managed: SwitchScope, carried: SwitchObserved, difference: SwitchDifference
) -> None:
    """Raise Unsafe for a port in other use that the difference changes, unless an administrator adopted that use.

    Raise Unsafe also for an access port that somebody shut down: SBF enables only what it shut down itself.
    """
    for port, use in difference.take.items():
        agreed = managed.adopted.get(port)
        if port in carried.in_use and (agreed is None or not agreed.same_configuration(use)):
            since = "" if agreed is None else f", which is not how it was adopted ({agreed})"
            cure = f"it was left alone; adopt it ({ADOPT_COMMAND.format(name, port)}), or take it out of the topology"
            raise Unsafe(f"switch {name}, port {port}: expected a port without other use, found {use}{since}: {cure}")
    for port in set(difference.access) & difference.add.keys() & set(carried.down):
        raise Unsafe(f"switch {name}, port {port}: {_PORT_SHUT}")


def check_switch_ownership(
    name: Name, managed: SwitchScope, carried: SwitchObserved, difference: SwitchDifference
) -> None:
    """Raise Unsafe for a difference that touches a VLAN of others: the last guard (DESIGN §3, Ownership).

    It looks at what was read and recorded, not at what the difference was computed from.
    """
    owned = find_owned_vlans(carried, managed.created)
    used = VlanSet(number for vlans in carried.elsewhere.values() for number in vlans)
    unowned = VlanSet(carried.names or ()) - owned
    removed = VlanSet(number for vlans in difference.remove.values() for number in vlans)
    wrong = ((difference.added_vlan_ids | difference.delete) & (used | unowned)) | (
        removed & ((used | unowned) - owned - managed.created)
    )
    if wrong:
        raise Unsafe(f"switch {name}: VLAN {wrong} is in other use and not SBF's to change (SBF's: {owned or 'none'})")


def has_switch_drifted(kept: SwitchWanted, carried: SwitchObserved, *, behind: bool) -> bool:
    """Say whether a switch lost what it was confirmed to carry (``kept``).

    A port that was shut down carries nothing. One that is behind may carry something else beside it; one that is not
    must carry nothing else.
    """
    found = compare_switch(kept, carried)
    return bool(found.add) or any(_find_shut_ports(kept, carried)) or (bool(found) and not behind)


def check_switch_read_back(name: Name, wanted: SwitchWanted, carried: SwitchObserved) -> None:
    """Raise Refused when a switch that said yes does not carry what it was told to."""
    shut = [ChangeFault(f"port {port}: {_PORT_SHUT}", wanted.ports[port]) for port in _find_shut_ports(wanted, carried)]
    if shut:
        raise build_refusal(f"switch {name}, ", shut)
    faults = list(_list_switch_faults(compare_switch(wanted, carried)))
    if faults:
        raise build_refusal(f"switch {name}, ", faults, ": read back after the change; look at its configuration")


def _find_shut_ports(wanted: SwitchWanted, carried: SwitchObserved) -> Iterator[PortName]:
    """Yield the ports that must carry a VLAN and were shut down."""
    yield from (port for port in carried.down if wanted.ports.get(port))


def _list_switch_faults(left: SwitchDifference) -> Iterator[ChangeFault]:
    tagged = defaultdict(lambda: "tagged", dict.fromkeys(left.access, "untagged"))
    for port, vlans in left.add.items():
        yield ChangeFault(f"port {port}: wanted VLAN {vlans} {tagged[port]}, found none", vlans)
    for port, vlans in left.remove.items():
        yield ChangeFault(f"port {port}: wanted no VLAN {vlans}, found it {tagged[port]}", vlans)
    for port in left.close:
        wanted = left.add.get(port, VlanSet())
        yield ChangeFault(f"port {port}: wanted {_WANTED_UNTAGGED if port in left.access else _WANTED_LIST}", wanted)
    for port, use in left.put_back.items():
        yield ChangeFault(
            f"port {port}: wanted it as before SBF took it ({use}), found another configuration", VlanSet()
        )
    if left.create:
        yield ChangeFault(f"wanted VLAN {left.create} to exist, found none", left.create)
    if left.delete:
        yield ChangeFault(f"wanted no VLAN {left.delete}, found it", left.delete)


_CIRCUIT_SHUT = (
    "expected it enabled, since it must carry a cluster, found it or its port shut down: enable it on the edge; SBF "
    "enables nothing there"
)


def check_edge_scope(name: Name, managed: EdgeScope, difference: EdgeDifference) -> None:
    """Raise Unsafe for a difference that touches what is not managed: the last guard before a device (DESIGN §7.4)."""
    for one in difference.subjects:
        if not _is_managed(one, managed):
            ports = ", ".join(managed.ports)
            raise Unsafe(
                f"edge {name}: {_describe_circuit(one)} is not ours to change "
                f"(ours: VLAN {managed.vlans or 'none'} on {ports}, "
                f"{', '.join(map(_describe_services, managed.transports)) or 'no transport'})"
            )


def check_edge_ownership(name: Name, _managed: EdgeScope, carried: EdgeObserved, difference: EdgeDifference) -> None:
    """Raise Unsafe for a difference that touches a VLAN in other use: the last guard (DESIGN §3, Ownership)."""
    if wrong := difference.vlan_ids & carried.foreign_vlans:
        raise Unsafe(f"edge {name}: VLAN {wrong} is in other use and not SBF's to change")


def has_edge_drifted(kept: EdgeWanted, carried: EdgeObserved, *, behind: bool) -> bool:
    """Say whether an edge lost what it was confirmed to carry (``kept``).

    A circuit that was shut down carries nothing. One that is behind may carry something else beside it, or half of it;
    one that is not must carry nothing else.
    """
    found = compare_edge(kept, carried)
    return any(_find_shut_circuits(kept, carried)) or bool(found.add if behind else found)


def check_edge_read_back(name: Name, wanted: EdgeWanted, carried: EdgeObserved) -> None:
    """Raise Refused when an edge that said yes does not carry what it was told to."""
    shut = [
        ChangeFault(f"{_describe_circuit(one)}: {_CIRCUIT_SHUT}", VlanSet([one.vlan]))
        for one in _find_shut_circuits(wanted, carried)
    ]
    if shut:
        raise build_refusal(f"edge {name}: ", shut)
    faults = list(_list_edge_faults(compare_edge(wanted, carried)))
    if faults:
        raise build_refusal(f"edge {name}: ", faults, ": read back after the change; look at its configuration")


def _find_shut_circuits(wanted: EdgeWanted, carried: EdgeObserved) -> tuple[Circuit, ...]:
    """Return the wanted circuits that were shut down."""
    return tuple(one for one in wanted.circuits if one in carried.down)


def _list_edge_faults(left: EdgeDifference) -> Iterator[ChangeFault]:
    yield from (ChangeFault(f"wanted {_describe_circuit(one)}, found none", VlanSet([one.vlan])) for one in left.add)
    yield from (
        ChangeFault(f"wanted no {_describe_circuit(one)}, found it", VlanSet([one.vlan])) for one in left.remove
    )
    for part in left.clear:
        yield ChangeFault(
            f"found {_describe_circuit(part)}, incomplete", VlanSet() if part.vlan is None else VlanSet([part.vlan])
        )


def _is_managed(one: Circuit | CircuitRemnant, managed: EdgeScope) -> bool:
    services = {transport.name: transport for transport in managed.transports}
    transport = services.get(one.transport)
    return (
        transport is not None
        and (one.service in transport.numbers or _is_unbound(one))
        and (one.port is None or one.port in managed.ports)
        and (one.vlan is None or one.vlan in managed.vlans)
    )


def _is_unbound(one: Circuit | CircuitRemnant) -> bool:
    """Say whether it is a managed VLAN on a managed port that nothing joins to a service."""
    return one.service == NO_SERVICE and one.port is not None and one.vlan is not None


def _describe_circuit(one: Circuit | CircuitRemnant) -> str:
    vlan = "" if one.vlan is None else f"VLAN {one.vlan} "
    port = "" if one.port is None else f"on port {one.port} "
    if one.service == NO_SERVICE:
        return f"{vlan}{port}in no service"
    within = "in " if vlan or port else ""
    return f"{vlan}{port}{within}service {one.service} of {one.transport}"


def _describe_services(transport: Transport) -> str:
    numbers = transport.numbers
    return f"services {numbers[0]}-{numbers[-1]} of {transport.name}"
