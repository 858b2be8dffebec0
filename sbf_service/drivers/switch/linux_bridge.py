"""Switches that are Linux: VLAN-aware bridges, driven by iproute2's ``bridge`` (bridge(8)).

Numbers that are not managed are left alone, tagged or not. A managed number that is found untagged or as a port's
default (PVID) is *unsafe*: somebody uses a number of the pool for something else, and what SBF would take away or
join to a cluster there is theirs. Nothing on the switch is changed until they have moved it.

On an access port it is the other way round: its one untagged number is ours. What else was found there of managed
numbers, or of VLAN 1, is taken away; another untagged number is somebody's, and unsafe.
"""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, Field, TypeAdapter

from sbf_service.domain.cabling import Neighbour
from sbf_service.domain.ownership import find_stated_vlans
from sbf_service.drivers.contract import SwitchCapabilities, SwitchScope
from sbf_service.drivers.switch.lldp import read_lldpd_neighbours
from sbf_service.drivers.transport.device_session import CommandLine
from sbf_service.drivers.transport.iproute2 import (
    SHOW_VLANS,
    VlanEntry,
    parse_json,
    parse_vlan_entries,
    raise_for_failures,
    run_batch,
    run_query,
)
from sbf_service.drivers.transport.shell import Shell
from virtcloud.model.errors import Unsafe
from virtcloud.model.port_use import AGGREGATED, PortUse, is_in_other_use
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import PortVlans, SwitchDifference, SwitchObserved

CAPABILITIES = SwitchCapabilities(reserved=VlanSet([1]), access=True)
"""1 is ``vlan_default_pvid`` unless told otherwise."""

SHOW_LINKS = "ip -json link show"
SHOW = f"{SHOW_VLANS} && {SHOW_LINKS}"
UNUSED = frozenset({""})
FLAGS = {"PVID": "pvid", "Egress Untagged": "untagged"}
UNTAGGED = " pvid untagged"
UNTAGGED_FLAGS = {"PVID", "Egress Untagged"}
DEFAULT_VLAN = VlanSet([1])
"""What a port is in that nobody configured."""


class _BridgeLink(BaseModel):
    """A network device and whether it was set up; of more that ip(8) prints nothing is needed."""

    name: str = Field(alias="ifname")
    flags: list[str]

    @property
    def is_up(self) -> bool:
        return "UP" in self.flags

    @property
    def is_member(self) -> bool:
        """Whether a bond has it (``IFF_SLAVE``, netdevice(7))."""
        return "SLAVE" in self.flags


_LINKS = TypeAdapter(list[_BridgeLink])


class LinuxBridge:
    """One Linux switch."""

    def __init__(self, name: Name, line: CommandLine) -> None:
        """Drive the switch called ``name`` over ``line``."""
        self._name = name
        self._shell = Shell(f"switch {name}", line)
        self._strays: PortVlans = {}
        self._words: Mapping[PortName, tuple[str, ...]] = {}

    def read(self, managed: SwitchScope) -> SwitchObserved:
        """Read what managed ports carry of managed numbers; one round trip."""
        self._shell.renew()
        vlans, _, links = run_query(self._shell, SHOW).partition("\n")
        entries = parse_vlan_entries(self._shell.whom, vlans)
        devices = parse_json(self._shell.whom, SHOW_LINKS, links, _LINKS)
        down = [one.name for one in devices if not one.is_up]
        joined = [one.name for one in devices if one.is_member]
        carried = derive_bridge_state(self._name, entries, managed, down, joined)
        self._strays = {port: _find_removable_vlans(port, entries.get(port, []), managed) for port in carried.open}
        self._words = {port: format_vlan_entries(entries.get(port, [])) for port in carried.astray}
        return carried

    def apply(self, difference: SwitchDifference) -> None:
        """Make the change; all of it in as few round trips as a terminal line allows."""
        raise_for_failures(self._shell.whom, run_batch(self._shell, "bridge", self._commands(difference)))

    def save(self) -> bool:
        """Return False: the kernel forgets the VLANs at a restart, so that none of them comes back."""
        return False

    def lines(self, difference: SwitchDifference) -> tuple[str, ...]:
        """Give the lines of the batch."""
        return tuple(f"bridge {line}" for line in self._commands(difference))

    def neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:  # noqa: ARG002 - lldpd tells all
        """Ask the switch's lldpd."""
        return read_lldpd_neighbours(self._shell, self._name)

    def is_lost(self) -> bool:
        """Return whether the device ended the session by itself."""
        return self._shell.is_lost()

    def close(self) -> None:
        """End the session."""
        self._shell.close()

    def _commands(self, difference: SwitchDifference) -> list[str]:
        strays = {port: self._strays.get(port, VlanSet()) for port in difference.close}
        back = (
            line
            for port, use in difference.put_back.items()
            for line in _render_restoration(port, self._words[port], use)
        )
        return [*_render_removals(strays), *render_bridge_commands(difference), *back]


def derive_bridge_state(
    name: Name,
    entries: Mapping[str, list[VlanEntry]],
    managed: SwitchScope,
    down: Sequence[str] = (),
    joined: Sequence[str] = (),
) -> SwitchObserved:
    """Return what of a reading SBF manages. Raise Unsafe for what may not be touched.

    ``down`` are the ports that are shut down, ``joined`` those that are members of bonds.
    """
    ports, opened = {}, []
    for port in managed.ports:
        if port in managed.access:
            ports[port], stray = _observe_access_port(name, port, entries.get(port, []), managed)
            opened += [port] if stray else []
        else:
            ports[port] = _observe_trunk(name, port, entries.get(port, []), managed.vlans)
    exists = VlanSet(number for vlans in ports.values() for number in vlans)
    elsewhere = {
        PortName(port): find_stated_vlans((number for entry in found for number in entry.numbers), managed.vlans)
        for port, found in entries.items()
        if port not in {*managed.ports, *managed.members, *managed.returned}
    }
    used = {port: vlans for port, vlans in elsewhere.items() if vlans}
    uses = {
        port: derive_bridge_port_use(entries.get(port, []), down=port in down, joined=port in joined)
        for port in (*managed.ports, *managed.returned)
    }
    untaken = {port: uses[port] for port in managed.ports if port not in managed.taken}
    return SwitchObserved(
        vlans=exists,
        ports=ports,
        open=tuple(opened),
        elsewhere=used,
        untaken=untaken,
        in_use=tuple(port for port, use in untaken.items() if is_in_other_use(use, managed.vlans, UNUSED)),
        down=tuple(port for port in managed.ports if port in down),
        astray={port: use for port, use in managed.returned.items() if use.lines != uses[port].lines},
    )


def derive_bridge_port_use(entries: Sequence[VlanEntry], *, down: bool = False, joined: bool = False) -> PortUse:
    """Return the use of a port from its VLANs; an untagged one is the native VLAN."""
    tagged = VlanSet(number for entry in entries if not entry.flags for number in entry.numbers)
    untagged = VlanSet(number for entry in entries if entry.flags for number in entry.numbers)
    mode = AGGREGATED if joined else "trunk" if tagged or untagged - DEFAULT_VLAN else ""
    return PortUse(
        mode=mode,
        native=max(untagged, default=None),
        tagged=tagged - DEFAULT_VLAN,
        down=down,
        lines=format_vlan_entries(entries),
    )


def format_vlan_entries(entries: Sequence[VlanEntry]) -> tuple[str, ...]:
    """Return a port's VLANs as ``bridge vlan add`` takes them."""
    return tuple(f"{_format_range(pair)}{_format_flags(entry)}" for entry in entries for pair in entry.numbers.ranges())


def _format_flags(entry: VlanEntry) -> str:
    return "".join(f" {FLAGS[flag]}" for flag in entry.flags if flag in FLAGS)


def _render_restoration(port: PortName, now: Sequence[str], use: PortUse) -> Iterator[str]:
    yield from (f"vlan del dev {port} vid {one.split()[0]}" for one in now if one not in use.lines)
    yield from (f"vlan add dev {port} vid {one}" for one in use.lines if one not in now)


def render_bridge_commands(difference: SwitchDifference) -> Iterator[str]:
    """Give the lines for ``bridge -batch``: removals first."""
    yield from _render_removals(difference.remove)
    for port, pair in _list_port_ranges(difference.add):
        how = UNTAGGED if port in difference.access else ""
        yield f"vlan add dev {port} vid {_format_range(pair)}{how}"


def _observe_trunk(name: Name, port: PortName, entries: list[VlanEntry], managed: VlanSet) -> VlanSet:
    for entry in entries:
        misused = entry.numbers & managed
        if entry.flags and misused:
            raise Unsafe(
                f"switch {name}, port {port}: expected VLAN {misused} tagged or absent, "
                f"found {', '.join(entry.flags)}: "
                f"move what uses it to a number outside the pool, or take that number out of the pool"
            )
    return VlanSet(number for entry in entries for number in entry.numbers) & managed


def _observe_access_port(
    name: Name, port: PortName, entries: list[VlanEntry], managed: SwitchScope
) -> tuple[VlanSet, bool]:
    """Give an access port's number, and whether something else stands there, so that it has none of ours."""
    agreed = port in managed.adopted or port in managed.taken
    for entry in () if agreed else entries:
        if entry.flags and (others := entry.numbers - managed.vlans - DEFAULT_VLAN):
            raise Unsafe(
                f"switch {name}, access port {port}: expected one VLAN of ours untagged or none, found {others}: "
                f"move who uses it to another port, take this one out of the topology, or adopt it "
                f"('virtcloud element adopt {name} {port}')"
            )
    ours = _find_removable_vlans(port, entries, managed)
    sound = [entry for entry in entries if entry.flags and set(entry.flags) == UNTAGGED_FLAGS]
    if len(ours) == 1 and [entry.numbers for entry in sound] == [ours] and not ours & DEFAULT_VLAN:
        return ours, False
    return VlanSet(), bool(ours)


def _find_removable_vlans(port: PortName, entries: list[VlanEntry], managed: SwitchScope) -> VlanSet:
    """Return what may be taken off an access port: everything, once SBF has taken it or an administrator adopted it."""
    numbers = VlanSet(number for entry in entries for number in entry.numbers)
    agreed = port in managed.adopted or port in managed.taken
    return numbers if agreed else numbers & (managed.vlans | DEFAULT_VLAN)


def _render_removals(ports: PortVlans) -> Iterator[str]:
    yield from (f"vlan del dev {port} vid {_format_range(pair)}" for port, pair in _list_port_ranges(ports))


def _list_port_ranges(ports: PortVlans) -> Iterator[tuple[PortName, tuple[VlanId, VlanId]]]:
    for port, vlans in ports.items():
        yield from ((port, pair) for pair in vlans.ranges())


def _format_range(pair: tuple[VlanId, VlanId]) -> str:
    first, last = pair
    return str(first) if first == last else f"{first}-{last}"
