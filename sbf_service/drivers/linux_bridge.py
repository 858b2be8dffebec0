"""Switches that are Linux: VLAN-aware bridges, driven by iproute2's ``bridge`` (bridge(8)).

Numbers that are not managed are left alone, tagged or not. A managed number that is found untagged or as a port's
default (PVID) is *unsafe*: somebody uses a number of the pool for something else, and what SBF would take away or
join to a cluster there is theirs. Nothing on the switch is changed until they have moved it.

On an access port it is the other way round: its one untagged number is ours. What else was found there of managed
numbers, or of VLAN 1, is taken away; another untagged number is somebody's, and unsafe.
"""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, Field, TypeAdapter

from sbf_service.drivers.driver import DriverFacts, Managed
from sbf_service.drivers.iproute2 import SHOW_VLANS, VlanEntry, batch, parsed, refuse, shown, vlan_entries
from sbf_service.drivers.line import CommandLine
from sbf_service.drivers.lldpd import neighbours_by
from sbf_service.drivers.shell import Shell
from sbf_service.neighbour import Neighbour
from sbf_service.ownership import stated_vlans
from virtcloud.model.errors import Unsafe
from virtcloud.model.port_use import AGGREGATED, PortUse, is_in_other_use
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import PortVlans, SwitchCarried, SwitchDifference

FACTS = DriverFacts(reserved=VlanSet([1]), access=True)
"""1 is ``vlan_default_pvid`` unless told otherwise."""

SHOW_LINKS = "ip -json link show"
SHOW = f"{SHOW_VLANS} && {SHOW_LINKS}"
UNUSED = frozenset({""})
FLAGS = {"PVID": "pvid", "Egress Untagged": "untagged"}
UNTAGGED = " pvid untagged"
WHOLE = {"PVID", "Egress Untagged"}
DEFAULT = VlanSet([1])
"""What a port is in that nobody configured."""


class _Link(BaseModel):
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


_LINKS = TypeAdapter(list[_Link])


class LinuxBridge:
    """One Linux switch."""

    def __init__(self, name: Name, line: CommandLine) -> None:
        """Drive the switch called ``name`` over ``line``."""
        self._name = name
        self._shell = Shell(f"switch {name}", line)
        self._strays: PortVlans = {}
        self._words: Mapping[PortName, tuple[str, ...]] = {}

    def read(self, managed: Managed) -> SwitchCarried:
        """Read what managed ports carry of managed numbers; one round trip."""
        self._shell.renew()
        vlans, _, links = shown(self._shell, SHOW).partition("\n")
        entries = vlan_entries(self._shell.whom, vlans)
        devices = parsed(self._shell.whom, SHOW_LINKS, links, _LINKS)
        down = [one.name for one in devices if not one.is_up]
        joined = [one.name for one in devices if one.is_member]
        carried = carried_from(self._name, entries, managed, down, joined)
        self._strays = {port: _strays(port, entries.get(port, []), managed) for port in carried.open}
        self._words = {port: words(entries.get(port, [])) for port in carried.astray}
        return carried

    def apply(self, difference: SwitchDifference) -> None:
        """Make the change; all of it in as few round trips as a terminal line allows."""
        refuse(self._shell.whom, batch(self._shell, "bridge", self._commands(difference)))

    def save(self) -> bool:
        """Return False: the kernel forgets the VLANs at a restart, so that none of them comes back."""
        return False

    def lines(self, difference: SwitchDifference) -> tuple[str, ...]:
        """Give the lines of the batch."""
        return tuple(f"bridge {line}" for line in self._commands(difference))

    def neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:  # noqa: ARG002 - lldpd tells all
        """Ask the switch's lldpd."""
        return neighbours_by(self._shell, self._name)

    def is_lost(self) -> bool:
        """Return whether the device ended the session by itself."""
        return self._shell.is_lost()

    def close(self) -> None:
        """End the session."""
        self._shell.close()

    def _commands(self, difference: SwitchDifference) -> list[str]:
        strays = {port: self._strays.get(port, VlanSet()) for port in difference.close}
        back = (line for port, use in difference.put_back.items() for line in _put_back(port, self._words[port], use))
        return [*_taken_away(strays), *commands(difference), *back]


def carried_from(
    name: Name,
    entries: Mapping[str, list[VlanEntry]],
    managed: Managed,
    down: Sequence[str] = (),
    joined: Sequence[str] = (),
) -> SwitchCarried:
    """Return what of a reading SBF manages. Raise Unsafe for what may not be touched.

    ``down`` are the ports that are shut down, ``joined`` those that are members of bonds.
    """
    ports, opened = {}, []
    for port in managed.ports:
        if port in managed.access:
            ports[port], stray = _untagged(name, port, entries.get(port, []), managed)
            opened += [port] if stray else []
        else:
            ports[port] = _tagged(name, port, entries.get(port, []), managed.vlans)
    exists = VlanSet(number for vlans in ports.values() for number in vlans)
    elsewhere = {
        PortName(port): stated_vlans((number for entry in found for number in entry.numbers), managed.vlans)
        for port, found in entries.items()
        if port not in {*managed.ports, *managed.members, *managed.returned}
    }
    used = {port: vlans for port, vlans in elsewhere.items() if vlans}
    uses = {
        port: use_of(entries.get(port, []), down=port in down, joined=port in joined)
        for port in (*managed.ports, *managed.returned)
    }
    untaken = {port: uses[port] for port in managed.ports if port not in managed.taken}
    return SwitchCarried(
        vlans=exists,
        ports=ports,
        open=tuple(opened),
        elsewhere=used,
        untaken=untaken,
        in_use=tuple(port for port, use in untaken.items() if is_in_other_use(use, managed.vlans, UNUSED)),
        down=tuple(port for port in managed.ports if port in down),
        astray={port: use for port, use in managed.returned.items() if use.lines != uses[port].lines},
    )


def use_of(entries: Sequence[VlanEntry], *, down: bool = False, joined: bool = False) -> PortUse:
    """Return the use of a port from its VLANs; an untagged one is the native VLAN."""
    tagged = VlanSet(number for entry in entries if not entry.flags for number in entry.numbers)
    untagged = VlanSet(number for entry in entries if entry.flags for number in entry.numbers)
    mode = AGGREGATED if joined else "trunk" if tagged or untagged - DEFAULT else ""
    return PortUse(
        mode=mode, native=max(untagged, default=None), tagged=tagged - DEFAULT, down=down, lines=words(entries)
    )


def words(entries: Sequence[VlanEntry]) -> tuple[str, ...]:
    """Return a port's VLANs as ``bridge vlan add`` takes them."""
    return tuple(f"{_range(pair)}{_flags(entry)}" for entry in entries for pair in entry.numbers.ranges())


def _flags(entry: VlanEntry) -> str:
    return "".join(f" {FLAGS[flag]}" for flag in entry.flags if flag in FLAGS)


def _put_back(port: PortName, now: Sequence[str], use: PortUse) -> Iterator[str]:
    yield from (f"vlan del dev {port} vid {one.split()[0]}" for one in now if one not in use.lines)
    yield from (f"vlan add dev {port} vid {one}" for one in use.lines if one not in now)


def commands(difference: SwitchDifference) -> Iterator[str]:
    """Give the lines for ``bridge -batch``: removals first."""
    yield from _taken_away(difference.remove)
    for port, pair in _pairs(difference.add):
        how = UNTAGGED if port in difference.access else ""
        yield f"vlan add dev {port} vid {_range(pair)}{how}"


def _tagged(name: Name, port: PortName, entries: list[VlanEntry], managed: VlanSet) -> VlanSet:
    for entry in entries:
        misused = entry.numbers & managed
        if entry.flags and misused:
            raise Unsafe(
                f"switch {name}, port {port}: expected VLAN {misused} tagged or absent, "
                f"found {', '.join(entry.flags)}: "
                f"move what uses it to a number outside the pool, or take that number out of the pool"
            )
    return VlanSet(number for entry in entries for number in entry.numbers) & managed


def _untagged(name: Name, port: PortName, entries: list[VlanEntry], managed: Managed) -> tuple[VlanSet, bool]:
    """Give an access port's number, and whether something else stands there, so that it has none of ours."""
    agreed = port in managed.adopted or port in managed.taken
    for entry in () if agreed else entries:
        if entry.flags and (others := entry.numbers - managed.vlans - DEFAULT):
            raise Unsafe(
                f"switch {name}, access port {port}: expected one VLAN of ours untagged or none, found {others}: "
                f"move who uses it to another port, take this one out of the topology, or adopt it "
                f"('virtcloud element adopt {name} {port}')"
            )
    ours = _strays(port, entries, managed)
    sound = [entry for entry in entries if entry.flags and set(entry.flags) == WHOLE]
    if len(ours) == 1 and [entry.numbers for entry in sound] == [ours] and not ours & DEFAULT:
        return ours, False
    return VlanSet(), bool(ours)


def _strays(port: PortName, entries: list[VlanEntry], managed: Managed) -> VlanSet:
    """Return what may be taken off an access port: everything, once SBF has taken it or an administrator adopted it."""
    numbers = VlanSet(number for entry in entries for number in entry.numbers)
    agreed = port in managed.adopted or port in managed.taken
    return numbers if agreed else numbers & (managed.vlans | DEFAULT)


def _taken_away(ports: PortVlans) -> Iterator[str]:
    yield from (f"vlan del dev {port} vid {_range(pair)}" for port, pair in _pairs(ports))


def _pairs(ports: PortVlans) -> Iterator[tuple[PortName, tuple[VlanId, VlanId]]]:
    for port, vlans in ports.items():
        yield from ((port, pair) for pair in vlans.ranges())


def _range(pair: tuple[VlanId, VlanId]) -> str:
    first, last = pair
    return str(first) if first == last else f"{first}-{last}"
