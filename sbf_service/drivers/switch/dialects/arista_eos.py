"""Arista EOS.

A port without ``switchport mode`` is an access port.

Sources: networking-generic-switch for the commands; recorded sessions (ntc-templates) for the table of VLANs and the
neighbours; published configurations for ``allowed vlan none``; recorded eAPI answers for ``Copy completed
successfully.`` after ``copy running-config startup-config``. From memory, not checked on a device: ``section
interface`` and ``show vlan internal usage``.
"""

import re
from collections.abc import Sequence

from sbf_service.drivers.switch.dialect import Dialect, PortNames, PortReading, RestorableLine, SwitchReading
from sbf_service.drivers.switch.lldp import LldpFormat
from sbf_service.drivers.switch.show_output import (
    parse_interfaces,
    parse_internal_vlans,
    parse_switchport_lines,
    parse_vlan_table,
)
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({"Ethernet": (), "Port-Channel": ()})
SAVED = re.compile(r"^Copy completed successfully\.\s*\Z", re.MULTILINE)
INTERNAL = "show vlan internal usage"


def parse_answers(answers: Sequence[str]) -> SwitchReading:
    """Parse the table of VLANs, the configuration of the ports, and the internal VLANs.

    Raise ValueError for a missing or invalid table of VLANs, and for a configuration without interfaces.
    """
    table, lines, internal = answers
    names = parse_vlan_table(table)
    return SwitchReading(VlanSet(names), parse_ports(lines), parse_internal_vlans(internal), names)


def parse_ports(configuration: str) -> dict[str, PortReading]:
    """Return the ports of a running or candidate configuration. Raise ValueError when there is no interface."""
    return {
        name: parse_switchport_lines(body, "access") for name, body in parse_interfaces(configuration, PORTS).items()
    }


LLDP = LldpFormat(
    show="show lldp neighbors detail",
    heading=r"Interface (\S+) detected \d+ LLDP neighbors",
    start=r"\s+Neighbor \S+, age ",
    chassis=r"\s+Chassis ID\s+: (.+)",
    port=r"\s+Port ID\s+: (.+)",
    port_description=r"\s+- Port Description: (.+)",
    name=r"\s+- System Name: (.+)",
    address=r"\s+Management Address\s+: (.+)",
    total=r"^Interface \S+ detected (\d+) LLDP neighbors",
)


DIALECT = Dialect(
    title="Arista EOS",
    netmiko="arista_eos",
    show=("show vlan", "show running-config section interface", INTERNAL),
    instead={"show running-config section interface": ("show running-config",)},
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
        RestorableLine("no switchport", "switchport"),
    ),
    save=("copy running-config startup-config",),
    saved=SAVED,
    errors=re.compile(r"^[^\S\n]*%(?! ?Warning).*|^Error.*", re.MULTILINE),
    may_fail=frozenset({INTERNAL}),
    ports=PORTS,
    at_once=8,
    privileged=True,
    lldp=LLDP,
)
