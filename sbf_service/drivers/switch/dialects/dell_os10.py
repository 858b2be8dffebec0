"""Dell SmartFabric OS10.

``switchport trunk allowed vlan`` adds VLANs to the list. A trunk carries no tagged VLAN by default, so SBF need not
empty a list. The VLT uses VLAN 4094.

Sources: networking-generic-switch for the commands; recorded sessions for the list of neighbours. This list has the
same form as on OS9. From memory, not checked on a device: ``show running-configuration interface`` (without the name of
an interface), the form of the output of this command, ``interface range vlan``, and VLAN 4094.

A successful save prints nothing (according to published sessions with ``write memory``) or ``Copy completed`` (from
memory, not checked on a device).
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from sbf_service.drivers.switch.dialect import Dialect, PortNames, PortReading, RestorableLine, SwitchReading
from sbf_service.drivers.switch.dialects import dell_force10
from sbf_service.drivers.switch.show_output import (
    ALLOWED_VLANS,
    find_arguments,
    parse_access_vlan,
    parse_interfaces,
    parse_use,
    parse_vlans,
    parse_vlans_after,
)
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({"ethernet": (), "port-channel": (), "vlan": (), "mgmt": ()})


def parse_answers(answers: Sequence[str]) -> SwitchReading:
    """Parse the interfaces. A VLAN is an interface too.

    Raise ValueError for output without interfaces, and for an invalid list of VLANs.
    """
    (text,) = answers
    interfaces = parse_interfaces(text, PORTS)
    vlans = VlanSet(int(name.removeprefix("vlan")) for name in interfaces if name.startswith("vlan"))
    ports = {name: _parse_port(body) for name, body in interfaces.items() if not name.startswith(("vlan", "mgmt"))}
    return SwitchReading(vlans, ports, names=dict(_parse_names(interfaces)))


def _parse_names(interfaces: Mapping[str, list[str]]) -> Iterator[tuple[int, str]]:
    for name, body in interfaces.items():
        if name.startswith("vlan"):
            yield from (
                (int(name.removeprefix("vlan")), text.strip('"')) for text in find_arguments(body, "description ")
            )


def _parse_port(lines: list[str]) -> PortReading:
    off = "shutdown" in lines
    if find_arguments(lines, "channel-group "):
        return PortReading(member=True, off=off, **parse_use(lines, "", "switchport access vlan "))
    untagged = parse_vlans_after(lines, "switchport access vlan ")
    trunk = "switchport mode trunk" in lines
    mode = "routed" if "no switchport" in lines else "trunk" if trunk else "access"
    used = parse_use(lines, mode, "switchport access vlan " if trunk else "switchport trunk native vlan ")
    if not trunk:
        access = None if "no switchport" in lines else parse_access_vlan(lines, "switchport access vlan ")
        return PortReading(untagged=untagged, access=access, off=off, **used)
    lists = [parse_vlans(words, ALLOWED_VLANS + words) for words in find_arguments(lines, ALLOWED_VLANS)]
    tagged = VlanSet(vlan for vlans in lists for vlan in vlans)
    return PortReading(tagged, ready=True, untagged=untagged, off=off, **used)


DIALECT = Dialect(
    title="Dell OS10",
    netmiko="dell_os10",
    show=("show running-configuration interface",),
    instead={"show running-configuration interface": ("show running-configuration",)},
    see=parse_answers,
    create=("interface vlan {vlan}", "description {name}", "exit"),
    delete=("no interface vlan {vlan}",),
    prepare=(),
    trunk=("interface {port}", "switchport mode trunk", "exit"),
    allow=("interface {port}", "switchport trunk allowed vlan {vlans}", "exit"),
    remove=("interface {port}", "no switchport trunk allowed vlan {vlans}", "exit"),
    access=(
        "interface {port}",
        "shutdown",
        "switchport mode access",
        "switchport access vlan {vlan}",
        "no shutdown",
        "exit",
    ),
    vacate=(("interface {port}", "shutdown", "switchport mode access", "no switchport access vlan", "exit"),),
    kept=(
        RestorableLine("switchport mode ", "switchport mode access"),
        RestorableLine("switchport access vlan ", "no switchport access vlan"),
        RestorableLine("no switchport", "switchport mode access"),
    ),
    save=("copy running-configuration startup-configuration",),
    saved=re.compile(r"\A\s*(?:Copy completed\.?\s*)?\Z"),
    errors=re.compile(r"^[^\S\n]*%(?! ?Warning).*", re.MULTILINE),
    ports=PORTS,
    reserved=VlanSet([1, 4094]),
    runs_only=True,
    lldp=dell_force10.LLDP,
)
