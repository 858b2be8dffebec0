"""HP and H3C Comware 5 and 7.

A port that becomes a trunk carries VLAN 1 and nothing else, until that is undone too.

From networking-generic-switch: VLANs. From recorded sessions (ntc-templates): neighbours, in Comware 7. From
published configurations: how trunks look and are told. From memory, to be checked on a device: ``display vlan``,
``undo port trunk permit vlan all``, ten ranges in a command.

``save force`` ends with ``Saved the current configuration to mainboard device successfully.`` or ``Configuration is
saved to device successfully.``, in a stack with ``Save next configuration file successfully.`` (H3C's guides, published
sessions).
"""

import re
from collections.abc import Sequence

from sbf_service.drivers.dialects.dialect import DEFAULT, EVERY, Dialect, Kept, PortNames, PortSeen, Seen
from sbf_service.drivers.dialects.lldp import Lldp
from sbf_service.drivers.dialects.reading import (
    access_number,
    beginning,
    interfaces,
    numbers_after,
    starting,
    use_of,
    vlan_set,
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


def see(answers: Sequence[str]) -> Seen:
    """Understand the list of VLANs and the interfaces."""
    listed, lines = answers
    found = re.search(r"(?:include|exist)s?:(?P<list>[\d\s,()a-z-]+)", listed)
    if found is None:
        raise ValueError(f"no list of VLANs in {beginning(listed)!r}")
    vlans = vlan_set(re.sub(r"\s|\(default\)", "", found["list"]), found["list"])
    return Seen(vlans, {name: _port(body) for name, body in interfaces(lines, PORTS).items()})


def _port(lines: list[str]) -> PortSeen:
    off = "shutdown" in lines
    if starting(lines, "port link-aggregation group "):
        return PortSeen(member=True, off=off, **use_of(lines, "", "port trunk pvid vlan "))
    untagged = numbers_after(lines, "port access vlan ", "port trunk pvid vlan ")
    kind = next(iter(starting(lines, "port link-type ")), "access")
    used = use_of(lines, "routed" if "port link-mode route" in lines else kind, "port trunk pvid vlan ")
    if kind == "hybrid":
        return PortSeen(untagged=untagged or DEFAULT, off=off, **used)
    if "port link-type trunk" not in lines:
        number = None if "port link-mode route" in lines else access_number(lines, "port access vlan ")
        return PortSeen(untagged=untagged, access=number, off=off, **used)
    permitted = [_permitted(words) for words in starting(lines, PERMIT)]
    default = VlanSet() if f"undo {PERMIT}1" in lines else VlanSet([1])
    tagged = VlanSet(number for numbers in (default, *permitted) for number in numbers)
    return PortSeen(tagged, ready=tagged != EVERY, open=tagged == EVERY, untagged=untagged, off=off, **used)


def _permitted(words: str) -> VlanSet:
    if words == "all":
        return EVERY
    return vlan_set(words.replace(" to ", "-").replace(" ", ","), PERMIT + words)


LLDP = Lldp(
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
    see=see,
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
        Kept("port link-type ", "port link-type access"),
        Kept("port access vlan ", "undo port access vlan", "access"),
        Kept("port trunk pvid ", "undo port trunk pvid", "trunk"),
        Kept("undo port trunk permit vlan 1", "port trunk permit vlan 1", "trunk"),
        Kept("port trunk permit vlan ", "", "trunk"),
        Kept("port hybrid ", "", "hybrid"),
    ),
    enable="undo shutdown",
    save=("save force",),
    saved=re.compile(r"\A(?!.*\b(?i:fail)).*\bsuccessfully\.\s*\Z", re.DOTALL),
    errors=re.compile(
        r"^\s*(?:% ?(?:Unrecognized|Wrong|Incomplete|Ambiguous|Too many)|Error|Permission denied).*", re.MULTILINE
    ),
    answers={r"\[Y/N\]:?\s*": "n"},
    ports=PORTS,
    to=" to ",
    comma=" ",
    most_ranges=10,
    runs_only=True,
    lldp=LLDP,
)
