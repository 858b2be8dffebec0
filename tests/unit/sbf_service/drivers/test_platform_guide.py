"""The code of docs/how-to/add-a-switch-platform.md is executed and tested without changes."""

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

from support.emulators.ssh_server import listening
from support.emulators.switch_bench import login_for

from sbf_service.drivers.contract import SwitchScope
from sbf_service.drivers.switch.command_line_switch import CommandLineSwitch
from sbf_service.drivers.switch.command_rendering import render_commands
from sbf_service.drivers.switch.dialect import Dialect
from sbf_service.drivers.switch.plugins import find_dialect_faults, find_netmiko_faults
from sbf_service.drivers.transport.ssh import SshCommandLine
from virtcloud.model.switch_state import SwitchDifference, SwitchWanted, compare_switch
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

PAGE = Path(__file__).parents[4] / "docs/how-to/add-a-switch-platform.md"
TABLE = "VLAN Name      Status    Ports\n---- --------- --------- -----\n1    default   STATIC\n"
PORTS = "interface GigabitEthernet 0/1\n switchport mode trunk\n"


def example(index: int) -> dict[str, Any]:
    names: dict[str, Any] = {}
    text = re.findall(r"^( *)```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[index]
    exec(compile(dedent(f"{text[0]}{text[1].strip()}"), str(PAGE), "exec"), names)  # noqa: S102 - a page of SBF
    return names


def test_the_example_passes_the_checks_of_plugins() -> None:
    dialect: Dialect = example(0)["DIALECT"]
    assert (*find_dialect_faults(dialect), *find_netmiko_faults(dialect)) == ()


def test_the_dialect_of_the_page_drives_its_emulator() -> None:
    dialect: Dialect = example(0)["DIALECT"]
    with listening(example(1)["ExampleOs"]()) as switch:
        ports = PortName("Gi0/1"), PortName("Gi0/2")
        line = SshCommandLine(login_for(switch, *ports), dialect.netmiko, privileged=dialect.privileged)
        driver = CommandLineSwitch(Name("sw1"), dialect, line)
        wanted = SwitchWanted(ports={ports[0]: VlanSet([112]), ports[1]: VlanSet([112, 120])})
        managed = SwitchScope(ports, VlanSet.parse("100-199"))
        driver.apply(compare_switch(wanted, driver.read(managed)))
        driver.save()
        remaining = compare_switch(wanted, driver.read(managed))
        driver.close()
        assert not remaining
        assert switch.carrying() == {"GigabitEthernet 0/1": {112}, "GigabitEthernet 0/2": {112, 120}}
        assert not switch.unsaved


def test_the_example_of_the_page_parses_and_renders() -> None:
    dialect: Dialect = example(0)["DIALECT"]
    reading = dialect.see([TABLE, PORTS])
    port = PortName("Gi0/1")
    assert reading.ports["GigabitEthernet0/1"].open
    assert render_commands(
        dialect, SwitchDifference(close=(port,), create=VlanSet([112]), add={port: VlanSet([112])}), reading
    ) == [
        "interface GigabitEthernet 0/1",
        "switchport trunk allowed vlan none",
        "exit",
        "vlan 112",
        "name vc-112",
        "exit",
        "interface GigabitEthernet 0/1",
        "switchport mode trunk",
        "exit",
        "interface GigabitEthernet 0/1",
        "switchport trunk allowed vlan add 112",
        "exit",
    ]


OLD_PLUGIN = """
import re
from sbf_service.drivers.dialects import DIALECTS
from sbf_service.drivers.dialects.cisco_ios import LLDP
from sbf_service.drivers.dialects.dialect import EVERY, Dialect, Kept, Lines, PortNames, PortSeen, Seen
from sbf_service.drivers.dialects.lldp import Lldp
from sbf_service.drivers.dialects.reading import interfaces, trunk, vlan_table
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({"GigabitEthernet": ()}, gap=" ")


def see(answers):
    table, lines = answers
    ports = {name: trunk(body, "access") for name, body in interfaces(lines, PORTS).items()}
    return Seen(VlanSet(vlan_table(table)), ports, names=vlan_table(table))


DIALECT = Dialect(
    title="ExampleOS", netmiko="cisco_ios", show=("show vlan", "show running-config"), see=see,
    create=("vlan {vlan}", "name {name}", "exit"), delete=("no vlan {vlan}",),
    prepare=("interface {port}", "switchport trunk allowed vlan none", "exit"),
    allow=("interface {port}", "switchport trunk allowed vlan add {vlans}", "exit"),
    remove=("interface {port}", "switchport trunk allowed vlan remove {vlans}", "exit"),
    kept=(Kept("switchport mode ", "no switchport mode"),), save=("write",), saved=re.compile("OK"),
    errors=re.compile("^%", re.MULTILINE), ports=PORTS, lldp=LLDP,
)
"""


def test_a_plugin_of_version_0_2_still_works() -> None:
    names: dict[str, Any] = {}
    exec(compile(OLD_PLUGIN, "old_plugin", "exec"), names)  # noqa: S102 - defined above
    dialect: Dialect = names["DIALECT"]
    assert find_dialect_faults(dialect) == ()
    assert dialect.see([TABLE, PORTS]).ports["GigabitEthernet0/1"].open
