"""The observed state of a switch and the uses of its ports, derived from a reading. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sbf_service.domain.ownership import find_stated_vlans
from sbf_service.drivers.contract import SwitchScope
from sbf_service.drivers.device_errors import quote_start
from sbf_service.drivers.switch.dialect import (
    ALL_VLANS,
    DEFAULT_VLAN,
    PortConventions,
    PortReading,
    SwitchReading,
    find_port,
    select_restorable_lines,
)
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.port_use import PortUse, is_in_other_use
from virtcloud.model.switch_state import SwitchDifference, SwitchObserved
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet


class PortObservation(NamedTuple):
    """The managed VLANs of a port, and whether the port is open (:class:`SwitchObserved`)."""

    vlans: VlanSet
    is_open: bool = False


def build_observed_state(  # noqa: PLR0913 - each parameter is a field of the observed state
    scope: SwitchScope,
    ports: Mapping[PortName, PortObservation],
    uses: Mapping[PortName, PortUse],
    unused_modes: frozenset[str],
    *,
    vlans: VlanSet | None = None,
    names: dict[VlanId, str | None] | None = None,
    elsewhere: Mapping[PortName, VlanSet],
    down: tuple[PortName, ...],
    unrestored: Mapping[PortName, PortUse],
) -> SwitchObserved:
    """Return the observed state of managed ports.

    ``uses`` contains at least the managed ports. ``unused_modes`` are the modes of unconfigured ports. ``vlans`` are
    the existing VLANs; None on platforms where a VLAN exists only while a port carries it. ``unrestored`` becomes the
    field ``astray``.
    """
    existing = VlanSet(vlan for port in ports.values() for vlan in port.vlans) if vlans is None else vlans
    untaken = {port: uses[port] for port in scope.ports if port not in scope.taken}
    return SwitchObserved(
        vlans=existing,
        ports={port: observation.vlans for port, observation in ports.items()},
        open=tuple(port for port, observation in ports.items() if observation.is_open),
        names=names,
        elsewhere={port: found for port, found in elsewhere.items() if found},
        untaken=untaken,
        in_use=tuple(port for port, use in untaken.items() if is_in_other_use(use, scope.vlans, unused_modes)),
        down=down,
        astray=dict(unrestored),
    )


def find_changed_uses(scope: SwitchScope, uses: Mapping[PortName, PortUse]) -> dict[PortName, PortUse]:
    """Return the original use of each released port whose configuration lines differ from the lines of this use."""
    returned = {port: use for port, use in scope.returned.items() if port in uses}
    return {port: use for port, use in returned.items() if use.lines != uses[port].lines}


def is_outside_scope(port: str, scope: SwitchScope) -> bool:
    """Return whether a port is neither managed, nor a member of a managed aggregate, nor in ``scope.returned``."""
    return port not in {*scope.ports, *scope.members, *scope.returned}


def check_reserved_vlans(name: Name, difference: SwitchDifference, reading: SwitchReading) -> None:
    """Raise Refused when the difference creates a VLAN that the switch uses internally."""
    if reserved := difference.create & reading.reserved:
        remedy = f"remove {reserved} from the site's pool"
        raise Refused(f"switch {name}: wanted VLAN {reserved}, which the switch reserves: {remedy}")


@dataclass(frozen=True, slots=True)
class ScopedReading:
    """A reading of the switch called ``name``, with the managed scope."""

    name: Name
    conventions: PortConventions
    reading: SwitchReading
    scope: SwitchScope

    def find_port(self, port: PortName) -> PortReading:
        """Return the reading of a port. Raise Unsafe when the switch has no port of this name."""
        found = find_port(self.conventions, self.reading, port)
        if found is None:
            ports = quote_start(", ".join(self.reading.ports) or "none")
            remedy = "correct the topology"
            if port in self.scope.returned:  # a removed line card can be inserted again, with its configuration
                release = f"virtcloud element release {self.name} {port} --forget"
                remedy = f"SBF must restore the port's original use; if the port was removed for ever: {release}"
            raise Unsafe(f"switch {self.name}: expected a port {port}, found {ports}: {remedy}")
        return found

    def derive_use(self, port: PortName) -> PortUse:
        """Return a port's use, with the lines of its configuration that SBF may change.

        Raise Unsafe when the switch has no port of this name.
        """
        use = derive_port_use(self.find_port(port))
        return use.model_copy(update={"lines": select_restorable_lines(self.conventions, use.lines)})


def derive_port_use(port: PortReading) -> PortUse:
    """Return a port's use, with all lines of its configuration."""
    tagged = port.tagged | port.others
    return PortUse(
        mode=port.mode,
        access=None if port.mode == "trunk" else port.access,
        native=port.native,
        tagged=VlanSet() if tagged == ALL_VLANS else tagged - DEFAULT_VLAN,
        every=port.open or tagged == ALL_VLANS,
        down=port.off,
        lines=port.lines,
    )


def derive_observed_state(
    name: Name, conventions: PortConventions, reading: SwitchReading, scope: SwitchScope
) -> SwitchObserved:
    """Return the observed state within the scope. Raise Unsafe for configuration that SBF must not change."""
    scoped = ScopedReading(name, conventions, reading, scope)
    ports = {port: _observe_port(scoped, port) for port in scope.ports}
    down = (port for port in scope.ports if scoped.find_port(port).off and not _is_shut_by_sbf(scope, port))
    vlans = reading.vlans & scope.vlans
    return build_observed_state(
        scope,
        ports,
        {port: scoped.derive_use(port) for port in scope.ports},
        conventions.unused,
        vlans=vlans,
        names={vlan: reading.names.get(vlan) for vlan in vlans},
        elsewhere=dict(_find_unmanaged_use(scoped)),
        down=tuple(down),
        unrestored=dict(_find_unrestored_ports(scoped)),
    )


def _is_shut_by_sbf(scope: SwitchScope, port: PortName) -> bool:
    return port in scope.shut and port in scope.access


def _find_unmanaged_use(scoped: ScopedReading) -> Iterator[tuple[PortName, VlanSet]]:
    """Yield each unmanaged port with the managed VLAN IDs that the port carries.

    The tagged VLANs of a port that carries every VLAN do not count.
    """
    scope, canonical = scoped.scope, scoped.conventions.ports.canonical
    managed = {canonical(port) for port in (*scope.ports, *scope.members, *scope.returned)}
    for name, port in scoped.reading.ports.items():
        if name not in managed and not port.member:
            tagged = VlanSet() if port.open else port.tagged
            untagged = VlanSet() if scoped.conventions.vlans_are_local else port.untagged
            access = VlanSet() if port.access is None else VlanSet([port.access])
            yield PortName(name), find_stated_vlans(tagged, scope.vlans) | ((untagged | access) & scope.vlans)


def _find_unrestored_ports(scoped: ScopedReading) -> Iterator[tuple[PortName, PortUse]]:
    """Yield the ports in ``scope.returned`` whose original use is not restored, each with the use to restore.

    For a port that SBF did not shut down, the use contains the present state (enabled or shut down), which SBF must not
    change.
    """
    for port, before in scoped.scope.returned.items():
        now = scoped.derive_use(port)
        down = before.down if port in scoped.scope.shut else now.down
        if (before.lines, down) != (now.lines, now.down):
            yield port, before.model_copy(update={"down": down})


def _observe_port(scoped: ScopedReading, port: PortName) -> PortObservation:
    observe = _observe_access_port if port in scoped.scope.access else _observe_trunk
    return observe(scoped, port, scoped.find_port(port))


def _observe_trunk(scoped: ScopedReading, port: PortName, found: PortReading) -> PortObservation:
    if misused := found.untagged & scoped.scope.vlans:
        remedy = "move the other use to a VLAN outside the pool, or remove the VLAN from the pool"
        expected = f"expected VLAN {misused} tagged or absent, found it untagged"
        raise Unsafe(f"switch {scoped.name}, port {port}: {expected}: {remedy}")
    if found.open:
        return PortObservation(VlanSet(), is_open=True)
    return PortObservation(found.tagged & scoped.scope.vlans)


def _observe_access_port(scoped: ScopedReading, port: PortName, found: PortReading) -> PortObservation:
    """Return the managed VLAN of an access port, if the port carries only this VLAN.

    A port with any other configuration is open, with three exceptions, for which the result contains no VLAN:

    - a port that SBF has shut down
    - a port that is shut down, and is in no managed VLAN
    - a port that is in no VLAN, and is not prepared for VLANs

    Raise Unsafe for an unmanaged VLAN on a port that SBF has not configured and no administrator adopted.
    """
    scope = scoped.scope
    if found.off and (port in scope.shut or found.access not in scope.vlans):
        return PortObservation(VlanSet())
    tagged = VlanSet() if found.open else found.tagged
    others = (tagged | found.untagged) - scope.vlans - DEFAULT_VLAN
    if others and port not in scope.adopted and port not in scope.taken:
        remedy = "move the other use to another port, remove this port from the topology, or adopt it"
        expected = f"expected at most one managed VLAN, untagged, found VLAN {others}"
        raise Unsafe(f"switch {scoped.name}, access port {port}: {expected}: {remedy}")
    if found.access in scope.vlans and not tagged - DEFAULT_VLAN and found.access is not None:
        return PortObservation(VlanSet([found.access]))
    return PortObservation(VlanSet(), any((found.access, found.untagged, tagged, found.open, found.ready)))
