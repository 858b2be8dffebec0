"""Aruba AOS-CX.

There is no empty list: a trunk of ours always carries VLAN 1, which is never a cluster's, since without any list it
would carry all. ``vlan trunk native`` is not said, since it allows all VLANs too.

From networking-generic-switch: what is told. From published configurations: how ports look. From recorded sessions
(ntc-templates): neighbours. From memory, to be checked on a device: that ``vlan trunk allowed 1`` ends *all*, what is
left when the last number goes, lists of VLANs.

``copy running-config startup-config`` overwrites its line and ends with ``Copying configuration: [Success]`` (published
sessions and guides).
Releases 10.01 to 10.03 print ``Success`` alone (their command references).
"""

import re
from collections.abc import Sequence

from sbf_service.drivers.dialects.dialect import EVERY, Dialect, Kept, PortNames, PortSeen, Seen
from sbf_service.drivers.dialects.lldp import Lldp
from sbf_service.drivers.dialects.reading import (
    access_number,
    beginning,
    blocks,
    interfaces,
    numbers_after,
    starting,
    use_of,
    vlan_set,
)
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({"lag": (), "vlan": (), "mgmt": (), "loopback": (), "vxlan": ()}, gap=" ")


def see(answers: Sequence[str]) -> Seen:
    """Understand the VLANs and the interfaces of the configuration."""
    (text,) = answers
    found = {head.removeprefix("vlan "): body for head, body in blocks(text) if re.fullmatch(r"vlan [\d,-]+", head)}
    if not found:
        raise ValueError(f"no VLAN in {beginning(text)!r}")
    vlans = VlanSet(number for head in found for number in vlan_set(head, f"vlan {head}"))
    names = {int(head): name for head, body in found.items() if head.isdigit() for name in starting(body, "name ")}
    bodies = interfaces(text, PORTS)
    ports = {name: _port(body) for name, body in bodies.items() if re.fullmatch(r"(?:lag)?[\d/]+", name)}
    return Seen(vlans, ports, names=names)


def _port(lines: list[str]) -> PortSeen:
    off = "no shutdown" not in lines
    if starting(lines, "lag "):
        return PortSeen(member=True, off=off, **use_of(lines, "", "vlan trunk native "))
    allowed = starting(lines, "vlan trunk allowed ")
    untagged = numbers_after(lines, "vlan access ", "vlan trunk native ")
    is_trunk = allowed or starting(lines, "vlan trunk native ")
    used = use_of(lines, "trunk" if is_trunk else "access", "vlan trunk native ")
    if "all" in allowed or (not allowed and is_trunk):
        return PortSeen(EVERY, open=True, untagged=untagged, off=off, **used)
    if not allowed:
        bridged = "no routing" in lines or starting(lines, "vlan access ")
        number = access_number(lines, "vlan access ") if bridged else None
        return PortSeen(untagged=untagged, access=number, off=off, **used)
    listed = [vlan_set(words, f"vlan trunk allowed {words}") for words in allowed]
    tagged = VlanSet(number for numbers in listed for number in numbers)
    return PortSeen(tagged, ready=True, untagged=untagged, off=off, **used)


LLDP = Lldp(
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
    see=see,
    create=("vlan {vlan}", "name {name}", "exit"),
    delete=("no vlan {vlans}",),
    prepare=("interface {port}", "no routing", "vlan trunk allowed 1", "exit"),
    allow=("interface {port}", "vlan trunk allowed {vlans}", "exit"),
    remove=("interface {port}", "no vlan trunk allowed {vlans}", "exit"),
    empty=("interface {port}", "vlan trunk allowed 1", "no vlan trunk allowed {vlans}", "exit"),
    access=("interface {port}", "shutdown", "no routing", "vlan access {vlan}", "no shutdown", "exit"),
    vacate=(("interface {port}", "shutdown", "no routing", "vlan access 1", "exit"),),
    kept=(
        Kept("vlan access "),
        Kept("vlan trunk native ", "", "trunk"),
        Kept("vlan trunk allowed ", "", "trunk"),
    ),
    save=("copy running-config startup-config",),
    saved=re.compile(r"(?:\[Success\]|^Success)\s*\Z", re.MULTILINE),
    errors=re.compile(
        r"^\s*(?:Invalid input|% ?(?!Warning)|Error|Cannot execute|VLAN \d+ is not configured|Default VLAN).*",
        re.MULTILINE,
    ),
    ports=PORTS,
    lldp=LLDP,
)
