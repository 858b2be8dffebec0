"""From a difference to the lines that a device is told. Pure; written out for each platform in the tests."""

from collections.abc import Collection, Iterable, Iterator

from sbf_service.drivers.dialects.dialect import DEFAULT, Dialect, Kept, Lines, NamesPorts, PortSeen, Seen
from sbf_service.ownership import vlan_name
from virtcloud.model.port_use import PortUse
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference

UNCLOSED = "wanted an empty list of allowed VLANs before the port becomes a trunk, read back another list"
NOTHING_DONE = "no VLAN was created and no port was made a trunk; look at the switch's configuration"


def lines(dialect: Dialect, difference: SwitchDifference, seen: Seen) -> list[str]:
    """Return all lines of a change, without those that enter and leave the configuration."""
    return [*closing_lines(dialect, difference, seen), *changing_lines(dialect, difference, seen)]


def closing_lines(dialect: Dialect, difference: SwitchDifference, seen: Seen) -> list[str]:
    """Return the lines that vacate open access ports and set empty lists of allowed VLANs.

    What they achieved is read back before :func:`changing_lines` are sent (DESIGN.md §7.4).
    """
    vacated = [port for port in difference.close if port in difference.access]
    prepared = [port for port in prepared_ports(difference, seen, dialect) if dialect.prepare]
    return [
        *(line for port in vacated for line in _vacation(dialect, seen, port)),
        *(line for port in prepared for line in _written(dialect, dialect.prepare, port=port)),
    ]


def changing_lines(dialect: Dialect, difference: SwitchDifference, seen: Seen) -> list[str]:
    """Return the lines that are sent once no managed port is open: removals, then creations, then additions.

    ``seen`` is the reading from before :func:`closing_lines`.
    """
    access = difference.access
    vacated = [port for port in access if port in difference.remove and port not in difference.close]
    occupied = [(port, difference.add[port]) for port in access if port in difference.add]
    return [
        *(line for port in vacated for line in _vacation(dialect, seen, port)),
        *_removals(dialect, difference, seen),
        *_written(dialect, dialect.delete, difference.delete, dialect.runs_only),
        *(line for vlan in difference.create for line in _created(dialect, vlan, seen)),
        *_additions(dialect, difference, seen),
        *(line for port, vlans in occupied for line in _written(dialect, dialect.access, vlans, port=port)),
        *(line for port, use in difference.put_back.items() for line in _put_back(dialect, seen, port, use)),
    ]


def prepared_ports(difference: SwitchDifference, seen: Seen, dialect: NamesPorts) -> tuple[PortName, ...]:
    """Return the trunks that need an empty list first: open ones, and those that take no VLAN as they are."""
    new = (port for port in difference.add if not (port_seen(dialect, seen, port) or PortSeen()).ready)
    trunks = dict.fromkeys(port for port in (*difference.close, *new) if port not in difference.access)
    return tuple(trunks)


def closed_ports(dialect: Dialect, difference: SwitchDifference, seen: Seen) -> tuple[PortName, ...]:
    """Return the ports that :func:`closing_lines` vacates or gives an empty list."""
    vacated = (port for port in difference.close if port in difference.access)
    return (*vacated, *(prepared_ports(difference, seen, dialect) if dialect.prepare else ()))


def unclosed_ports(dialect: Dialect, difference: SwitchDifference, seen: Seen, after: Seen) -> tuple[PortName, ...]:
    """Return the ports that :func:`closing_lines` should have closed, and that ``after`` shows otherwise."""
    found = {port: port_seen(dialect, after, port) for port in closed_ports(dialect, difference, seen)}
    return tuple(port for port, one in found.items() if one is None or not _is_closed(one, port in difference.access))


def without_ports(difference: SwitchDifference, ports: Collection[PortName]) -> SwitchDifference:
    """Return the difference without additions to ``ports``, and without VLANs that only these needed."""
    add = {port: vlans for port, vlans in difference.add.items() if port not in ports}
    needed = VlanSet(number for vlans in add.values() for number in vlans)
    return difference.model_copy(update={"add": add, "create": difference.create & needed})


def kept_lines(dialect: NamesPorts, lines: Lines) -> Lines:
    """Return the lines of a port's configuration that SBF may change; all where the platform puts ports into VLANs."""
    return tuple(line for line in lines if any(kept.of((line,)) for kept in dialect.kept)) if dialect.kept else lines


def _put_back(dialect: Dialect, seen: Seen, port: PortName, use: PortUse) -> Iterator[str]:
    """Return the lines that give a port the use that it had before SBF took it."""
    now = port_seen(dialect, seen, port) or PortSeen()
    if not dialect.kept:
        yield from _rejoined(dialect, seen, port, use)
        return
    ordered = reversed(dialect.kept) if use.mode == "trunk" and dialect.trunk else dialect.kept
    body = [line for kept in ordered for line in _restored(kept, use, kept.of(now.lines))]
    if now.off != use.down:
        body.append(dialect.disable if use.down else dialect.enable)
    yield from _written(dialect, (dialect.allow[0], *body, dialect.allow[-1]), port=port)


def _restored(kept: Kept, use: PortUse, now: Lines) -> Lines:
    before = kept.of(use.lines)
    if before == now or kept.mode not in ("", use.mode):
        return ()
    return before or ((kept.undo,) if kept.undo else ())


def _rejoined(dialect: Dialect, seen: Seen, port: PortName, use: PortUse) -> Iterator[str]:
    """Put a port back into its untagged VLAN, where VLANs list their ports."""
    now = port_seen(dialect, seen, port) or PortSeen()
    before = VlanSet(number for number in (use.access, use.native) if number is not None)
    if now.untagged - before - DEFAULT:
        yield from _vacation(dialect, seen, port)
    if before:
        yield from _written(dialect, dialect.access, before, port=port)
    elif not use.tagged:
        yield from _written(dialect, dialect.leave_vlans, port=port)


def _is_closed(found: PortSeen, vacated: bool) -> bool:
    if vacated:
        return found.off or not (found.open or (found.tagged | found.untagged) - DEFAULT)
    return found.is_closed


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


def _additions(dialect: Dialect, difference: SwitchDifference, seen: Seen) -> Iterator[str]:
    prepared = prepared_ports(difference, seen, dialect)
    for port, vlans in difference.add.items():
        if port in difference.access:
            continue
        if port in prepared:
            yield from _written(dialect, dialect.trunk, port=port)
        yield from _written(dialect, dialect.allow, vlans, port=port)


def _created(dialect: Dialect, vlan: VlanId, seen: Seen) -> Iterator[str]:
    name = vlan_name(vlan, seen.names)
    yield from (line.format(vlan=vlan, name=name) for line in dialect.create)


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
        return [{"vlan": number} for number in vlans]
    runs = vlans.ranges()
    return [{"vlans": dialect.listed(runs[start : start + ranges])} for start in range(0, len(runs), ranges)]
