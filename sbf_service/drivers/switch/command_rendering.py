"""Renders a difference as commands of a dialect. Pure."""

from collections.abc import Collection, Iterable, Iterator

from sbf_service.domain.ownership import make_vlan_name
from sbf_service.drivers.switch.dialect import (
    DEFAULT_VLAN,
    Commands,
    Dialect,
    PortConventions,
    PortReading,
    RestorableLine,
    SwitchReading,
    find_port,
)
from virtcloud.model.port_use import PortUse
from virtcloud.model.switch_state import PortVlans, SwitchDifference
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet

UNCLOSED = "wanted an empty list of allowed VLANs before the port becomes a trunk, read back another list"
NOTHING_DONE = "no VLAN was created and no port became a trunk; check the switch's configuration"


def render_commands(dialect: Dialect, difference: SwitchDifference, reading: SwitchReading) -> list[str]:
    """Return all commands that apply a difference, except those that enter and leave the configuration mode."""
    return [
        *render_closing_commands(dialect, difference, reading),
        *render_change_commands(dialect, difference, reading),
    ]


def render_closing_commands(dialect: Dialect, difference: SwitchDifference, reading: SwitchReading) -> list[str]:
    """Return the commands that vacate access ports, and that empty other ports' lists of allowed VLANs.

    The driver reads the effect back before it sends the commands of :func:`render_change_commands`.
    """
    vacated = [port for port in difference.close if port in difference.access]
    prepared = [port for port in find_ports_to_prepare(difference, reading, dialect) if dialect.prepare]
    return [
        *(line for port in vacated for line in _render_vacating(dialect, reading, port)),
        *(line for port in prepared for line in _fill_template(dialect, dialect.prepare, port=port)),
    ]


def render_change_commands(dialect: Dialect, difference: SwitchDifference, reading: SwitchReading) -> list[str]:
    """Return the commands to send after the commands of :func:`render_closing_commands`.

    The order is: removals, creations, additions, restorations of port uses. ``reading`` is from before the commands of
    :func:`render_closing_commands`.
    """
    access = difference.access
    vacated = [port for port in access if port in difference.remove and port not in difference.close]
    occupied = [(port, difference.add[port]) for port in access if port in difference.add]
    return [
        *(line for port in vacated for line in _render_vacating(dialect, reading, port)),
        *_render_removals(dialect, difference, reading),
        *_fill_template(dialect, dialect.delete, difference.delete, dialect.runs_only),
        *(line for vlan in difference.create for line in _render_creation(dialect, vlan, reading)),
        *_render_additions(dialect, difference, reading),
        *(line for port, vlans in occupied for line in _fill_template(dialect, dialect.access, vlans, port=port)),
        *(
            line
            for port, use in difference.put_back.items()
            for line in _render_restoration(dialect, reading, port, use)
        ),
    ]


def find_ports_to_prepare(
    difference: SwitchDifference, reading: SwitchReading, dialect: PortConventions
) -> tuple[PortName, ...]:
    """Return the ports whose list of allowed VLANs SBF must empty before it adds VLANs.

    These are the open trunks, and the ports that are not ready (``PortReading.ready``).
    """
    new = (port for port in difference.add if not (find_port(dialect, reading, port) or PortReading()).ready)
    trunks = dict.fromkeys(port for port in (*difference.close, *new) if port not in difference.access)
    return tuple(trunks)


def find_ports_to_close(dialect: Dialect, difference: SwitchDifference, reading: SwitchReading) -> tuple[PortName, ...]:
    """Return the ports that :func:`render_closing_commands` closes.

    These are the access ports to vacate and, if the dialect has ``prepare``, the ports of
    :func:`find_ports_to_prepare`.
    """
    vacated = (port for port in difference.close if port in difference.access)
    return (*vacated, *(find_ports_to_prepare(difference, reading, dialect) if dialect.prepare else ()))


def find_unclosed_ports(
    dialect: Dialect, difference: SwitchDifference, reading: SwitchReading, after: SwitchReading
) -> tuple[PortName, ...]:
    """Return the ports of :func:`find_ports_to_close` that are not closed in the reading ``after``."""
    states = {port: find_port(dialect, after, port) for port in find_ports_to_close(dialect, difference, reading)}
    return tuple(
        port for port, state in states.items() if state is None or not _is_closed(state, port in difference.access)
    )


def drop_ports(difference: SwitchDifference, ports: Collection[PortName]) -> SwitchDifference:
    """Return the difference without additions to ``ports``.

    Omit also the creation of VLANs that only these ports need.
    """
    add = {port: vlans for port, vlans in difference.add.items() if port not in ports}
    needed = VlanSet(vlan for vlans in add.values() for vlan in vlans)
    return difference.model_copy(update={"add": add, "create": difference.create & needed})


def _render_restoration(dialect: Dialect, reading: SwitchReading, port: PortName, use: PortUse) -> Iterator[str]:
    now = find_port(dialect, reading, port) or PortReading()
    if not dialect.kept:
        yield from _render_rejoining(dialect, reading, port, use)
        return
    ordered = reversed(dialect.kept) if use.mode == "trunk" and dialect.trunk else dialect.kept
    body = [line for kept in ordered for line in _restore_line(kept, use, kept.select(now.lines))]
    if now.off != use.down:
        body.append(dialect.disable if use.down else dialect.enable)
    yield from _fill_template(dialect, (dialect.allow[0], *body, dialect.allow[-1]), port=port)


def _restore_line(kept: RestorableLine, use: PortUse, now: Commands) -> Commands:
    before = kept.select(use.lines)
    if before == now or kept.mode not in ("", use.mode):
        return ()
    return before or ((kept.undo,) if kept.undo else ())


def _render_rejoining(dialect: Dialect, reading: SwitchReading, port: PortName, use: PortUse) -> Iterator[str]:
    """Yield the commands that restore a port's untagged VLAN.

    This is necessary on platforms where the configuration of a VLAN lists the VLAN's ports.
    """
    now = find_port(dialect, reading, port) or PortReading()
    before = VlanSet(vlan for vlan in (use.access, use.native) if vlan is not None)
    if now.untagged - before - DEFAULT_VLAN:
        yield from _render_vacating(dialect, reading, port)
    if before:
        yield from _fill_template(dialect, dialect.access, before, port=port)
    elif not use.tagged:
        yield from _fill_template(dialect, dialect.leave_vlans, port=port)


def _is_closed(port: PortReading, is_access: bool) -> bool:
    if is_access:
        return port.off or not (port.open or (port.tagged | port.untagged) - DEFAULT_VLAN)
    return port.is_closed


def select_trunks(ports: PortVlans, difference: SwitchDifference) -> Iterator[tuple[PortName, VlanSet]]:
    """Yield the ports that are not access ports, with their VLANs."""
    yield from ((port, vlans) for port, vlans in ports.items() if port not in difference.access)


def _render_removals(dialect: Dialect, difference: SwitchDifference, reading: SwitchReading) -> Iterator[str]:
    for port, vlans in select_trunks(difference.remove, difference):
        yield from _render_removal(dialect, reading, port, vlans)


def _render_removal(dialect: Dialect, reading: SwitchReading, port: PortName, vlans: VlanSet) -> Iterator[str]:
    before = find_port(dialect, reading, port) or PortReading()
    last = not before.tagged - vlans
    yield from _fill_template(dialect, dialect.empty if last and dialect.empty else dialect.remove, vlans, port=port)


def _render_vacating(dialect: Dialect, reading: SwitchReading, port: PortName) -> Iterator[str]:
    before = find_port(dialect, reading, port) or PortReading()
    if tagged := before.tagged - DEFAULT_VLAN if not before.open else VlanSet():
        yield from _render_removal(dialect, reading, port, tagged)
    for template in dialect.vacate:
        repeated = before.untagged - DEFAULT_VLAN if any("{vlan}" in line for line in template) else None
        yield from _fill_template(dialect, template, repeated, port=port)


def _render_additions(dialect: Dialect, difference: SwitchDifference, reading: SwitchReading) -> Iterator[str]:
    prepared = find_ports_to_prepare(difference, reading, dialect)
    for port, vlans in select_trunks(difference.add, difference):
        if port in prepared:
            yield from _fill_template(dialect, dialect.trunk, port=port)
        yield from _fill_template(dialect, dialect.allow, vlans, port=port)


def _render_creation(dialect: Dialect, vlan: VlanId, reading: SwitchReading) -> Iterator[str]:
    name = make_vlan_name(vlan, reading.names)
    yield from (line.format(vlan=vlan, name=name) for line in dialect.create)


def _fill_template(
    dialect: Dialect,
    template: Commands,
    vlans: VlanSet | None = None,
    runs_only: bool = False,
    port: PortName | None = None,
) -> Iterator[str]:
    """Yield the lines of a template.

    A template with ``{vlan}`` is repeated for each VLAN ID, and a template with ``{vlans}`` for each group of ranges
    that fits in one command. Without ``vlans``, yield each line once.
    """
    spelt = "" if port is None else dialect.ports.spelt(dialect.ports.canonical(port))
    for values in _template_values(dialect, template, vlans, 1 if runs_only else dialect.most_ranges):
        yield from (line.format(port=spelt, **values) for line in template)


def _template_values(
    dialect: Dialect, template: Commands, vlans: VlanSet | None, ranges: int
) -> Iterable[dict[str, object]]:
    if vlans is None:
        return [{}]
    if any("{vlan}" in line for line in template):
        return [{"vlan": vlan} for vlan in vlans]
    runs = vlans.ranges()
    return [{"vlans": dialect.format_ranges(runs[start : start + ranges])} for start in range(0, len(runs), ranges)]
