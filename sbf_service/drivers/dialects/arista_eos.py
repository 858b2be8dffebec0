"""Arista EOS.

A port without ``switchport mode`` is an access port.

From networking-generic-switch: what is told. From recorded sessions (ntc-templates): the table, neighbours. From
published configurations: ``allowed vlan none``. From memory, to be checked on a device: ``section interface``, ``show
vlan internal usage``.

``copy running-config startup-config`` prints ``Copy completed successfully.`` (recorded eAPI answers).
"""

import re
from collections.abc import Sequence

from sbf_service.drivers.dialects.dialect import Dialect, Kept, PortNames, PortSeen, Seen
from sbf_service.drivers.dialects.lldp import Lldp
from sbf_service.drivers.dialects.reading import interfaces, trunk, used_numbers, vlan_table
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({"Ethernet": (), "Port-Channel": ()})
SAVED = re.compile(r"^Copy completed successfully\.\s*\Z", re.MULTILINE)
INTERNAL = "show vlan internal usage"


def see(answers: Sequence[str]) -> Seen:
    """Understand the table of VLANs, the ports' lines and the internal VLANs."""
    table, lines, internal = answers
    names = vlan_table(table)
    return Seen(VlanSet(names), ports_seen(lines), used_numbers(internal), names)


def ports_seen(configuration: str) -> dict[str, PortSeen]:
    """Return the ports of a configuration, running or of a session; raises ValueError where it has no interface."""
    return {name: trunk(body, "access") for name, body in interfaces(configuration, PORTS).items()}


LLDP = Lldp(
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
    see=see,
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
        Kept("switchport mode ", "no switchport mode"),
        Kept("switchport access vlan ", "no switchport access vlan"),
        Kept("switchport trunk native vlan ", "no switchport trunk native vlan"),
        Kept("switchport trunk allowed vlan ", "no switchport trunk allowed vlan"),
        Kept("no switchport", "switchport"),
    ),
    save=("copy running-config startup-config",),
    saved=SAVED,
    errors=re.compile(r"^\s*%(?! ?Warning).*|^Error.*", re.MULTILINE),
    may_fail=frozenset({INTERNAL}),
    ports=PORTS,
    at_once=8,
    privileged=True,
    lldp=LLDP,
)
