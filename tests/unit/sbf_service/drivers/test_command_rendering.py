"""A dry run lists exactly the commands that the driver sends, on every platform."""

from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from sbf_service.drivers.switch.command_line_switch import CommandLineSwitch
from sbf_service.drivers.switch.dialect import PortReading, SwitchReading
from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.model.errors import Refused
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

PORT = PortName("Ethernet1/1")
CHANGE = SwitchDifference(
    create=VlanSet([112]), delete=VlanSet([130]), add={PORT: VlanSet([112])}, remove={PORT: VlanSet([130])}
)


@dataclass
class RecordingLine:
    """A command line that records and accepts every line."""

    sent: list[str] = field(default_factory=list)
    prompt: str = "^#"

    def exchange(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        lines = command.split("\n")
        self.sent += lines
        return "".join(f"{line}\n#" for line in lines)

    def close(self) -> None: ...


@pytest.mark.parametrize("platform", DIALECTS)
def test_a_dry_run_lists_exactly_the_sent_commands(platform: str) -> None:
    dialect, line = DIALECTS[platform], RecordingLine()
    driver = CommandLineSwitch(Name("sw1"), dialect, line)
    driver._reading = SwitchReading(
        VlanSet([130]), {dialect.ports.canonical(PORT): PortReading(tagged=VlanSet([130]), ready=True)}
    )
    commands = driver.list_commands(CHANGE)
    assert line.sent == []
    driver.apply(CHANGE)
    with suppress(Refused):  # most drivers treat an empty answer to a save as a failure
        driver.save()
    assert list(commands) == line.sent


def test_an_empty_difference_has_no_commands() -> None:
    driver = CommandLineSwitch(Name("sw1"), DIALECTS["cisco_ios"], RecordingLine())
    assert driver.list_commands(SwitchDifference()) == ()
