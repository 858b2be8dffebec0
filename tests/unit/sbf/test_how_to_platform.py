"""The example of docs/how-to/add-a-switch-platform.md works as it stands there."""

import re
from pathlib import Path
from typing import Any

from sbf_service.drivers.dialects.dialect import Dialect
from sbf_service.drivers.dialects.lines import lines
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference

PAGE = Path(__file__).parents[3] / "docs/how-to/add-a-switch-platform.md"
TABLE = "VLAN Name      Status    Ports\n---- --------- --------- -----\n1    default   STATIC\n"
PORTS = "interface GigabitEthernet 0/1\n switchport mode trunk\n"


def test_the_example_of_the_page_reads_and_speaks() -> None:
    found: dict[str, Any] = {}
    example = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    exec(compile(example, str(PAGE), "exec"), found)  # noqa: S102 - our own page
    dialect: Dialect = found["DIALECT"]
    seen = dialect.see([TABLE, PORTS])
    port = PortName("Gi0/1")
    assert seen.ports["GigabitEthernet0/1"].open
    assert lines(dialect, SwitchDifference(close=(port,), create=VlanSet([112]), add={port: VlanSet([112])}), seen) == [
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
