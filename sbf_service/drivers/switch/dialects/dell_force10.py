"""Force10 FTOS and Dell OS9.

The configuration of a VLAN lists the VLAN's ports. A port that is in no VLAN (not even in the default VLAN) is not a
``switchport`` yet. SBF sets a VLAN's description instead of its name, because ``show vlan`` prints the description.

Sources: networking-generic-switch for the commands; recorded sessions (ntc-templates, published sessions of OS9) for
``show vlan`` and its lists of members; Ansible's dellos9_facts for neighbours. From memory, not checked on a device:
how a port becomes a ``switchport``, the form of lists longer than a line, the row of ``!`` that ``write memory``
prints, and the effect of ``write memory`` in a stack.
"""

import re
from collections.abc import Iterator, Sequence

from sbf_service.drivers.switch.dialect import Dialect, PortNames, SwitchReading
from sbf_service.drivers.switch.lldp import LldpFormat
from sbf_service.drivers.switch.show_output import build_port_readings, expand_port_list, quote_first_line
from virtcloud.model.vlans import VlanSet

PORTS = PortNames(
    {
        "TenGigabitEthernet": (),
        "GigabitEthernet": (),
        "fortyGigE": (),
        "hundredGigE": (),
        "twentyFiveGigE": (),
        "Port-channel": (),
    },
    gap=" ",
)
HEAD = re.compile(r"^ +NUM +Status +Description +(?=Q Ports)", re.MULTILINE)
ROW = re.compile(r"[* A-Z]{1,4} *(?P<number>\d+) +(?:Active|Inactive)\b.*")


def parse_answers(answers: Sequence[str]) -> SwitchReading:
    """Parse ``show vlan``: a row for each VLAN. The column of members can continue in the following rows.

    Raise ValueError if the output has another form.
    """
    (text,) = answers
    head = HEAD.search(text)
    if head is None:
        raise ValueError(f"no table of VLANs in {quote_first_line(text)!r}")
    column = head.end() - head.start()
    description = slice(head[0].index("Description"), column)
    vlans: list[int] = []
    names: dict[int, str] = {}
    members: list[tuple[str, str, int]] = []
    for line in text[head.end() :].splitlines()[1:]:
        row = ROW.fullmatch(line[:column].rstrip())
        if row:
            vlans.append(int(row["number"]))
            names[vlans[-1]] = line[description].strip()
        elif line[:column].strip() or (line.strip() and not vlans):
            raise ValueError(line)
        members += [(kind, port, vlans[-1]) for kind, port in _parse_members(line[column:])]
    return SwitchReading(VlanSet(vlans), build_port_readings(members, tagged="T", untagged="U"), names=names)


def _parse_members(text: str) -> Iterator[tuple[str, str]]:
    """Yield the memberships (kind, port) of a list: ``T Te 0/30,35-37``, ``U Te 1/1-1/3,1/5``, ``T Po1(Te 1/47-1/48)``.

    The ports in parentheses are the members of a link aggregate. These members have no VLANs of their own.
    """
    if text.strip():
        match = re.fullmatch(r"([A-Za-z]) ([A-Za-z]+) ?([\d/,-]+)(?:\([^()]*\))?", text.strip())
        if match is None:
            raise ValueError(text)
        kind, letters, numbers = match.groups()
        slot = ""
        for part in numbers.split(","):
            own_slot = part[: part.partition("-")[0].rfind("/") + 1]
            slot = own_slot or slot
            for number in expand_port_list(part if own_slot else slot + part):
                yield kind, PORTS.canonical(f"{letters}{number}")


LLDP = LldpFormat(
    show="show lldp neighbors detail",
    start=r"\s*Remote Chassis ID Subtype:",
    local=r"\s*Local Port ID:\s*(.+)",
    chassis=r"\s*Remote Chassis ID:\s*(.+)",
    port=r"\s*Remote Port ID:\s*(.+)",
    port_description=r"\s*Remote Port Description:\s*(.+)",
    name=r"\s*Remote System Name:\s*(.+)",
    address=r"\s*Remote Management Address \(IPv4\):\s*(.+)",
    total=r"^ *Local Interface .* has (\d+) neighbor",
)


DIALECT = Dialect(
    title="Force10 FTOS, Dell OS9",
    netmiko="dell_force10",
    show=("show vlan",),
    see=parse_answers,
    create=("interface vlan {vlan}", "description {name}", "exit"),
    delete=("no interface vlan {vlan}",),
    prepare=(),
    trunk=("interface {port}", "switchport", "exit"),
    allow=("interface vlan {vlan}", "tagged {port}", "exit"),
    remove=("interface vlan {vlan}", "no tagged {port}", "exit"),
    access=(
        "interface {port}",
        "shutdown",
        "switchport",
        "exit",
        "interface vlan {vlan}",
        "untagged {port}",
        "exit",
        "interface {port}",
        "no shutdown",
        "exit",
    ),
    vacate=(
        ("interface {port}", "shutdown", "exit"),
        ("interface vlan {vlan}", "no untagged {port}", "exit"),
        ("interface {port}", "no switchport", "exit"),
    ),
    leave_vlans=("interface {port}", "no switchport", "exit"),
    save=("write memory",),
    # The pattern can match a text in only one way. Otherwise, each "!" would double the time until a mismatch is found.
    saved=re.compile(r"\A\s*(?:(?:!|Synchronizing data to [^\n]*(?![^\n])|\d+ bytes successfully copied)\s*)+\Z"),
    errors=re.compile(r"^[^\S\n]*% ?(?!Warning).*|^Error.*", re.MULTILINE),
    ports=PORTS,
    shows_every_port=False,
    at_once=8,
    privileged=True,
    lldp=LLDP,
)
