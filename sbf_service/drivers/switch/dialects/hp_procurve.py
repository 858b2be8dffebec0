"""HP ProCurve and Aruba-OS switches.

The configuration of a VLAN lists the VLAN's ports. SBF deletes a VLAN when no managed port is in the VLAN. If other
ports are in the VLAN, the switch asks whether to move these ports, and SBF answers no.

Sources: recorded sessions (ntc-templates) for neighbours, Netmiko for the prompts. From memory, not checked on a
device: all other lines. A successful ``write memory`` prints nothing, so SBF treats any output as a failure.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sbf_service.drivers.switch.dialect import Dialect, PortNames, PortReading, SwitchReading
from sbf_service.drivers.switch.lldp import LldpFormat
from sbf_service.drivers.switch.show_output import (
    build_port_readings,
    expand_port_list,
    find_arguments,
    quote_first_line,
    split_blocks,
)
from virtcloud.model.port_use import AGGREGATED
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({"Trk": ()})


def parse_answers(answers: Sequence[str]) -> SwitchReading:
    """Parse the VLANs of the configuration, each with its ports. Raise ValueError for a configuration without VLANs."""
    (text,) = answers
    blocks = [(int(head.split()[1]), body) for head, body in split_blocks(text) if re.fullmatch(r"vlan \d+", head)]
    if not blocks:
        raise ValueError(f"no VLAN in {quote_first_line(text)!r}")
    members = [
        (kind, PORTS.canonical(port), vlan)
        for vlan, body in blocks
        for kind in ("tagged", "untagged")
        for ports in find_arguments(body, f"{kind} ")
        for port in expand_port_list(ports)
    ]
    ports = build_port_readings(members, "tagged", "untagged")
    off = {PORTS.canonical(head.split()[1]) for head, body in split_blocks(text) if _is_disabled(head, body)}
    ports |= {name: PortReading(member=True, mode=AGGREGATED, lines=(line,)) for name, line in _parse_aggregates(text)}
    readings = {name: replace(port, off=name in off) for name, port in ports.items()}
    names = {vlan: name.strip('"') for vlan, body in blocks for name in find_arguments(body, "name ")}
    return SwitchReading(VlanSet(vlan for vlan, _ in blocks), readings, names=names)


def _parse_aggregates(text: str) -> Iterator[tuple[str, str]]:
    """Yield the members of link aggregates (called trunks on this platform), each with its line."""
    for head, _ in split_blocks(text):
        if match := re.match(r"trunk (\S+) \S+", head):
            yield from ((PORTS.canonical(port), head) for port in expand_port_list(match[1]))


def _is_disabled(head: str, body: Sequence[str]) -> bool:
    return head.startswith("interface ") and "disable" in body


LLDP = LldpFormat(
    show="show lldp info remote-device {ports}",
    start=r"\s*Local Port\s+: ",
    local=r"\s*Local Port\s+: (.+)",
    chassis=r"\s*ChassisId\s+: (.+)",
    port=r"\s*PortId\s+: (.+)",
    port_description=r"\s*PortDescr\s+: (.+)",
    name=r"\s*SysName\s+: (.+)",
    address=r"\s*Address\s+: (.+)",
    nobody=r"\s*LLDP Remote Device Information Detail\s*",
)


DIALECT = Dialect(
    title="HP ProCurve, Aruba-OS",
    netmiko="hp_procurve",
    show=("show running-config",),
    see=parse_answers,
    create=("vlan {vlan}", "name {name}", "exit"),
    delete=("no vlan {vlan}",),
    prepare=(),
    allow=("vlan {vlan} tagged {port}",),
    remove=("no vlan {vlan} tagged {port}",),
    access=("interface {port} disable", "vlan {vlan} untagged {port}", "interface {port} enable"),
    vacate=(("interface {port} disable",), ("no vlan {vlan} untagged {port}",)),
    enable="interface {port} enable",
    disable="interface {port} disable",
    save=("write memory",),
    saved=re.compile(r"\A\s*\Z"),
    errors=re.compile(
        r"^[^\S\n]*(?:Invalid input|Ambiguous input|Incomplete input|Error|VLAN \d+ not found|Module not present"
        r"|Maximum|Default VLAN can|Operation failed|Not enough privileges|The following ports will be moved).*",
        re.MULTILINE,
    ),
    answers={r"\[y/n\]\??\s*": "n"},
    ports=PORTS,
    shows_every_port=False,
    privileged=True,
    lldp=LLDP,
)
