"""From a difference to the lines that a device is told. Pure; written out for each platform in the tests."""

from collections.abc import Iterable, Iterator

from sbf_service.drivers.dialects.dialect import DEFAULT, Dialect, Lines, NamesPorts, PortSeen, Seen
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference


def lines(dialect: Dialect, difference: SwitchDifference, seen: Seen) -> list[str]:
    """Give the lines, without entering and leaving the configuration.

    First access ports are vacated and ports that carry everything get an empty list, then VLANs leave ports and vanish,
    then VLANs are created, then ports that take none yet are prepared and VLANs allowed. Nothing is created while a
    managed port is open.
    """
    access = difference.access
    vacated = [port for port in access if port in difference.close or port in difference.remove]
    closed = [port for port in difference.close if port not in access]
    occupied = [(port, difference.add[port]) for port in access if port in difference.add]
    return [
        *(line for port in vacated for line in _vacation(dialect, seen, port)),
        *(line for port in closed for line in _written(dialect, dialect.prepare, port=port)),
        *_removals(dialect, difference, seen),
        *_written(dialect, dialect.delete, difference.delete, dialect.runs_only),
        *_creations(dialect, difference.create),
        *_additions(dialect, difference, seen),
        *(line for port, vlans in occupied for line in _written(dialect, dialect.access, vlans, port=port)),
    ]


def vlan_name(number: VlanId) -> str:
    """Give a VLAN's name on devices."""
    return f"vc-{number}"


def port_seen(dialect: NamesPorts, seen: Seen, port: PortName) -> PortSeen | None:
    """Find a port by any form of its name; None where the device has none of it."""
    found = seen.ports.get(dialect.ports.canonical(port))
    return PortSeen() if found is None and not dialect.shows_every_port else found


def _removals(dialect: Dialect, difference: SwitchDifference, seen: Seen) -> Iterator[str]:
    for port, vlans in difference.remove.items():
        if port not in difference.access:
            yield from _removal(dialect, seen, port, vlans)


def _removal(dialect: Dialect, seen: Seen, port: PortName, vlans: VlanSet) -> Iterator[str]:
    before = port_seen(dialect, seen, port) or PortSeen()
    last = not before.tagged - vlans
    yield from _written(dialect, dialect.empty if last and dialect.empty else dialect.remove, vlans, port=port)


def _vacation(dialect: Dialect, seen: Seen, port: PortName) -> Iterator[str]:
    """Take a port out of what it is in, tagged or not."""
    before = port_seen(dialect, seen, port) or PortSeen()
    if tagged := before.tagged - DEFAULT if not before.open else VlanSet():
        yield from _removal(dialect, seen, port, tagged)
    for template in dialect.vacate:
        repeated = before.untagged - DEFAULT if any("{vlan}" in line for line in template) else None
        yield from _written(dialect, template, repeated, port=port)


def _creations(dialect: Dialect, vlans: VlanSet) -> Iterator[str]:
    if dialect.create_many and len(vlans) > 1:
        yield from _written(dialect, dialect.create_many, vlans, dialect.runs_only)
    else:
        yield from _written(dialect, dialect.create, vlans)


def _additions(dialect: Dialect, difference: SwitchDifference, seen: Seen) -> Iterator[str]:
    for port, vlans in difference.add.items():
        if port in difference.access:
            continue
        before = port_seen(dialect, seen, port) or PortSeen()
        if not before.ready and port not in difference.close:
            yield from _written(dialect, dialect.prepare, port=port)
        yield from _written(dialect, dialect.allow, vlans, port=port)


def _written(
    dialect: Dialect,
    template: Lines,
    vlans: VlanSet | None = None,
    runs_only: bool = False,
    port: PortName | None = None,
) -> Iterator[str]:
    """Fill in a template: once, for each number, or for as many ranges as a command takes."""
    spelt = "" if port is None else dialect.ports.spelt(dialect.ports.canonical(port))
    for values in _values(dialect, template, vlans, 1 if runs_only else dialect.most_ranges):
        yield from (line.format(port=spelt, **values) for line in template)


def _values(dialect: Dialect, template: Lines, vlans: VlanSet | None, ranges: int) -> Iterable[dict[str, object]]:
    if vlans is None:
        return [{}]
    if any("{vlan}" in line for line in template):
        return [{"vlan": number, "name": vlan_name(number)} for number in vlans]
    runs = vlans.ranges()
    return [{"vlans": dialect.listed(runs[start : start + ranges])} for start in range(0, len(runs), ranges)]
