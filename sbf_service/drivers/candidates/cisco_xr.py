"""Cisco IOS-XR: a router whose ports carry a VLAN by a subinterface each, joined by a bridge domain for each VLAN.

VLAN 112 is the bridge domain ``vc-112`` of the bridge group ``virtcloud``; a port is in it by its subinterface ``.112``
with ``encapsulation dot1q 112``. A managed number that anything else on a managed port takes (a routed subinterface, a
range, another bridge domain, a port or subinterface that takes every frame) is in other use.

From the vendor's guides: all words. From memory, to be checked on a device: ``no`` in a configuration that is loaded
as text over NETCONF, ``root`` there, that ``no interface`` needs no ``l2transport``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sbf_service.drivers.candidate import CandidateWords
from sbf_service.drivers.dialects.dialect import EVERY, PortNames, PortSeen, Seen
from sbf_service.drivers.dialects.lines import vlan_name
from sbf_service.drivers.dialects.reading import beginning, blocks, vlan_set
from sbf_service.drivers.driver import DriverFacts
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference

GROUP = "virtcloud"
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
}
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
    return Seen(VlanSet(domains.ours), {parent: _port(parent, interfaces, domains) for parent in parents})


def _domains(body: Sequence[str]) -> _Domains:
    """Follow the bridge groups of ``l2vpn``; indentation is gone, and nothing here needs it."""
    found, group, domain = _Domains(), "", ""
    for line in body:
        first, _, rest = line.partition(" ")
        if line.startswith("bridge group "):
            group, domain = line.removeprefix("bridge group "), ""
        elif first == "bridge-domain":
            domain = rest
            ours = re.fullmatch(r"vc-(\d+)", domain) if group == GROUP else None
            found.ours |= {VlanId(int(ours[1]))} if ours else set()
        elif first == "interface" and domain:
            found.of[_canonical(rest)] = (group, domain)
    return found


def _port(parent: str, interfaces: Mapping[str, Sequence[str]], domains: _Domains) -> PortSeen:
    """Say what a port carries for us, and which numbers others use on it."""
    tagged, others = VlanSet(), VlanSet()
    for head, body in interfaces.items():
        name = _canonical(head.split()[0])
        if name != parent and name.partition(".")[0] != parent:
            continue
        takes = _takes(head, body)
        ours = len(takes) == 1 and _is_ours(head, body, f"{parent}.{min(takes)}", min(takes))
        where = domains.of.get(name)
        if ours and where == (GROUP, vlan_name(min(takes))):
            tagged |= takes
        elif not (ours and where is None):
            others |= takes
    return PortSeen(tagged, ready=True, untagged=others)


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


def lines(difference: SwitchDifference, _: Seen) -> list[str]:
    """Give the lines of a difference; all of them become active at once."""
    return [
        *(line for port, vlans in difference.remove.items() for line in _told("remove from a port", vlans, port)),
        *_told("delete", difference.delete),
        *_told("create a VLAN", difference.create),
        *(line for port, vlans in difference.add.items() for line in _told("allow on a port", vlans, port)),
    ]


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
    facts=DriverFacts(VlanSet(), atomic=True, confirm_timer=True),
)
