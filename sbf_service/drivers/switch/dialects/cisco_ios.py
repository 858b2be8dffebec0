"""Cisco IOS and IOS-XE.

SBF reads the VLANs from the table of ``show vlan brief``, because a VTP server does not show VLANs in its
configuration. A port without a mode becomes a trunk if its neighbour negotiates a trunk (DTP).

Sources: networking-generic-switch for the commands; recorded sessions (ntc-templates) for the table of VLANs and the
neighbours. From memory, not checked on a device: the filter on the configuration, ``show vlan internal usage``, and
that the device creates a VLAN at ``exit``.

A VTP client refuses VLANs with ``VTP VLAN configuration not allowed when device is in CLIENT mode.`` (published
sessions), in most releases without ``%``.

``write memory`` prints ``[OK]`` on success (Netmiko's tests, Cisco's guides). For a compressed configuration, ``[OK]``
is on the line with the compressed size. ``startup-config file open failed (Device or resource busy)`` is a failure,
although it contains no ``%`` (recorded by Netspoc). If the configuration is too large for NVRAM, the device asks
whether to truncate the configuration, and SBF answers no.

If an account may not filter the output, SBF reads the whole configuration. If the account may not read the
configuration either, SBF reads ``show interfaces switchport`` (recorded sessions, ntc-templates). This output does not
show which ports are shut down, so SBF cannot vacate access ports.
"""

import re
from collections.abc import Sequence

from sbf_service.drivers.switch.dialect import Dialect, PortNames, RestorableLine, SwitchReading
from sbf_service.drivers.switch.lldp import LldpFormat
from sbf_service.drivers.switch.show_output import (
    parse_interfaces,
    parse_internal_vlans,
    parse_switchport_lines,
    parse_switchports,
    parse_vlan_table,
)
from virtcloud.model.vlans import VlanSet

PORTS = PortNames(
    {
        "GigabitEthernet": (),
        "TenGigabitEthernet": (),
        "FastEthernet": (),
        "TwoGigabitEthernet": ("Tw",),
        "TwentyFiveGigE": ("TwentyFiveGigabitEthernet",),
        "FortyGigabitEthernet": (),
        "HundredGigE": ("HundredGigabitEthernet",),
        "Port-channel": (),
    }
)
ERRORS = re.compile(
    r"^[^\S\n]*%(?! ?(?:Applying|Warning)).*|^Command (?:rejected|authorization failed).*"
    r"|^VTP VLAN configuration not allowed.*",
    re.MULTILINE,
)
SAVED = re.compile(r"\[OK\]\s*\Z")
ANSWERS = {r"\[confirm\]\s*": "", r"\[startup-config\]\?\s*": "", r"Truncate config\?\? \[no\]:\s*": "no"}
FILTERED = (
    "show running-config | include ^interface|^ switchport|^ no switchport|^ channel-group|^ shutdown"
    "|^ ip address|^ ip unnumbered|^ ipv6 address|^ vrf|^ ip vrf"
)
"""Prints the lines that show a port's VLANs, and the lines that show whether the port is shut down, is routed, or is a
member of an aggregate.
"""
INTERNAL = "show vlan internal usage"
ENCAPSULATION = "switchport trunk encapsulation dot1q"


def parse_answers(answers: Sequence[str]) -> SwitchReading:
    """Parse the table of VLANs, the configuration of the ports, and the internal VLANs."""
    table, lines, internal = answers
    bodies = parse_switchports(lines, PORTS) or parse_interfaces(lines, PORTS)
    ports = {name: parse_switchport_lines(body, "dynamic") for name, body in bodies.items()}
    names = parse_vlan_table(table)
    return SwitchReading(VlanSet(names), ports, parse_internal_vlans(internal), names)


LLDP = LldpFormat(
    show="show lldp neighbors detail",
    heading=r"Local Intf: (\S+)",
    start=r"Chassis id: ",
    chassis=r"Chassis id: (.+)",
    port=r"Port id: (.+)",
    port_description=r"Port Description(?::| -) (.+)",
    name=r"System Name(?::| -) (.+)",
    address=r"\s+IP: (\S+)",
    total=r"^Total entries displayed: (\d+)",
)


DIALECT = Dialect(
    title="Cisco IOS, IOS-XE",
    netmiko="cisco_ios",
    show=(
        "show vlan brief",
        FILTERED,
        INTERNAL,
    ),
    instead={FILTERED: ("show running-config", "show interfaces switchport")},
    see=parse_answers,
    create=("vlan {vlan}", "name {name}", "exit"),
    delete=("no vlan {vlans}",),
    prepare=("interface {port}", "switchport", "switchport trunk allowed vlan none", "exit"),
    trunk=("interface {port}", ENCAPSULATION, "switchport mode trunk", "exit"),
    allow=("interface {port}", "switchport trunk allowed vlan add {vlans}", "exit"),
    remove=("interface {port}", "switchport trunk allowed vlan remove {vlans}", "exit"),
    empty=("interface {port}", "switchport trunk allowed vlan none", "exit"),
    access=(
        "interface {port}",
        "switchport",
        "shutdown",
        "switchport access vlan {vlan}",
        "switchport mode access",
        "no shutdown",
        "exit",
    ),
    vacate=(
        ("interface {port}", "switchport", "shutdown", "switchport mode access", "no switchport access vlan", "exit"),
    ),
    unused=frozenset({"", "access", "dynamic"}),
    kept=(
        RestorableLine("switchport mode ", "no switchport mode"),
        RestorableLine("switchport access vlan ", "no switchport access vlan"),
        RestorableLine("switchport trunk native vlan ", "no switchport trunk native vlan"),
        RestorableLine("switchport trunk allowed vlan ", "no switchport trunk allowed vlan"),
        RestorableLine("switchport trunk encapsulation ", "no switchport trunk encapsulation"),
        RestorableLine("no switchport", "switchport"),
    ),
    save=("write memory",),
    saved=SAVED,
    errors=ERRORS,
    may_fail=frozenset({"switchport", ENCAPSULATION, INTERNAL}),
    answers=ANSWERS,
    ports=PORTS,
    reserved=VlanSet([1, *range(1002, 1006)]),
    at_once=8,
    privileged=True,
    lldp=LLDP,
)
