"""From a reading to what is carried within what SBF manages, and to the uses of ports. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from sbf_service.domain.ownership import find_stated_vlans
from sbf_service.drivers.contract import SwitchScope
from sbf_service.drivers.switch.command_rendering import find_port, select_restorable_lines
from sbf_service.drivers.switch.dialect import ALL_VLANS, DEFAULT_VLAN, PortConventions, PortReading, SwitchReading
from sbf_service.drivers.transport.conversation import quote_start
from virtcloud.model.errors import Unsafe
from virtcloud.model.port_use import PortUse, is_in_other_use
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchObserved


@dataclass(frozen=True, slots=True)
class ScopedReading:
    """A reading of the switch called ``name``."""

    name: Name
    dialect: PortConventions
    seen: SwitchReading
    managed: SwitchScope
    carried: dict[PortName, VlanSet] = field(default_factory=dict)
    opened: list[PortName] = field(default_factory=list)

    def found(self, port: PortName) -> PortReading:
        """Return a port as it was read. Raise Unsafe when the switch has none of this name."""
        found = find_port(self.dialect, self.seen, port)
        if found is None:
            there = ", ".join(self.seen.ports) or "none"
            raise Unsafe(
                f"switch {self.name}: expected a port {port}, found {quote_start(there)}: correct the topology"
            )
        return found

    def use(self, port: PortName) -> PortUse:
        """Return a port's use."""
        use = derive_port_use(self.found(port))
        return use.model_copy(update={"lines": select_restorable_lines(self.dialect, use.lines)})


def derive_port_use(found: PortReading) -> PortUse:
    """Return the use of a port, with all lines of its configuration."""
    tagged = found.tagged | found.others
    return PortUse(
        mode=found.mode,
        access=None if found.mode == "trunk" else found.access,
        native=found.native,
        tagged=VlanSet() if tagged == ALL_VLANS else tagged - DEFAULT_VLAN,
        every=found.open or tagged == ALL_VLANS,
        down=found.off,
        lines=found.lines,
    )


def derive_observed_state(
    name: Name, dialect: PortConventions, seen: SwitchReading, managed: SwitchScope
) -> SwitchObserved:
    """Return what of a reading SBF manages. Raise Unsafe for what may not be touched."""
    reading = ScopedReading(name, dialect, seen, managed)
    carried, opened, down = dict[PortName, VlanSet](), [], []
    for port in managed.ports:
        found = reading.found(port)
        look = _observe_access_port if port in managed.access else _observe_trunk
        carried[port], is_open = look(reading, port, found)
        opened += [port] if is_open else []
        down += [port] if found.off and not (port in managed.shut and port in managed.access) else []
    untaken = {port: reading.use(port) for port in managed.ports if port not in managed.taken}
    vlans = seen.vlans & managed.vlans
    return SwitchObserved(
        vlans=vlans,
        ports=carried,
        open=tuple(opened),
        names={vlan: seen.names.get(vlan) for vlan in vlans},
        elsewhere=dict(_find_unmanaged_use(dialect, seen, managed)),
        untaken=untaken,
        in_use=tuple(p for p, use in untaken.items() if is_in_other_use(use, managed.vlans, dialect.unused)),
        down=tuple(down),
        astray=dict(_find_unrestored_ports(reading)),
    )


def _find_unmanaged_use(
    dialect: PortConventions, seen: SwitchReading, managed: SwitchScope
) -> Iterator[tuple[PortName, VlanSet]]:
    """Yield unmanaged ports with the managed numbers they carry; a port that carries all VLANs states none."""
    ours = {dialect.ports.canonical(port) for port in (*managed.ports, *managed.members, *managed.returned)}
    for name, port in seen.ports.items():
        if name not in ours and not port.member:
            tagged = VlanSet() if port.open else port.tagged
            untagged = VlanSet() if dialect.vlans_are_local else port.untagged
            access = VlanSet() if port.access is None else VlanSet([port.access])
            if found := find_stated_vlans(tagged, managed.vlans) | ((untagged | access) & managed.vlans):
                yield PortName(name), found


def _find_unrestored_ports(reading: ScopedReading) -> Iterator[tuple[PortName, PortUse]]:
    """Yield the ports that SBF gave up and that are not as before. A port that SBF did not shut stays up or down."""
    for port, before in reading.managed.returned.items():
        now = reading.use(port)
        down = before.down if port in reading.managed.shut else now.down
        if (before.lines, down) != (now.lines, now.down):
            yield port, before.model_copy(update={"down": down})


def _observe_trunk(reading: ScopedReading, port: PortName, found: PortReading) -> tuple[VlanSet, bool]:
    if misused := found.untagged & reading.managed.vlans:
        cure = "move what uses it off the pool's numbers, or take them out of the pool"
        wanted = f"expected VLAN {misused} tagged or absent, found it untagged"
        raise Unsafe(f"switch {reading.name}, port {port}: {wanted}: {cure}")
    return (VlanSet(), True) if found.open else (found.tagged & reading.managed.vlans, False)


def _observe_access_port(reading: ScopedReading, port: PortName, found: PortReading) -> tuple[VlanSet, bool]:
    """Return an access port's VLAN of ours, and whether it carries anything else, so that it must be vacated first."""
    managed = reading.managed
    if found.off and (port in managed.shut or found.access not in managed.vlans):
        return VlanSet(), False
    tagged = VlanSet() if found.open else found.tagged
    others = (tagged | found.untagged) - managed.vlans - DEFAULT_VLAN
    if others and port not in managed.adopted and port not in managed.taken:
        cure = "move who uses it to another port, take this one out of the topology, or adopt it"
        expected = f"expected one VLAN of ours untagged or none, found {others}"
        raise Unsafe(f"switch {reading.name}, access port {port}: {expected}: {cure}")
    if found.access in managed.vlans and not tagged - DEFAULT_VLAN and found.access is not None:
        return VlanSet([found.access]), False
    return VlanSet(), any((found.access, found.untagged, tagged, found.open, found.ready))
