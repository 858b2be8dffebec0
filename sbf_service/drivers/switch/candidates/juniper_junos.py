"""Juniper Junos with the enhanced layer-2 software (ELS).

The configuration that a port inherits (groups, interface ranges) counts as the port's own configuration. Deactivated
configuration is ignored.

Sources: public drivers and the vendor's guides for all commands. One assumption was not checked on a device: a trunk
without members carries no VLAN.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sbf_service.domain.cabling import Neighbour
from sbf_service.domain.ownership import make_vlan_name
from sbf_service.drivers.contract import SwitchCapabilities
from sbf_service.drivers.switch.candidate_switch import CandidateDialect
from sbf_service.drivers.switch.command_rendering import select_trunks
from sbf_service.drivers.switch.dialect import ALL_VLANS, DEFAULT_VLAN, PortNames, PortReading, SwitchReading
from sbf_service.drivers.switch.lldp import build_neighbour
from sbf_service.drivers.switch.show_output import extract_text, parse_vlans, parse_xml, quote_first_line
from sbf_service.drivers.transport.netconf import JUNOS_FILTER
from virtcloud.model.port_use import AGGREGATED, ROUTED, PortUse
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet

AGGREGATE_OPTIONS = ("ether-options", "gigether-options")
UNIT = "interfaces {port} unit 0 family ethernet-switching"
COMMANDS = {
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
    """The ports of Junos. ``ge-0/0/1.0`` (the unit on which VLANs are configured) denotes the port ``ge-0/0/1``."""

    __slots__ = ()

    def canonical(self, name: str) -> str:
        """Return the canonical name of a port."""
        return name.strip().lower().removesuffix(".0")


PORTS = JunosPorts({})


@dataclass(frozen=True, slots=True)
class JunosReading(SwitchReading):
    """The configuration read from a switch, with the entries of each port's list ``vlan members``.

    ``members`` has an entry for each port whose unit 0 has a switching family. The entry maps the text of each member,
    such as ``20-29``, to the VLANs that the text denotes. A command that deletes a member must repeat the text. A
    deactivated family has no members. Junos refuses to delete an absent family.
    """

    members: Mapping[str, Mapping[str, VlanSet]] = field(default_factory=dict)


def parse_configuration(shown: Sequence[str]) -> JunosReading:
    """Parse the XML of VLANs and interfaces. Raise ValueError for any other document."""
    root = _parse_root(shown[0], "configuration")
    names = dict[int, str](_parse_vlans(root))
    units = {PORTS.canonical(name): unit for name, unit in _find_units(root)}
    members = {port: _parse_members(unit, names) for port, unit in units.items()}
    ports = {port: _parse_port(unit, members[port]) for port, unit in units.items() if _is_active(unit)}
    return JunosReading(
        vlans=VlanSet(names),
        ports={
            interface.name: _add_interface(ports.get(interface.name, PortReading()), interface)
            for interface in _parse_interfaces(root)
        },
        names=names,
        members=members,
    )


def parse_junos_neighbours(shown: str) -> tuple[Neighbour, ...]:
    """Parse the XML of LLDP neighbours. Raise ValueError for any other document."""
    return tuple(_parse_neighbour(element) for element in _parse_root(shown, "lldp-neighbors-information"))


def _parse_neighbour(element: Any) -> Neighbour:  # noqa: ANN401
    values = {part.tag: (part.text or "").strip() for part in element}
    description = values.get("lldp-remote-port-description", "")
    return build_neighbour(
        {
            "local": values.get("lldp-local-port-id") or values.get("lldp-local-interface", ""),
            "chassis": values.get("lldp-remote-chassis-id", ""),
            "port": values.get("lldp-remote-port-id") or description,
            "name": values.get("lldp-remote-system-name", ""),
            "port_description": description,
        }
    )


def _parse_root(shown: str, tag: str) -> Any:  # noqa: ANN401
    root = parse_xml(shown)
    if root.tag != tag:
        raise ValueError(extract_text(root) or quote_first_line(shown))
    return root


def _find_active(parent: Any, path: str) -> Iterator[Any]:  # noqa: ANN401
    step, _, rest = path.partition("/")
    for element in parent.findall(step):
        if _is_active(element):
            yield from _find_active(element, rest) if rest else (element,)


def _is_active(element: Any) -> bool:  # noqa: ANN401
    return element.get("inactive") is None


def _parse_vlans(root: Any) -> Iterator[tuple[VlanId, str]]:  # noqa: ANN401
    for vlan in _find_active(root, "vlans/vlan"):
        for element in (*_find_active(vlan, "vlan-id"), *_find_active(vlan, "vlan-id-list")):
            if element.text.strip() != "none":
                yield from ((vlan_id, vlan.findtext("name")) for vlan_id in parse_vlans(element.text))


def _find_units(root: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Yield the name and the switching family of each interface whose unit 0 has this family, also if deactivated."""
    for interface in _find_active(root, "interfaces/interface"):
        for unit in _find_active(interface, "unit"):
            if unit.findtext("name") == "0":
                yield from (
                    (interface.findtext("name"), family) for family in unit.findall("family/ethernet-switching")
                )


@dataclass(frozen=True, slots=True)
class _InterfaceReading:
    name: str
    others: VlanSet
    native: VlanSet
    mode: str
    off: bool


def _parse_interfaces(root: Any) -> Iterator[_InterfaceReading]:  # noqa: ANN401
    for interface in _find_active(root, "interfaces/interface"):
        native = _parse_vlan_ids(interface, "native-vlan-id")
        units = _parse_vlan_ids(interface, "unit/vlan-id")
        families = {family.tag for group in _find_active(interface, "unit/family") for family in group}
        is_member = any(True for kind in AGGREGATE_OPTIONS for _ in _find_active(interface, f"{kind}/ieee-802.3ad"))
        mode = AGGREGATED if is_member else ROUTED if families - {"ethernet-switching"} else ""
        off = any(True for _ in _find_active(interface, "disable"))
        yield _InterfaceReading(PORTS.canonical(interface.findtext("name")), native | units, native, mode, off)


def _parse_vlan_ids(interface: Any, path: str) -> VlanSet:  # noqa: ANN401
    return VlanSet(vlan for element in _find_active(interface, path) for vlan in parse_vlans(element.text))


def _parse_members(unit: Any, names: Mapping[int, str]) -> dict[str, VlanSet]:  # noqa: ANN401
    """Return the VLANs of each member. The key is the member's text: ``all``, a name, a VLAN ID or a range."""
    by_name: dict[str, set[int]] = {}
    for vlan, name in names.items():
        by_name.setdefault(name, set()).add(vlan)
    found = _find_active(unit, "vlan/members") if _is_active(unit) else ()
    texts = [element.text.strip() for element in found]
    return {
        text: ALL_VLANS if text == "all" else VlanSet(by_name.get(text, ())) or _parse_member(text) for text in texts
    }


def _parse_member(member: str) -> VlanSet:
    """Parse a VLAN ID or a range. A name of a VLAN that does not exist denotes no VLAN."""
    return parse_vlans(member) if member[:1].isdigit() else VlanSet()


def _parse_port(unit: Any, members: Mapping[str, VlanSet]) -> PortReading:  # noqa: ANN401
    carried = VlanSet(vlan for vlans in members.values() for vlan in vlans)
    mode = unit.findtext("interface-mode") or "access"
    lines = (f"interface-mode {mode}", *(f"vlan members {member}" for member in members))
    if mode != "trunk":
        return PortReading(untagged=carried, access=max(carried or DEFAULT_VLAN), mode=mode, lines=lines)
    return PortReading(carried, ready=True, open=ALL_VLANS in members.values(), mode=mode, lines=lines)


def _add_interface(reading: PortReading, interface: _InterfaceReading) -> PortReading:
    mode = interface.mode or reading.mode
    native = max(interface.native, default=None) if reading.mode == "trunk" else None
    return replace(reading, untagged=reading.untagged | interface.others, mode=mode, native=native, off=interface.off)


def render_changes(difference: SwitchDifference, reading: JunosReading) -> list[str]:
    """Return the configuration lines that apply a difference. All lines become active simultaneously."""
    return list(_render_changes(difference, reading))


def _render_changes(difference: SwitchDifference, reading: JunosReading) -> Iterator[str]:
    for port in difference.close:
        if port not in difference.access:
            yield from _fill_commands("close a port", port)
    for port in difference.access:
        yield from _render_vacating(port, reading)
    for port, vlans in select_trunks(difference.remove, difference):
        yield from _render_removal(port, vlans, reading)
    for name in _find_deletable_vlans(difference.delete, reading):
        yield from _fill_commands("delete", name=name)
    for vlan in difference.create:
        yield from _fill_commands("create a VLAN", vlan=vlan, name=make_vlan_name(vlan, reading.names))
    for port, vlans in select_trunks(difference.add, difference):
        yield from _render_addition(port, vlans, reading)
    for port in difference.access:
        yield from _render_joining(port, difference, reading)
    for port, use in difference.put_back.items():
        yield from _render_restoration(port, use, reading)


def _render_vacating(port: PortName, reading: JunosReading) -> list[str]:
    return _fill_commands("vacate an access port", port) if PORTS.canonical(port) in reading.members else []


def _render_joining(port: PortName, difference: SwitchDifference, reading: JunosReading) -> Iterator[str]:
    for vlan in difference.add.get(port, ()):
        yield from _fill_commands(
            "join an access port", port, name=reading.names.get(vlan, make_vlan_name(vlan, reading.names))
        )[1:]


def _render_restoration(port: PortName, use: PortUse, reading: JunosReading) -> Iterator[str]:
    yield from _render_vacating(port, reading)
    unit = UNIT.format(port=PORTS.canonical(port))
    yield from (f"set {unit} {line}" for line in use.lines)


def _find_deletable_vlans(vlans: VlanSet, reading: JunosReading) -> Iterator[str]:
    """Yield the names of the ``vlans`` to delete, except names that also denote other VLAN IDs.

    The read-back reports the skipped VLANs.
    """
    for name in dict.fromkeys(reading.names[vlan] for vlan in vlans if vlan in reading.names):
        if VlanSet(vlan for vlan, other in reading.names.items() if other == name) <= vlans:
            yield name


def _render_removal(port: PortName, vlans: VlanSet, reading: JunosReading) -> Iterator[str]:
    """Yield the lines that delete members, except members that also denote other VLANs, such as ranges.

    The read-back reports the VLANs of these members.
    """
    for member, denoted in reading.members.get(PORTS.canonical(port), {}).items():
        if denoted & vlans and not denoted - vlans:
            yield from _fill_commands("remove from a port", port, member=member)


def _render_addition(port: PortName, vlans: Iterable[VlanId], reading: JunosReading) -> Iterator[str]:
    before = reading.ports.get(PORTS.canonical(port))
    if before is None or not before.ready:
        yield from _render_vacating(port, reading)
        yield from _fill_commands("prepare a port", port)[1:]
    for vlan in vlans:
        yield from _fill_commands(
            "allow on a port", port, name=reading.names.get(vlan, make_vlan_name(vlan, reading.names))
        )


def _fill_commands(action: str, port: PortName | None = None, **values: object) -> list[str]:
    spelt = "" if port is None else PORTS.canonical(port)
    return [line.format(port=spelt, **values) for line in COMMANDS[action]]


CANDIDATE_DIALECT = CandidateDialect(
    title="Juniper Junos (ELS)",
    show=(f"get-configuration of {JUNOS_FILTER}",),
    see=parse_configuration,
    lines=render_changes,
    neighbours=parse_junos_neighbours,
    documented_lines=COMMANDS,
    ports=PORTS,
    shows_every_port=False,
    capabilities=SwitchCapabilities(VlanSet([1]), atomic=True, confirm_timer=True, access=True),
)
