"""What the read-back of a provider edge means, and what may be touched on one. Pure."""

from collections.abc import Iterator

from sbf_service.drivers.edge import ManagedEdge
from sbf_service.drivers.faults import Fault, refused
from virtcloud.model.edge import NO_SERVICE, Circuit, EdgeCarried, EdgeDifference, EdgeWanted, Part, edge_difference
from virtcloud.model.errors import Unsafe
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

_SHUT = (
    "expected it enabled, since it must carry a cluster, found it or its port shut down: enable it on the edge; SBF "
    "enables nothing there"
)


def refuse_outside(name: Name, managed: ManagedEdge, difference: EdgeDifference) -> None:
    """Raise Unsafe for a difference that touches what is not managed: the last guard before a device (DESIGN §7.4)."""
    for one in difference.subjects:
        if not _is_ours(one, managed):
            ports = ", ".join(managed.ports)
            raise Unsafe(
                f"edge {name}: {_said(one)} is not ours to change (ours: VLAN {managed.vlans or 'none'} on {ports}, "
                f"{', '.join(map(_range, managed.transports)) or 'no transport'})"
            )


def refuse_foreign(name: Name, _managed: ManagedEdge, carried: EdgeCarried, difference: EdgeDifference) -> None:
    """Raise Unsafe for a difference that touches a VLAN in other use: the last guard (DESIGN §3, Ownership)."""
    if wrong := difference.numbers & carried.foreign_vlans:
        raise Unsafe(f"edge {name}: VLAN {wrong} is in other use and not SBF's to change")


def has_drifted(kept: EdgeWanted, carried: EdgeCarried, *, behind: bool) -> bool:
    """Say whether an edge lost what it was confirmed to carry (``kept``).

    A circuit that was shut down carries nothing. One that is behind may carry something else beside it, or half of it;
    one that is not must carry nothing else.
    """
    found = edge_difference(kept, carried)
    return any(_shut(kept, carried)) or bool(found.add if behind else found)


def refuse_leftover(name: Name, wanted: EdgeWanted, carried: EdgeCarried) -> None:
    """Raise Refused when an edge that said yes does not carry what it was told to."""
    shut = [Fault(f"{_said(one)}: {_SHUT}", VlanSet([one.vlan])) for one in _shut(wanted, carried)]
    if shut:
        raise refused(f"edge {name}: ", shut)
    faults = list(_faults(edge_difference(wanted, carried)))
    if faults:
        raise refused(f"edge {name}: ", faults, ": read back after the change; look at its configuration")


def _shut(wanted: EdgeWanted, carried: EdgeCarried) -> tuple[Circuit, ...]:
    """Return the wanted circuits that were shut down."""
    return tuple(one for one in wanted.circuits if one in carried.down)


def _faults(left: EdgeDifference) -> Iterator[Fault]:
    yield from (Fault(f"wanted {_said(one)}, found none", VlanSet([one.vlan])) for one in left.add)
    yield from (Fault(f"wanted no {_said(one)}, found it", VlanSet([one.vlan])) for one in left.remove)
    for part in left.clear:
        yield Fault(f"found {_said(part)}, incomplete", VlanSet() if part.vlan is None else VlanSet([part.vlan]))


def _is_ours(one: Circuit | Part, managed: ManagedEdge) -> bool:
    services = {transport.name: transport for transport in managed.transports}
    transport = services.get(one.transport)
    return (
        transport is not None
        and (one.service in transport.numbers or _stands_alone(one))
        and (one.port is None or one.port in managed.ports)
        and (one.vlan is None or one.vlan in managed.vlans)
    )


def _stands_alone(one: Circuit | Part) -> bool:
    """Say whether it is a managed VLAN on a managed port that nothing joins to a service."""
    return one.service == NO_SERVICE and one.port is not None and one.vlan is not None


def _said(one: Circuit | Part) -> str:
    vlan = "" if one.vlan is None else f"VLAN {one.vlan} "
    port = "" if one.port is None else f"on port {one.port} "
    if one.service == NO_SERVICE:
        return f"{vlan}{port}in no service"
    within = "in " if vlan or port else ""
    return f"{vlan}{port}{within}service {one.service} of {one.transport}"


def _range(transport: Transport) -> str:
    numbers = transport.numbers
    return f"services {numbers[0]}-{numbers[-1]} of {transport.name}"
