"""HP and H3C Comware 5 and 7.

A port that becomes a trunk carries VLAN 1 until VLAN 1 is removed.

Sources: networking-generic-switch for VLANs; recorded sessions (ntc-templates) for neighbours in Comware 7; published
configurations for trunks. From memory, not checked on a device: ``display vlan``, ``undo port trunk permit vlan all``,
and the limit of ten ranges in a command.

``save force`` ends with ``Saved the current configuration to mainboard device successfully.`` or ``Configuration is
saved to device successfully.``. In a stack, the output ends with ``Save next configuration file successfully.`` (H3C's
guides, published sessions).
"""

import re
from collections.abc import Sequence

from sbf_service.drivers.switch.dialect import (
    ALL_VLANS,
    DEFAULT_VLAN,
    Dialect,
    PortNames,
    PortReading,
    RestorableLine,
    SwitchReading,
)
from sbf_service.drivers.switch.lldp import LldpFormat
from sbf_service.drivers.switch.show_output import (
    find_arguments,
    parse_access_vlan,
    parse_interfaces,
    parse_use,
    parse_vlans,
    parse_vlans_after,
    quote_first_line,
)
from virtcloud.model.vlans import VlanSet

PORTS = PortNames(
    {
        "Ten-GigabitEthernet": ("XGE",),
        "GigabitEthernet": ("GE",),
        "FortyGigE": ("FGE",),
        "Twenty-FiveGigE": ("WGE",),
        "HundredGigE": ("HGE",),
        "Bridge-Aggregation": ("BAGG",),
    }
)
PERMIT = "port trunk permit vlan "


def parse_answers(answers: Sequence[str]) -> SwitchReading:
    """Parse the list of VLANs and the interfaces."""
    listed, lines = answers
    found = re.search(r"(?:include|exist)s?:(?P<list>[\d\s,()a-z-]+)", listed)
    if found is None:
        raise ValueError(f"no list of VLANs in {quote_first_line(listed)!r}")
    vlans = parse_vlans(re.sub(r"\s|\(default\)", "", found["list"]), found["list"])
    return SwitchReading(vlans, {name: _parse_port(body) for name, body in parse_interfaces(lines, PORTS).items()})


def _parse_port(lines: list[str]) -> PortReading:
    off = "shutdown" in lines
    if find_arguments(lines, "port link-aggregation group "):
        return PortReading(member=True, off=off, **parse_use(lines, "", "port trunk pvid vlan "))
    untagged = parse_vlans_after(lines, "port access vlan ", "port trunk pvid vlan ")
    kind = next(iter(find_arguments(lines, "port link-type ")), "access")
    used = parse_use(lines, "routed" if "port link-mode route" in lines else kind, "port trunk pvid vlan ")
    if kind == "hybrid":
        return PortReading(untagged=untagged or DEFAULT_VLAN, off=off, **used)
    if "port link-type trunk" not in lines:
        access = None if "port link-mode route" in lines else parse_access_vlan(lines, "port access vlan ")
        return PortReading(untagged=untagged, access=access, off=off, **used)
    permitted = [_parse_permitted(words) for words in find_arguments(lines, PERMIT)]
    default = VlanSet() if f"undo {PERMIT}1" in lines else VlanSet([1])
    tagged = VlanSet(vlan for vlans in (default, *permitted) for vlan in vlans)
    return PortReading(tagged, ready=tagged != ALL_VLANS, open=tagged == ALL_VLANS, untagged=untagged, off=off, **used)


def _parse_permitted(words: str) -> VlanSet:
    if words == "all":
        return ALL_VLANS
    return parse_vlans(words.replace(" to ", "-").replace(" ", ","), PERMIT + words)


LLDP = LldpFormat(
    show="display lldp neighbor-information verbose",
    heading=r"LLDP neighbor-information of port \d+\[([^\]]+)\]:",
    start=r"\s*(?:LLDP n|N)eighbor index\s+:",
    chassis=r"\s*Chassis ID\s+: (.+)",
    port=r"\s*Port ID\s+: (.+)",
    port_description=r"\s*Port description\s+: (.+)",
    name=r"\s*System name\s+: (.+)",
    address=r"\s*Management address\s+: (.+)",
)


DIALECT = Dialect(
    title="HP Comware",
    netmiko="hp_comware",
    show=("display vlan", "display current-configuration interface"),
    instead={"display current-configuration interface": ("display current-configuration",)},
    see=parse_answers,
    configure=("system-view",),
    leave=("return",),
    create=("vlan {vlan}", "name {name}", "quit"),
    delete=("undo vlan {vlans}",),
    prepare=("interface {port}", "port link-type trunk", "undo port trunk permit vlan all", "quit"),
    allow=("interface {port}", "port trunk permit vlan {vlans}", "quit"),
    remove=("interface {port}", "undo port trunk permit vlan {vlans}", "quit"),
    access=(
        "interface {port}",
        "shutdown",
        "port link-type access",
        "port access vlan {vlan}",
        "undo shutdown",
        "quit",
    ),
    vacate=(("interface {port}", "shutdown", "port link-type access", "undo port access vlan", "quit"),),
    kept=(
        RestorableLine("port link-type ", "port link-type access"),
        RestorableLine("port access vlan ", "undo port access vlan", "access"),
        RestorableLine("port trunk pvid ", "undo port trunk pvid", "trunk"),
        RestorableLine("undo port trunk permit vlan 1", "port trunk permit vlan 1", "trunk"),
        RestorableLine("port trunk permit vlan ", "", "trunk"),
        RestorableLine("port hybrid ", "", "hybrid"),
    ),
    enable="undo shutdown",
    save=("save force",),
    saved=re.compile(r"\A(?!.*\b(?i:fail)).*\bsuccessfully\.\s*\Z", re.DOTALL),
    errors=re.compile(
        r"^[^\S\n]*(?:% ?(?:Unrecognized|Wrong|Incomplete|Ambiguous|Too many)|Error|Permission denied).*", re.MULTILINE
    ),
    answers={r"\[Y/N\]:?\s*": "n"},
    ports=PORTS,
    to=" to ",
    comma=" ",
    most_ranges=10,
    runs_only=True,
    lldp=LLDP,
)
