"""The driver for Linux switches: VLAN-aware bridges, configured with iproute2's ``bridge`` (bridge(8)).

On a trunk, SBF does not change VLAN IDs outside the managed scope, tagged or untagged. A managed VLAN ID that is
untagged or the default VLAN (PVID) of a trunk is *in other use*. The driver then raises Unsafe: a change could
disconnect the VLAN's user, or connect the user to a cluster.

An access port carries one managed VLAN untagged. SBF removes other managed VLANs and VLAN 1 from the port. For any
other untagged VLAN, the driver raises Unsafe, unless the port was adopted or SBF has configured it before. From such a
port, SBF removes every VLAN except the wanted VLAN.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sbf_service.domain.cabling import Neighbour
from sbf_service.domain.ownership import find_stated_vlans
from sbf_service.drivers.contract import SwitchCapabilities, SwitchScope
from sbf_service.drivers.device_errors import quote_end
from sbf_service.drivers.switch.dialect import DEFAULT_VLAN, PortReading, SwitchReading
from sbf_service.drivers.switch.lldp import read_lldpd_neighbours
from sbf_service.drivers.switch.observed_state import (
    PortObservation,
    build_observed_state,
    find_changed_uses,
    is_outside_scope,
)
from sbf_service.drivers.transport.device_session import CommandLine
from sbf_service.drivers.transport.iproute2 import (
    BRIDGE_LINKS,
    SHOW_LINKS,
    SHOW_VLANS,
    BridgeLink,
    VlanEntry,
    parse_json,
    parse_vlan_entries,
    raise_for_failures,
    run_batch,
    run_query,
)
from sbf_service.drivers.transport.shell import Shell
from virtcloud.model.errors import Unsafe
from virtcloud.model.port_use import AGGREGATED, PortUse
from virtcloud.model.switch_state import PortVlans, SwitchDifference, SwitchObserved
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet

CAPABILITIES = SwitchCapabilities(reserved=VlanSet([1]), access=True)  # VLAN 1: the default of vlan_default_pvid
SHOW = f"{SHOW_VLANS} && {SHOW_LINKS}"
UNUSED = frozenset({""})
FLAGS = {"PVID": "pvid", "Egress Untagged": "untagged"}
UNTAGGED = " pvid untagged"
UNTAGGED_FLAGS = {"PVID", "Egress Untagged"}


class LinuxBridge:
    """The driver of one Linux switch."""

    def __init__(self, name: Name, line: CommandLine) -> None:
        """Create a driver of the switch ``name``. The driver sends all commands over ``line``."""
        self._name = name
        self._shell = Shell(f"switch {name}", line)
        self._removable: PortVlans = {}
        self._entries: Mapping[PortName, tuple[str, ...]] = {}

    def read(self, scope: SwitchScope) -> SwitchObserved:
        """Read the managed ports, and the managed VLAN IDs that other ports carry, in one round trip.

        Ignore ports in ``scope.returned`` without a bridge: the kernel deleted their VLANs when they left the bridge.
        """
        entries, devices = self._query()
        attached = {device.name for device in devices if device.master is not None}
        scope = replace(scope, returned={port: use for port, use in scope.returned.items() if port in attached})
        _check_existing(self._name, devices, scope)
        _check_filtering(self._name, devices, scope)
        down = [device.name for device in devices if not device.is_up]
        members = [device.name for device in devices if device.is_member]
        observed = derive_bridge_state(self._name, entries, scope, down, members)
        self._removable = {port: _find_removable_vlans(port, entries.get(port, []), scope) for port in observed.open}
        self._entries = {port: format_vlan_entries(entries.get(port, [])) for port in observed.astray}
        return observed

    def read_all(self) -> SwitchReading:
        """Read all ports of all bridges, managed or not. Change nothing."""
        entries, devices = self._query()
        down = {device.name for device in devices if not device.is_up}
        members = {device.name for device in devices if device.is_member}
        attached = [
            device.name for device in devices if device.master is not None
        ]  # bridge(8) omits ports without VLANs
        ports = {
            port: read_bridge_port(entries.get(port, []), down=port in down, is_member=port in members)
            for port in dict.fromkeys([*entries, *attached])
        }
        return SwitchReading(VlanSet(vlan for port in ports.values() for vlan in port.tagged | port.untagged), ports)

    def apply(self, difference: SwitchDifference) -> None:
        """Apply a difference, with as many lines as possible in one round trip."""
        raise_for_failures(self._shell.device, run_batch(self._shell, "bridge", self._render(difference)))

    def save(self) -> bool:
        """Do nothing and return False: there is no startup configuration, and no VLAN survives a restart."""
        return False

    def list_commands(self, difference: SwitchDifference) -> tuple[str, ...]:
        """Return the lines of :meth:`apply`, each as a separate command (``bridge …``)."""
        return tuple(f"bridge {line}" for line in self._render(difference))

    def read_neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:  # noqa: ARG002 - lldpd lists all ports
        """Read the neighbours from the switch's lldpd."""
        return read_lldpd_neighbours(self._shell, self._name)

    def is_lost(self) -> bool:
        """Return whether the switch ended the session."""
        return self._shell.is_lost()

    def close(self) -> None:
        """End the session."""
        self._shell.close()

    def _query(self) -> tuple[dict[str, list[VlanEntry]], list[BridgeLink]]:
        self._shell.close_if_lost()
        vlans, _, links = run_query(self._shell, SHOW).partition("\n")
        entries = parse_vlan_entries(self._shell.device, vlans)
        return entries, parse_json(self._shell.device, SHOW_LINKS, links, BRIDGE_LINKS)

    def _render(self, difference: SwitchDifference) -> list[str]:
        removable = {port: self._removable.get(port, VlanSet()) for port in difference.close}
        restored = difference.put_back.items()
        restorations = (line for port, use in restored for line in _render_restoration(port, self._entries[port], use))
        return [*_render_removals(removable), *render_bridge_commands(difference), *restorations]


def derive_bridge_state(
    name: Name,
    entries: Mapping[str, list[VlanEntry]],
    scope: SwitchScope,
    down: Sequence[str] = (),
    members: Sequence[str] = (),
) -> SwitchObserved:
    """Return the observed state within the scope. Raise Unsafe for configuration that SBF must not change.

    ``down`` contains the ports that are shut down. ``members`` contains the ports that belong to a bond.
    """
    uses = {
        port: derive_bridge_port_use(entries.get(port, []), down=port in down, is_member=port in members)
        for port in (*scope.ports, *scope.returned)
    }
    elsewhere = {
        PortName(port): find_stated_vlans((vlan for entry in found for vlan in entry.vlan_ids), scope.vlans)
        for port, found in entries.items()
        if is_outside_scope(port, scope)
    }
    return build_observed_state(
        scope,
        {port: _observe_port(name, port, entries.get(port, []), scope) for port in scope.ports},
        uses,
        UNUSED,
        elsewhere=elsewhere,
        down=tuple(port for port in scope.ports if port in down),
        unrestored=find_changed_uses(scope, uses),
    )


def derive_bridge_port_use(entries: Sequence[VlanEntry], *, down: bool = False, is_member: bool = False) -> PortUse:
    """Return a port's use, derived from the port's VLANs. The highest untagged VLAN is the native VLAN."""
    tagged = VlanSet(vlan for entry in entries if not entry.flags for vlan in entry.vlan_ids)
    untagged = VlanSet(vlan for entry in entries if entry.flags for vlan in entry.vlan_ids)
    mode = AGGREGATED if is_member else "trunk" if tagged or untagged - DEFAULT_VLAN else ""
    return PortUse(
        mode=mode,
        native=max(untagged, default=None),
        tagged=tagged - DEFAULT_VLAN,
        down=down,
        lines=format_vlan_entries(entries),
    )


def read_bridge_port(entries: Sequence[VlanEntry], *, down: bool, is_member: bool) -> PortReading:
    """Return the configuration that was read from a port, with all VLANs, managed or not."""
    use = derive_bridge_port_use(entries, down=down, is_member=is_member)
    untagged = VlanSet(vlan for entry in entries if entry.flags for vlan in entry.vlan_ids)
    return PortReading(
        tagged=VlanSet(vlan for entry in entries if not entry.flags for vlan in entry.vlan_ids),
        untagged=untagged,
        native=use.native,
        off=down,
        member=is_member,
        mode=use.mode,
        lines=use.lines,
    )


def format_vlan_entries(entries: Sequence[VlanEntry]) -> tuple[str, ...]:
    """Return a port's VLANs in the form of arguments of ``bridge vlan add``."""
    return tuple(
        f"{_format_range(pair)}{_format_flags(entry)}" for entry in entries for pair in entry.vlan_ids.ranges()
    )


def render_bridge_commands(difference: SwitchDifference) -> Iterator[str]:
    """Yield the lines for ``bridge -batch``, removals first."""
    yield from _render_removals(difference.remove)
    for port, pair in _list_port_ranges(difference.add):
        flags = UNTAGGED if port in difference.access else ""
        yield f"vlan add dev {port} vid {_format_range(pair)}{flags}"


def _check_existing(name: Name, devices: Sequence[BridgeLink], scope: SwitchScope) -> None:
    existing = {device.name for device in devices}
    for port in (port for port in scope.ports if port not in existing):
        found = ", ".join(sorted(existing)) or "none"
        raise Unsafe(f"switch {name}: expected a port {port}, found {quote_end(found)}: correct the topology")


def _check_filtering(name: Name, devices: Sequence[BridgeLink], scope: SwitchScope) -> None:
    """Raise Unsafe if the bridge of a managed port ignores VLANs: it would connect all clusters."""
    bridges = {device.master for device in devices if device.name in scope.ports}
    for device in devices:
        if device.name in bridges and device.ignores_vlans:
            remedy = f"ip link set {device.name} type bridge vlan_filtering 1"
            found = f"expected bridge {device.name} with vlan_filtering 1, found vlan_filtering 0"
            raise Unsafe(f"switch {name}: {found}: the bridge would connect all clusters; on the switch: {remedy}")


def _observe_port(name: Name, port: PortName, entries: list[VlanEntry], scope: SwitchScope) -> PortObservation:
    observe = _observe_access_port if port in scope.access else _observe_trunk
    return observe(name, port, entries, scope)


def _observe_trunk(name: Name, port: PortName, entries: list[VlanEntry], scope: SwitchScope) -> PortObservation:
    for entry in entries:
        misused = entry.vlan_ids & scope.vlans
        if entry.flags and misused:
            raise Unsafe(
                f"switch {name}, port {port}: expected VLAN {misused} tagged or absent, "
                f"found {', '.join(entry.flags)}: "
                f"move the other use to a VLAN outside the pool, or remove the VLAN from the pool"
            )
    return PortObservation(VlanSet(vlan for entry in entries for vlan in entry.vlan_ids) & scope.vlans)


def _observe_access_port(name: Name, port: PortName, entries: list[VlanEntry], scope: SwitchScope) -> PortObservation:
    """Return the state of an access port.

    The state contains the only VLAN that SBF may remove, if it is untagged and not VLAN 1. Otherwise, the port is open
    if SBF may remove any of its VLANs. Raise Unsafe for an unmanaged untagged VLAN other than VLAN 1, unless the port
    was adopted or SBF has configured it before.
    """
    for entry in () if _is_assigned(port, scope) else entries:
        if entry.flags and (others := entry.vlan_ids - scope.vlans - DEFAULT_VLAN):
            raise Unsafe(
                f"switch {name}, access port {port}: expected at most one managed VLAN, untagged, found VLAN {others}: "
                f"move the other use to another port, remove this port from the topology, or adopt it "
                f"('virtcloud element adopt {name} {port}')"
            )
    removable = _find_removable_vlans(port, entries, scope)
    untagged = [entry.vlan_ids for entry in entries if entry.flags and set(entry.flags) == UNTAGGED_FLAGS]
    if len(removable) == 1 and untagged == [removable] and not removable & DEFAULT_VLAN:
        return PortObservation(removable)
    return PortObservation(VlanSet(), is_open=bool(removable))


def _find_removable_vlans(port: PortName, entries: list[VlanEntry], scope: SwitchScope) -> VlanSet:
    """Return the VLANs that SBF may remove from an access port.

    These are all VLANs of a port that was adopted or that SBF has configured before, otherwise the managed VLANs and
    VLAN 1.
    """
    vlans = VlanSet(vlan for entry in entries for vlan in entry.vlan_ids)
    return vlans if _is_assigned(port, scope) else vlans & (scope.vlans | DEFAULT_VLAN)


def _is_assigned(port: PortName, scope: SwitchScope) -> bool:
    return port in scope.adopted or port in scope.taken


def _format_flags(entry: VlanEntry) -> str:
    return "".join(f" {FLAGS[flag]}" for flag in entry.flags if flag in FLAGS)


def _render_restoration(port: PortName, now: Sequence[str], use: PortUse) -> Iterator[str]:
    yield from (f"vlan del dev {port} vid {line.split()[0]}" for line in now if line not in use.lines)
    yield from (f"vlan add dev {port} vid {line}" for line in use.lines if line not in now)


def _render_removals(ports: PortVlans) -> Iterator[str]:
    yield from (f"vlan del dev {port} vid {_format_range(pair)}" for port, pair in _list_port_ranges(ports))


def _list_port_ranges(ports: PortVlans) -> Iterator[tuple[PortName, tuple[VlanId, VlanId]]]:
    for port, vlans in ports.items():
        yield from ((port, pair) for pair in vlans.ranges())


def _format_range(pair: tuple[VlanId, VlanId]) -> str:
    first, last = pair
    return str(first) if first == last else f"{first}-{last}"
