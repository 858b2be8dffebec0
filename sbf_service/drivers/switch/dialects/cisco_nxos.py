"""Cisco NX-OS.

A port without ``switchport mode`` is an access port or a routed port, never a trunk.

Sources: networking-generic-switch for the commands; recorded sessions (ntc-templates) for the table of VLANs and the
neighbours. From memory, not checked on a device: ``show system vlan reserved``, and the output of ``show running-config
interface`` without an interface's name.

``copy running-config startup-config`` ends with ``Copy complete.`` (Cisco's guides). A Nexus 5000 prints ``Copy
complete, now saving to disk (please wait)...``, and old releases print ``100%`` (published sessions). ``Configuration
update aborted: timed out`` is a failure, although it contains neither ``%`` nor ``ERROR`` (a published case of Cisco's
support).
"""

import re
from collections.abc import Sequence

from sbf_service.drivers.switch.dialect import Dialect, PortNames, RestorableLine, SwitchReading
from sbf_service.drivers.switch.lldp import LldpFormat
from sbf_service.drivers.switch.show_output import parse_interfaces, parse_switchport_lines, parse_vlan_table
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({"Ethernet": (), "port-channel": ()})
ERRORS = re.compile(
    r"^[^\S\n]*%(?! ?Warning).*|^ERROR.*|^Syntax error.*|^Copy failed.*|^.*Configuration update aborted.*", re.MULTILINE
)
SAVED = re.compile(
    r"^(?:\[#+\] +100%|Copy complete(?:, now saving to disk \(please wait\)\.\.\.|\.))\s*\Z", re.MULTILINE
)
RESERVED = "show system vlan reserved"


def parse_answers(answers: Sequence[str]) -> SwitchReading:
    """Parse the table of VLANs, the configuration of the ports, and the reserved range."""
    table, lines, reserved = answers
    ports = {name: parse_switchport_lines(body, "access") for name, body in parse_interfaces(lines, PORTS).items()}
    ranges = re.findall(r"running vlan reservation: *(\d+)-(\d+)", reserved)
    internal = VlanSet(vlan for first, last in ranges for vlan in range(int(first), min(int(last), 4094) + 1))
    names = parse_vlan_table(table)
    return SwitchReading(VlanSet(names), ports, internal, names)


LLDP = LldpFormat(
    show="show lldp neighbors detail",
    start=r"Chassis id: ",
    local=r"Local Port id: (.+)",
    chassis=r"Chassis id: (.+)",
    port=r"Port id: (.+)",
    port_description=r"Port Description: (.+)",
    name=r"System Name: (.+)",
    address=r"Management Address: (.+)",
    total=r"^Total entries displayed: (\d+)",
)


DIALECT = Dialect(
    title="Cisco NX-OS",
    netmiko="cisco_nxos",
    show=("show vlan brief", "show running-config interface", RESERVED),
    instead={"show running-config interface": ("show running-config",)},
    see=parse_answers,
    create=("vlan {vlan}", "name {name}", "exit"),
    delete=("no vlan {vlans}",),
    prepare=("interface {port}", "switchport", "switchport trunk allowed vlan none", "exit"),
    trunk=("interface {port}", "switchport mode trunk", "exit"),
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
    kept=(
        RestorableLine("switchport mode ", "no switchport mode"),
        RestorableLine("switchport access vlan ", "no switchport access vlan"),
        RestorableLine("switchport trunk native vlan ", "no switchport trunk native vlan"),
        RestorableLine("switchport trunk allowed vlan ", "no switchport trunk allowed vlan"),
        RestorableLine("switchport", "no switchport"),
        RestorableLine("no switchport", "switchport"),
    ),
    save=("copy running-config startup-config",),
    saved=SAVED,
    errors=ERRORS,
    may_fail=frozenset({RESERVED}),
    ports=PORTS,
    reserved=VlanSet([1, *range(3968, 4095)]),
    at_once=8,
    privileged=True,
    lldp=LLDP,
)
