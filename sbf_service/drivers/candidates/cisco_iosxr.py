"""Cisco IOS-XR: a router whose ports carry a VLAN by a subinterface each, joined by a bridge domain for each VLAN.

VLAN 112 is the bridge domain ``vc-112`` of the bridge group ``virtcloud``; a port is in it by its subinterface ``.112``
with ``encapsulation dot1q 112``, an access port by ``.4095`` with ``encapsulation untagged``. A managed number that
anything else on a managed port takes (a routed subinterface, a range, another bridge domain, a port or subinterface
that takes every frame) is in other use.

From the vendor's guides: all words. From memory, to be checked on a device: ``no`` in a configuration that is loaded
as text over NETCONF, ``root`` there, that ``no interface`` needs no ``l2transport``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sbf_service.drivers.candidate import CandidateWords
from sbf_service.drivers.candidates.xml import parsed, said_in
from sbf_service.drivers.dialects.dialect import EVERY, PortNames, PortSeen, Seen
from sbf_service.drivers.dialects.reading import beginning, blocks, vlan_set
from sbf_service.drivers.driver import DriverFacts
from sbf_service.neighbour import Neighbour
from sbf_service.ownership import vlan_name
from virtcloud.model.port_use import AGGREGATED, ROUTED
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import PortVlans, SwitchDifference

GROUP = "virtcloud"
UNTAGGED = 4095
"""The subinterface of an access port: no VLAN has this number."""
ROOT = "root"
"""Leaves every mode: in a bridge domain ``no interface`` would mean its member, however little it is indented."""
DOMAIN = ("l2vpn", f" bridge group {GROUP}", "  bridge-domain {name}")
TOLD = {
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
class _Domains:
    """Who is in which bridge domain: (group, domain) by subinterface."""

    of: dict[str, tuple[str, str]] = field(default_factory=dict)
    ours: set[VlanId] = field(default_factory=set)


def see(shown: Sequence[str]) -> Seen:
    """Understand the running configuration; raises ValueError."""
    interfaces, domains = dict[str, list[str]](), _Domains()
    for head, body in blocks(shown[0].replace("\r", "")):
        if head.startswith("interface "):
            interfaces[head.removeprefix("interface ").removeprefix("preconfigure ")] = body
        elif head == "l2vpn":
            domains = _domains(body)
    if not interfaces:
        raise ValueError(f"no interface in {beginning(shown[0])!r}")
    parents = {PORTS.canonical(name.split()[0]) for name in interfaces if "." not in name}
    ports = {parent: _port(parent, interfaces, domains) for parent in parents}
    return Seen(VlanSet(domains.ours), ports, names={number: vlan_name(number) for number in domains.ours})


def _domains(body: Sequence[str]) -> _Domains:
    """Follow the bridge groups of ``l2vpn``; indentation is gone, and nothing here needs it."""
    found, group, domain = _Domains(), "", ""
    for line in body:
        first, _, rest = line.partition(" ")
        if line.startswith("bridge group "):
            group, domain = line.removeprefix("bridge group "), ""
        elif first == "bridge-domain":
            domain = rest
            number = _number((group, domain))
            found.ours |= {number} if number else set()
        elif first == "interface" and domain:
            found.of[_canonical(rest)] = (group, domain)
    return found


def _port(parent: str, interfaces: Mapping[str, Sequence[str]], domains: _Domains) -> PortSeen:
    """Say what a port carries for us, and which numbers others use on it."""
    tagged, others, access, off = VlanSet(), VlanSet(), None, False
    for head, body in interfaces.items():
        name = _canonical(head.split()[0])
        if name != parent and name.partition(".")[0] != parent:
            continue
        off = off or (name == parent and "shutdown" in body)
        takes = _takes(head, body)
        ours = len(takes) == 1 and _is_ours(head, body, f"{parent}.{min(takes)}", min(takes))
        where = domains.of.get(name)
        if name == f"{parent}.{UNTAGGED}" and not takes:
            access = _number(where)
        elif ours and where == (GROUP, vlan_name(min(takes))):
            tagged |= takes
        elif not (ours and where is None):
            others |= takes
    mode = _other_mode(interfaces, parent) or ("trunk" if tagged | others else "access" if access else "")
    untagged = others | ([access] if access else [])
    return PortSeen(tagged, untagged=untagged, access=access, off=off, mode=mode, others=others)


def _other_mode(interfaces: Mapping[str, Sequence[str]], parent: str) -> str:
    """Return the mode of a member of a bundle, or of a port with an address of its own; empty for others."""
    lines = [line for head, body in interfaces.items() if _canonical(head.split()[0]) == parent for line in body]
    if any(line.startswith("bundle id ") for line in lines):
        return AGGREGATED
    return ROUTED if any(line.startswith(ROUTES) for line in lines) else ""


def _number(where: tuple[str, str] | None) -> VlanId | None:
    """Give the number of a bridge domain of ours."""
    found = re.fullmatch(r"vc-(\d+)", where[1]) if where and where[0] == GROUP else None
    return VlanId(int(found[1])) if found else None


def _is_ours(head: str, body: Sequence[str], name: str, vlan: VlanId) -> bool:
    called, _, rest = head.partition(" ")
    return _canonical(called) == name and rest == "l2transport" and f"encapsulation dot1q {vlan}" in body


def _takes(head: str, body: Sequence[str]) -> VlanSet:
    """Say which tagged frames an interface takes: those of its encapsulation, or all."""
    said = [line.removeprefix("encapsulation ") for line in body if line.startswith("encapsulation ")]
    if not said:
        return EVERY if "l2transport" in (*head.split(), *body) and "." not in head else VlanSet()
    kind, _, numbers = said[0].partition(" ")
    if kind == "untagged":
        return VlanSet()
    listed = re.match(r"[\d ,-]+", numbers.removeprefix("vlan "))
    return vlan_set(listed[0].replace(" ", "")) if kind in ("dot1q", "dot1ad") and listed else EVERY


def _canonical(name: str) -> str:
    port, dot, number = name.partition(".")
    return PORTS.canonical(port) + dot + number


def heard(shown: str) -> tuple[Neighbour, ...]:
    """Understand the answer about LLDP's neighbours: nothing at all, or details of each; raises ValueError."""
    root = parsed(shown)
    strange = [one for one in root.iterfind("./{*}data/*") if not one.tag.endswith("}lldp")]
    if strange or root.find("./{*}data") is None:
        raise ValueError(said_in(root) or beginning(shown))
    return tuple(_neighbour(one) for one in root.iter("{*}lldp-neighbor"))


def _neighbour(one: Any) -> Neighbour:  # noqa: ANN401 - lxml has no types
    keys = {
        "local": "receiving-interface-name",
        "chassis": "chassis-id",
        "port": "port-id-detail",
        "name": "detail/{*}system-name",
        "port_description": "detail/{*}port-description",
        "address": "detail//{*}ipv4-address",
    }
    said = {key: (one.findtext(f"./{{*}}{path}") or "").strip() for key, path in keys.items()}
    if not said["local"] or not said["port"]:
        raise ValueError(f"a neighbour without a port: {said}")
    return Neighbour(**said)


def lines(difference: SwitchDifference, seen: Seen) -> list[str]:
    """Give the lines of a difference; all of them become active at once."""
    return [
        *(line for port in difference.access for line in _vacated(port, seen)),
        *(line for port, vlans in _trunks(difference.remove, difference) for line in _told(REMOVE, vlans, port)),
        *_told("delete", difference.delete),
        *_told("create a VLAN", difference.create),
        *(line for port, vlans in _trunks(difference.add, difference) for line in _told(ALLOW, vlans, port)),
        *(line for port in difference.access for line in _told(JOIN, difference.add.get(port, VlanSet()), port)),
    ]


def _trunks(ports: PortVlans, difference: SwitchDifference) -> Iterator[tuple[PortName, VlanSet]]:
    yield from ((port, vlans) for port, vlans in ports.items() if port not in difference.access)


def _vacated(port: PortName, seen: Seen) -> Iterator[str]:
    """Take off an access port what of ours is there, tagged or not."""
    before = seen.ports.get(PORTS.canonical(port), PortSeen())
    yield from _told(REMOVE, before.tagged, port)
    yield from _told("vacate an access port", VlanSet([before.access] if before.access else []), port)


def _told(what: str, vlans: VlanSet, port: PortName | None = None) -> Iterator[str]:
    spelt = "" if port is None else PORTS.canonical(port)
    for vlan in vlans:
        yield from (line.format(port=spelt, vlan=vlan, name=vlan_name(vlan)) for line in TOLD[what])


WORDS = CandidateWords(
    title="Cisco IOS-XR",
    show=("get-config of the running configuration, as text",),
    see=see,
    lines=lines,
    told=TOLD,
    ports=PORTS,
    vlans_are_local=True,
    facts=DriverFacts(VlanSet(), atomic=True, confirm_timer=True, access=True),
)
