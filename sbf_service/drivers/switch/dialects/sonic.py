"""SONiC: SBF runs ``config`` and ``show`` in a Linux shell.

The account must be allowed to use sudo without a password.

From release 202305 on, a port accepts VLANs only after ``config switchport mode`` has made the port a trunk. Earlier
releases lack this command: on these releases, every port except a routed port accepts VLANs.

Sources: networking-generic-switch for the commands; sonic-utilities' pull requests (210, 1050) for ``show vlan
config``; Cisco's SONiC guide for ``show lldp neighbors``, whose output has the form of lldpcli(8). From memory, not
checked on a device: ``config switchport mode``.

``config save -y`` prints a line with the command that writes ``config_db.json`` (sonic-utilities' tests). If the save
fails, the shell prints the error after this line.
"""

import re
from collections.abc import Sequence

from sbf_service.drivers.switch.dialect import Dialect, PortNames, SwitchReading
from sbf_service.drivers.switch.lldp import LldpFormat
from sbf_service.drivers.switch.show_output import build_port_readings, quote_first_line
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({"Ethernet": (), "PortChannel": ()})
ACCESS = "sudo -n config switchport mode access {port}"
ROUTED = "sudo -n config switchport mode routed {port}"
MODE = "sudo -n config switchport mode trunk {port}"


def parse_answers(answers: Sequence[str]) -> SwitchReading:
    """Parse ``show vlan config``: a row for each member of a VLAN, and a row for each VLAN without members.

    Raise ValueError if the output has another form.
    """
    (text,) = answers
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if not lines or lines[0] != ["Name", "VID", "Member", "Mode"]:
        raise ValueError(f"no table of VLANs in {quote_first_line(text)!r}")
    rows = [row for row in lines[1:] if set(row[0]) != {"-"}]
    for row in rows:
        if not re.fullmatch(r"Vlan\d+ \d+( \S+ (un)?tagged)?", " ".join(row)):
            raise ValueError(" ".join(row))
    members = [(kind, port, int(vlan)) for _, vlan, port, kind in (row for row in rows if row[2:])]
    return SwitchReading(VlanSet(int(row[1]) for row in rows), build_port_readings(members, "tagged", "untagged"))


LLDP = LldpFormat(
    show="show lldp neighbors",
    start=r"Interface:\s+\S",
    local=r"Interface:\s+([^,]+),",
    chassis=r"\s+ChassisID:\s+\S+ (.+)",
    port=r"\s+PortID:\s+\S+ (.+)",
    port_description=r"\s+PortDescr:\s+(.+)",
    name=r"\s+SysName:\s+(.+)",
    address=r"\s+MgmtIP:\s+(.+)",
    nobody=r"[-\s]*LLDP neighbors:[-\s]*",
)


DIALECT = Dialect(
    title="SONiC",
    netmiko="linux",
    show=("show vlan config",),
    see=parse_answers,
    configure=(),
    leave=(),
    create=("sudo -n config vlan add {vlan}",),
    delete=("sudo -n config vlan del {vlan}",),
    prepare=(),
    trunk=(MODE,),
    allow=("sudo -n config vlan member add {vlan} {port}",),
    remove=("sudo -n config vlan member del {vlan} {port}",),
    access=(ACCESS, "sudo -n config vlan member add -u {vlan} {port}"),
    vacate=(("sudo -n config vlan member del {vlan} {port}",),),
    leave_vlans=(ROUTED,),
    save=("sudo -n config save -y",),
    saved=re.compile(r"^Running command: .*config_db\.json\s*\Z", re.MULTILINE),
    errors=re.compile(
        r"^[^\S\n]*+(?:Error|Usage|sudo|Root priv|.*command not found|.*No such command|.*is invalid"
        r"|.*doesn't exist).*",
        re.MULTILINE,
    ),
    may_fail=frozenset({MODE, ACCESS, ROUTED}),
    ports=PORTS,
    shows_every_port=False,
    lldp=LLDP,
)
