"""Aruba AOS-CX.

A list of allowed VLANs cannot be empty: without a VLAN there is no list, and the trunk carries all VLANs. A managed
trunk therefore always carries VLAN 1, which no cluster has. ``vlan trunk native`` also allows all VLANs, so SBF sends
this command only to restore a port's former configuration.

Sources: networking-generic-switch for the commands; published configurations for ports; recorded sessions
(ntc-templates) for neighbours. Four assumptions are from memory and were not checked on a device: that
``vlan trunk allowed 1`` replaces ``all``; the form of the list after the removal of the last VLAN; the form of
lists of VLANs in commands; and that ``interface lag 10`` also enters the mode of an existing multi-chassis LAG.

``copy running-config startup-config`` rewrites its output line, which ends with ``Copying configuration: [Success]``
(published sessions and guides). Releases 10.01 to 10.03 print only ``Success``, according to their command references.
"""

import re
from collections.abc import Sequence

from sbf_service.drivers.switch.dialect import ALL_VLANS, Dialect, PortNames, PortReading, RestorableLine, SwitchReading
from sbf_service.drivers.switch.lldp import LldpFormat
from sbf_service.drivers.switch.show_output import (
    find_arguments,
    parse_access_vlan,
    parse_interfaces,
    parse_use,
    parse_vlans,
    parse_vlans_after,
    quote_first_line,
    split_blocks,
)
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({"lag": (), "vlan": (), "mgmt": (), "loopback": (), "vxlan": ()}, gap=" ")
PORT = re.compile(r"(?P<name>(?:lag)?[\d/]+)(?: multi-chassis(?: static)?)?")
"""The heading of a port's configuration. The switches of a VSX pair share a multi-chassis LAG."""


def parse_answers(answers: Sequence[str]) -> SwitchReading:
    """Parse the VLANs and the interfaces of the configuration."""
    (text,) = answers
    blocks = {
        head.removeprefix("vlan "): body for head, body in split_blocks(text) if re.fullmatch(r"vlan [\d,-]+", head)
    }
    if not blocks:
        raise ValueError(f"no VLAN in {quote_first_line(text)!r}")
    vlans = VlanSet(vlan for head in blocks for vlan in parse_vlans(head, f"vlan {head}"))
    names = {
        int(head): name for head, body in blocks.items() if head.isdigit() for name in find_arguments(body, "name ")
    }
    matches = [(PORT.fullmatch(name), body) for name, body in parse_interfaces(text, PORTS).items()]
    ports = {match["name"]: _parse_port(body) for match, body in matches if match}
    return SwitchReading(vlans, ports, names=names)


def _parse_port(lines: list[str]) -> PortReading:
    off = "no shutdown" not in lines
    if find_arguments(lines, "lag "):
        return PortReading(member=True, off=off, **parse_use(lines, "", "vlan trunk native "))
    allowed = find_arguments(lines, "vlan trunk allowed ")
    untagged = parse_vlans_after(lines, "vlan access ", "vlan trunk native ")
    is_trunk = allowed or find_arguments(lines, "vlan trunk native ")
    used = parse_use(lines, "trunk" if is_trunk else "access", "vlan trunk native ")
    if "all" in allowed or (not allowed and is_trunk):
        return PortReading(ALL_VLANS, open=True, untagged=untagged, off=off, **used)
    if not allowed:
        is_bridged = "no routing" in lines or find_arguments(lines, "vlan access ")
        access = parse_access_vlan(lines, "vlan access ") if is_bridged else None
        return PortReading(untagged=untagged, access=access, off=off, **used)
    lists = [parse_vlans(words, f"vlan trunk allowed {words}") for words in allowed]
    tagged = VlanSet(vlan for vlans in lists for vlan in vlans)
    return PortReading(tagged, ready=True, untagged=untagged, off=off, **used)


LLDP = LldpFormat(
    show="show lldp neighbor-info detail",
    start=r"Port\s+: \S",
    local=r"Port\s+: (\S+)",
    chassis=r"Neighbor Chassis-ID\s+: (.+)",
    port=r"Neighbor Port-ID\s+: (.+)",
    port_description=r"Neighbor Port-Desc\s+: (.+)",
    name=r"Neighbor (?:Chassis|System)-Name\s+: (.+)",
    address=r"Neighbor Management-Address\s+: (.+)",
    total=r"^Total Neighbor Entries +: (\d+)",
)


DIALECT = Dialect(
    title="Aruba AOS-CX",
    netmiko="aruba_aoscx",
    show=("show running-config",),
    see=parse_answers,
    create=("vlan {vlan}", "name {name}", "exit"),
    delete=("no vlan {vlans}",),
    prepare=("interface {port}", "no routing", "vlan trunk allowed 1", "exit"),
    allow=("interface {port}", "vlan trunk allowed {vlans}", "exit"),
    remove=("interface {port}", "no vlan trunk allowed {vlans}", "exit"),
    empty=("interface {port}", "vlan trunk allowed 1", "no vlan trunk allowed {vlans}", "exit"),
    access=("interface {port}", "shutdown", "no routing", "vlan access {vlan}", "no shutdown", "exit"),
    vacate=(("interface {port}", "shutdown", "no routing", "vlan access 1", "exit"),),
    kept=(
        RestorableLine("vlan access "),
        RestorableLine("vlan trunk native ", "", "trunk"),
        RestorableLine("vlan trunk allowed ", "", "trunk"),
    ),
    save=("copy running-config startup-config",),
    saved=re.compile(r"(?:\[Success\]|^Success)\s*\Z", re.MULTILINE),
    errors=re.compile(
        r"^[^\S\n]*(?:Invalid input|% ?(?!Warning)|Error|Cannot execute|VLAN \d+ is not configured|Default VLAN).*",
        re.MULTILINE,
    ),
    ports=PORTS,
    lldp=LLDP,
)
