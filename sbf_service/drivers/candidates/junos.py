"""Juniper Junos with the enhanced layer-2 software (ELS): what its configuration says, and what is put into it.

What groups and interface ranges bring with them is read as if it stood on the port; what is deactivated is not there.

From public drivers and the vendor's guides: all words. To be checked on a device: that a trunk without members
carries nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sbf_service.drivers.candidate import CandidateWords
from sbf_service.drivers.candidates.xml import parsed, said_in
from sbf_service.drivers.dialects.dialect import DEFAULT, EVERY, PortNames, PortSeen, Seen
from sbf_service.drivers.dialects.reading import beginning, vlan_set
from sbf_service.drivers.driver import DriverFacts
from sbf_service.neighbour import Neighbour
from sbf_service.ownership import vlan_name
from virtcloud.model.port_use import AGGREGATED, ROUTED, PortUse
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import PortVlans, SwitchDifference

BUNDLED = ("ether-options", "gigether-options")
FILTER = "<configuration><interfaces/><vlans/></configuration>"
UNIT = "interfaces {port} unit 0 family ethernet-switching"
TOLD = {
    "create a VLAN": ("set vlans {name} vlan-id {vlan}",),
    "delete": ("delete vlans {name}",),
    "prepare a port": (f"delete {UNIT}", f"set {UNIT} interface-mode trunk"),
    "close a port": (f"delete {UNIT} vlan members",),
    "allow on a port": (f"set {UNIT} vlan members {{name}}",),
    "join an access port": (
        f"delete {UNIT}",
        f"set {UNIT} interface-mode access",
        f"set {UNIT} vlan members {{name}}",
    ),
    "vacate an access port": (f"delete {UNIT}",),
    "put a port back": (f"delete {UNIT}", f"set {UNIT} {{words}}"),
    "remove from a port": (f"delete {UNIT} vlan members {{member}}",),
}


class JunosPorts(PortNames):
    """Ports by the names of their interfaces; ``ge-0/0/1.0`` is its first unit, which is what is configured."""

    __slots__ = ()

    def canonical(self, name: str) -> str:
        """Give the one form of a port's name."""
        return name.strip().lower().removesuffix(".0")


PORTS = JunosPorts({})


@dataclass(frozen=True, slots=True)
class JunosSeen(Seen):
    """A switch with what has to be named to delete something: members as they are written, beside VLANs' names."""

    members: Mapping[str, Mapping[str, VlanSet]] = field(default_factory=dict)


def see(shown: Sequence[str]) -> JunosSeen:
    """Understand the XML of VLANs and interfaces; raises ValueError."""
    root = _root(shown[0], "configuration")
    names = dict[int, str](_vlans(root))
    members = {PORTS.canonical(name): _members(unit, names) for name, unit in _units(root)}
    ports = {PORTS.canonical(name): _port(unit, members[PORTS.canonical(name)]) for name, unit in _units(root)}
    return JunosSeen(
        vlans=VlanSet(names),
        ports={one.name: _also(ports.get(one.name, PortSeen()), one) for one in _interfaces(root)},
        names=names,
        members=members,
    )


def heard(shown: str) -> tuple[Neighbour, ...]:
    """Understand the XML of LLDP's neighbours; raises ValueError."""
    return tuple(_neighbour(one) for one in _root(shown, "lldp-neighbors-information"))


def _neighbour(one: Any) -> Neighbour:  # noqa: ANN401
    said = {part.tag: (part.text or "").strip() for part in one}
    local = said.get("lldp-local-port-id") or said.get("lldp-local-interface", "")
    description = said.get("lldp-remote-port-description", "")
    port = said.get("lldp-remote-port-id") or description
    if not local or not port:
        raise ValueError(f"a neighbour without a port: {said}")
    chassis, name = said.get("lldp-remote-chassis-id", ""), said.get("lldp-remote-system-name", "")
    return Neighbour(local=local, chassis=chassis, port=port, name=name, port_description=description)


def _root(shown: str, tag: str) -> Any:  # noqa: ANN401
    """Read XML that must be about ``tag``; raises ValueError with what it says instead."""
    root = parsed(shown)
    if root.tag != tag:
        raise ValueError(said_in(root) or beginning(shown))
    return root


def _active(parent: Any, path: str) -> Iterator[Any]:  # noqa: ANN401
    """Give what is configured there, and neither it nor what it stands in is deactivated."""
    step, _, rest = path.partition("/")
    for one in parent.findall(step):
        if one.get("inactive") is None:
            yield from _active(one, rest) if rest else (one,)


def _vlans(root: Any) -> Iterator[tuple[VlanId, str]]:  # noqa: ANN401
    for vlan in _active(root, "vlans/vlan"):
        for number in (*_active(vlan, "vlan-id"), *_active(vlan, "vlan-id-list")):
            if number.text.strip() != "none":
                yield from ((one, vlan.findtext("name")) for one in vlan_set(number.text))


def _units(root: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Give the switching family of each interface's first unit."""
    for interface in _active(root, "interfaces/interface"):
        for unit in _active(interface, "unit"):
            if unit.findtext("name") == "0":
                yield from ((interface.findtext("name"), one) for one in _active(unit, "family/ethernet-switching"))


@dataclass(frozen=True, slots=True)
class _Interface:
    """What of an interface is not the switching family of its first unit."""

    name: str
    others: VlanSet
    native: VlanSet
    mode: str
    off: bool


def _interfaces(root: Any) -> Iterator[_Interface]:  # noqa: ANN401
    """Yield the interfaces with the numbers that they use in a way that is not ours: untagged, or by another unit."""
    for interface in _active(root, "interfaces/interface"):
        native = VlanSet(number for one in _active(interface, "native-vlan-id") for number in vlan_set(one.text))
        units = VlanSet(number for one in _active(interface, "unit/vlan-id") for number in vlan_set(one.text))
        families = {one.tag for family in _active(interface, "unit/family") for one in family}
        joined = any(True for kind in BUNDLED for _ in _active(interface, f"{kind}/ieee-802.3ad"))
        mode = AGGREGATED if joined else ROUTED if families - {"ethernet-switching"} else ""
        off = any(True for _ in _active(interface, "disable"))
        yield _Interface(PORTS.canonical(interface.findtext("name")), native | units, native, mode, off)


def _members(unit: Any, names: Mapping[int, str]) -> dict[str, VlanSet]:  # noqa: ANN401
    """Give what each member, as it is written, stands for: ``all``, a name, a number or a range."""
    numbers: dict[str, set[int]] = {}
    for number, name in names.items():
        numbers.setdefault(name, set()).add(number)
    written = [one.text.strip() for one in _active(unit, "vlan/members")]
    return {one: EVERY if one == "all" else VlanSet(numbers.get(one, ())) or _numbers(one) for one in written}


def _numbers(member: str) -> VlanSet:
    """Read a number or a range; a name that no VLAN has stands for nothing."""
    return vlan_set(member) if member[:1].isdigit() else VlanSet()


def _port(unit: Any, members: Mapping[str, VlanSet]) -> PortSeen:  # noqa: ANN401
    carried = VlanSet(number for vlans in members.values() for number in vlans)
    mode = unit.findtext("interface-mode") or "access"
    lines = (f"interface-mode {mode}", *(f"vlan members {member}" for member in members))
    if mode != "trunk":
        return PortSeen(untagged=carried, access=max(carried or DEFAULT), mode=mode, lines=lines)
    return PortSeen(carried, ready=True, open=EVERY in members.values(), mode=mode, lines=lines)


def _also(seen: PortSeen, interface: _Interface) -> PortSeen:
    mode = interface.mode or seen.mode
    native = max(interface.native, default=None) if seen.mode == "trunk" else None
    return replace(seen, untagged=seen.untagged | interface.others, mode=mode, native=native, off=interface.off)


def lines(difference: SwitchDifference, seen: JunosSeen) -> list[str]:
    """Give the lines of a difference; all become active at once, so their order matters to Junos only."""
    return [
        *(line for port in difference.close if port not in difference.access for line in _told("close a port", port)),
        *(line for port in difference.access for line in _vacated(port, seen)),
        *(line for port, vlans in _trunks(difference.remove, difference) for line in _removed(port, vlans, seen)),
        *(line for name in _vanishing(difference.delete, seen) for line in _told("delete", name=name)),
        *(
            line
            for vlan in difference.create
            for line in _told("create a VLAN", vlan=vlan, name=vlan_name(vlan, seen.names))
        ),
        *(line for port, vlans in _trunks(difference.add, difference) for line in _added(port, vlans, seen)),
        *(line for port in difference.access for line in _joined(port, difference, seen)),
        *(line for port, use in difference.put_back.items() for line in _put_back(port, use, seen)),
    ]


def _trunks(ports: PortVlans, difference: SwitchDifference) -> Iterator[tuple[PortName, VlanSet]]:
    yield from ((port, vlans) for port, vlans in ports.items() if port not in difference.access)


def _vacated(port: PortName, seen: JunosSeen) -> list[str]:
    """Take everything off an access port; one that has nothing is in no VLAN."""
    return _told("vacate an access port", port) if PORTS.canonical(port) in seen.members else []


def _joined(port: PortName, difference: SwitchDifference, seen: JunosSeen) -> Iterator[str]:
    for vlan in difference.add.get(port, ()):
        yield from _told("join an access port", port, name=seen.names.get(vlan, vlan_name(vlan, seen.names)))[1:]


def _put_back(port: PortName, use: PortUse, seen: JunosSeen) -> Iterator[str]:
    """Replace the switching family by the one that the port had before."""
    yield from _vacated(port, seen)
    unit = UNIT.format(port=PORTS.canonical(port))
    yield from (f"set {unit} {line}" for line in use.lines)


def _vanishing(vlans: VlanSet, seen: JunosSeen) -> Iterator[str]:
    """Give the names of VLANs to delete; one that has other numbers too stays, and is found when it is read back."""
    for name in dict.fromkeys(seen.names[vlan] for vlan in vlans if vlan in seen.names):
        if VlanSet(number for number, other in seen.names.items() if other == name) <= vlans:
            yield name


def _removed(port: PortName, vlans: VlanSet, seen: JunosSeen) -> Iterator[str]:
    """Delete members that stand for nothing else; one that does stays, and is found when it is read back."""
    for member, stands_for in seen.members.get(PORTS.canonical(port), {}).items():
        if stands_for & vlans and not stands_for - vlans:
            yield from _told("remove from a port", port, member=member)


def _added(port: PortName, vlans: Iterable[VlanId], seen: JunosSeen) -> Iterator[str]:
    before = seen.ports.get(PORTS.canonical(port))
    if before is None or not before.ready:
        kept = _told("prepare a port", port)
        yield from kept[1:] if before is None else kept
    for vlan in vlans:
        yield from _told("allow on a port", port, name=seen.names.get(vlan, vlan_name(vlan, seen.names)))


def _told(what: str, port: PortName | None = None, **values: object) -> list[str]:
    spelt = "" if port is None else PORTS.canonical(port)
    return [line.format(port=spelt, **values) for line in TOLD[what]]


WORDS = CandidateWords(
    title="Juniper Junos (ELS)",
    show=(f"get-configuration of {FILTER}",),
    see=see,
    lines=lines,
    told=TOLD,
    ports=PORTS,
    shows_every_port=False,
    facts=DriverFacts(VlanSet([1]), atomic=True, confirm_timer=True, access=True),
)
