"""Cisco IOS-XR: a router with a subinterface for each VLAN on a port, and a bridge domain for each VLAN.

VLAN 112 is the bridge domain ``vc-112`` of the bridge group ``virtcloud``. A trunk joins this domain by the
subinterface ``.112`` with ``encapsulation dot1q 112``, an access port by the subinterface ``.4095`` with
``encapsulation untagged``. A managed VLAN ID is in other use if other configuration of a managed port accepts frames
with this VLAN ID.

Sources: the vendor's guides. From memory, not checked on a device: ``no`` and ``root`` in text that is loaded over
NETCONF, and ``no interface`` without ``l2transport``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sbf_service.domain.cabling import Neighbour
from sbf_service.domain.ownership import make_vlan_name
from sbf_service.drivers.contract import SwitchCapabilities
from sbf_service.drivers.switch.candidate_switch import CandidateDialect
from sbf_service.drivers.switch.command_rendering import select_trunks
from sbf_service.drivers.switch.dialect import ALL_VLANS, PortNames, PortReading, SwitchReading
from sbf_service.drivers.switch.lldp import build_neighbour
from sbf_service.drivers.switch.show_output import extract_text, parse_vlans, parse_xml, quote_first_line, split_blocks
from virtcloud.model.port_use import AGGREGATED, ROUTED
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet

GROUP = "virtcloud"
UNTAGGED = 4095
"""The number of the subinterface of an access port, which is no VLAN ID."""
ROOT = "root"
"""The command that leaves all configuration modes.

Without this line, ``no interface`` after the lines of a bridge domain would remove a member of the domain.
"""
DOMAIN = ("l2vpn", f" bridge group {GROUP}", "  bridge-domain {name}")
COMMANDS = {
    "create a VLAN": (*DOMAIN, ROOT),
    "delete": ("l2vpn", f" bridge group {GROUP}", "  no bridge-domain {name}", ROOT),
    "allow on a port": (
        "interface {port}.{vlan} l2transport",
        " encapsulation dot1q {vlan}",
        " rewrite ingress tag pop 1 symmetric",
        ROOT,
        *DOMAIN,
        "   interface {port}.{vlan}",
        ROOT,
    ),
    "remove from a port": (*DOMAIN, "   no interface {port}.{vlan}", ROOT, "no interface {port}.{vlan}"),
    "join an access port": (
        f"interface {{port}}.{UNTAGGED} l2transport",
        " encapsulation untagged",
        ROOT,
        *DOMAIN,
        f"   interface {{port}}.{UNTAGGED}",
        ROOT,
    ),
    "vacate an access port": (
        *DOMAIN,
        f"   no interface {{port}}.{UNTAGGED}",
        ROOT,
        f"no interface {{port}}.{UNTAGGED}",
    ),
}
ROUTES = ("ipv4 address", "ipv6 address", "ipv4 unnumbered", "vrf ")
ALLOW, REMOVE, JOIN = "allow on a port", "remove from a port", "join an access port"
PORTS = PortNames(
    {
        "GigabitEthernet": (),
        "TenGigE": ("TenGigabitEthernet",),
        "TwentyFiveGigE": (),
        "FortyGigE": (),
        "HundredGigE": ("HundredGigabitEthernet",),
        "FourHundredGigE": (),
        "Bundle-Ether": ("BE",),
    }
)


@dataclass
class _BridgeDomains:
    by_interface: dict[str, tuple[str, str]] = field(default_factory=dict)
    sbf_vlans: set[VlanId] = field(default_factory=set)


def parse_configuration(shown: Sequence[str]) -> SwitchReading:
    """Parse the running configuration. Raise ValueError for a text without interfaces."""
    interfaces, domains = dict[str, list[str]](), _BridgeDomains()
    for head, body in split_blocks(shown[0].replace("\r", "")):
        if head.startswith("interface "):
            interfaces[head.removeprefix("interface ").removeprefix("preconfigure ")] = body
        elif head == "l2vpn":
            domains = _parse_bridge_domains(body)
    if not interfaces:
        raise ValueError(f"no interface in {quote_first_line(shown[0])!r}")
    parents = {PORTS.canonical(name.split()[0]) for name in interfaces if "." not in name}
    ports = {parent: _parse_port(parent, interfaces, domains) for parent in parents}
    names = {int(vlan): make_vlan_name(vlan) for vlan in domains.sbf_vlans}
    return SwitchReading(VlanSet(domains.sbf_vlans), ports, names=names)


def _parse_bridge_domains(body: Sequence[str]) -> _BridgeDomains:
    found, group, domain = _BridgeDomains(), "", ""
    for line in body:
        first, _, rest = line.partition(" ")
        if line.startswith("bridge group "):
            group, domain = line.removeprefix("bridge group "), ""
        elif first == "bridge-domain":
            domain = rest
            vlan = _parse_domain_vlan((group, domain))
            found.sbf_vlans |= {vlan} if vlan else set()
        elif first == "interface" and domain:
            found.by_interface[_canonical_name(rest)] = (group, domain)
    return found


def _parse_port(parent: str, interfaces: Mapping[str, Sequence[str]], domains: _BridgeDomains) -> PortReading:
    """Return SBF's VLANs on a port, and the VLAN IDs that other configuration on the port accepts."""
    tagged, others, access, off = VlanSet(), VlanSet(), None, False
    for head, body in interfaces.items():
        name = _canonical_name(head.split()[0])
        if name != parent and name.partition(".")[0] != parent:
            continue
        off = off or (name == parent and "shutdown" in body)
        accepted = _parse_encapsulation(head, body)
        is_sbf = len(accepted) == 1 and _is_sbf_subinterface(head, body, f"{parent}.{min(accepted)}", min(accepted))
        domain = domains.by_interface.get(name)
        if name == f"{parent}.{UNTAGGED}" and not accepted:
            access = _parse_domain_vlan(domain)
        elif is_sbf and domain == (GROUP, make_vlan_name(min(accepted))):
            tagged |= accepted
        elif not (is_sbf and domain is None):
            others |= accepted
    mode = _parse_other_mode(interfaces, parent) or ("trunk" if tagged | others else "access" if access else "")
    untagged = others | ([access] if access else [])
    return PortReading(tagged, untagged=untagged, access=access, off=off, mode=mode, others=others)


def _parse_other_mode(interfaces: Mapping[str, Sequence[str]], parent: str) -> str:
    lines = [line for head, body in interfaces.items() if _canonical_name(head.split()[0]) == parent for line in body]
    if any(line.startswith("bundle id ") for line in lines):
        return AGGREGATED
    return ROUTED if any(line.startswith(ROUTES) for line in lines) else ""


def _parse_domain_vlan(domain: tuple[str, str] | None) -> VlanId | None:
    found = re.fullmatch(r"vc-(\d+)", domain[1]) if domain and domain[0] == GROUP else None
    return VlanId(int(found[1])) if found else None


def _is_sbf_subinterface(head: str, body: Sequence[str], expected_name: str, vlan: VlanId) -> bool:
    name, _, rest = head.partition(" ")
    return _canonical_name(name) == expected_name and rest == "l2transport" and f"encapsulation dot1q {vlan}" in body


def _parse_encapsulation(head: str, body: Sequence[str]) -> VlanSet:
    """Return the VLAN IDs that an interface accepts tagged; all VLAN IDs for an unknown encapsulation."""
    encapsulations = [line.removeprefix("encapsulation ") for line in body if line.startswith("encapsulation ")]
    if not encapsulations:
        return ALL_VLANS if "l2transport" in (*head.split(), *body) and "." not in head else VlanSet()
    kind, _, tags = encapsulations[0].partition(" ")
    if kind == "untagged":
        return VlanSet()
    listed = re.match(r"[\d ,-]+", tags.removeprefix("vlan "))
    return parse_vlans(listed[0].replace(" ", "")) if kind in ("dot1q", "dot1ad") and listed else ALL_VLANS


def _canonical_name(name: str) -> str:
    port, dot, number = name.partition(".")
    return PORTS.canonical(port) + dot + number


def parse_iosxr_neighbours(shown: str) -> tuple[Neighbour, ...]:
    """Parse the XML of LLDP neighbours. Raise ValueError for any other document."""
    root = parse_xml(shown)
    unknown = [element for element in root.iterfind("./{*}data/*") if not element.tag.endswith("}lldp")]
    if unknown or root.find("./{*}data") is None:
        raise ValueError(extract_text(root) or quote_first_line(shown))
    return tuple(_parse_neighbour(element) for element in root.iter("{*}lldp-neighbor"))


def _parse_neighbour(element: Any) -> Neighbour:  # noqa: ANN401 - lxml has no types
    keys = {
        "local": "receiving-interface-name",
        "chassis": "chassis-id",
        "port": "port-id-detail",
        "name": "detail/{*}system-name",
        "port_description": "detail/{*}port-description",
        "address": "detail//{*}ipv4-address",
    }
    return build_neighbour({key: (element.findtext(f"./{{*}}{path}") or "").strip() for key, path in keys.items()})


def render_changes(difference: SwitchDifference, reading: SwitchReading) -> list[str]:
    """Return the configuration lines that apply a difference. All lines become active simultaneously."""
    return [
        *(line for port in difference.access for line in _render_vacating(port, reading)),
        *(
            line
            for port, vlans in select_trunks(difference.remove, difference)
            for line in _fill_commands(REMOVE, vlans, port)
        ),
        *_fill_commands("delete", difference.delete),
        *_fill_commands("create a VLAN", difference.create),
        *(
            line
            for port, vlans in select_trunks(difference.add, difference)
            for line in _fill_commands(ALLOW, vlans, port)
        ),
        *(
            line
            for port in difference.access
            for line in _fill_commands(JOIN, difference.add.get(port, VlanSet()), port)
        ),
    ]


def _render_vacating(port: PortName, reading: SwitchReading) -> Iterator[str]:
    before = reading.ports.get(PORTS.canonical(port), PortReading())
    yield from _fill_commands(REMOVE, before.tagged, port)
    yield from _fill_commands("vacate an access port", VlanSet([before.access] if before.access else []), port)


def _fill_commands(action: str, vlans: VlanSet, port: PortName | None = None) -> Iterator[str]:
    spelt = "" if port is None else PORTS.canonical(port)
    for vlan in vlans:
        yield from (line.format(port=spelt, vlan=vlan, name=make_vlan_name(vlan)) for line in COMMANDS[action])


CANDIDATE_DIALECT = CandidateDialect(
    title="Cisco IOS-XR",
    show=("get-config of the running configuration, as text",),
    see=parse_configuration,
    lines=render_changes,
    neighbours=parse_iosxr_neighbours,
    documented_lines=COMMANDS,
    ports=PORTS,
    vlans_are_local=True,
    capabilities=SwitchCapabilities(VlanSet(), atomic=True, confirm_timer=True, access=True),
)
