"""A read-only trial of a dialect on one switch, without SBF.

``virtcloud element try`` runs this program. It reads the request as JSON from standard input: other users can see
arguments, and the request may contain passwords. It writes a record of the trial (`TrialRecord`) as JSON to standard
output. Exit code 0: the program has written a record. Exit code 2: bad input.
"""

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from traceback import extract_tb

from pydantic import SecretStr

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.contract import DeviceLogin, SwitchScope
from sbf_service.drivers.registry import describe_unknown_platform, find_dialect, list_platform_names
from sbf_service.drivers.switch.command_line_switch import CommandLineSwitch, list_sent_commands
from sbf_service.drivers.switch.dialect import Dialect, PortReading, SwitchReading
from sbf_service.drivers.switch.observed_state import derive_observed_state
from sbf_service.drivers.transport.device_session import RETRIED, CommandLine
from sbf_service.drivers.transport.ssh import SshCommandLine
from virtcloud.model.dialect_trial import (
    ParsedNeighbour,
    ParsedPort,
    ParsedSwitch,
    TrialCommand,
    TrialRecord,
    TrialRequest,
)
from virtcloud.model.element import Switch
from virtcloud.model.errors import BadInput, ElementError
from virtcloud.model.message_text import printable
from virtcloud.model.switch_state import SwitchWanted, compare_switch
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

TRIAL_SWITCH = Name("tried")
"""The switch's name in error messages, which no topology contains."""
ANSWER_END = "<the answer ends here>"
EXIT_BAD_INPUT = 2


class RecordingLine:
    """A command line that records every command with its answer."""

    def __init__(self, line: CommandLine) -> None:
        """Create a command line that sends its commands over ``line``."""
        self._line = line
        self.exchanges: list[TrialCommand] = []

    @property
    def prompt(self) -> str:
        """Return the device's prompt."""
        return self._line.prompt

    def exchange(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        """Send a command, and return the answer. Record the answer without the echo and the prompt."""
        output = self._line.exchange(command, until, times, patience)
        answer = re.split(self._line.prompt, output, flags=re.MULTILINE)[0].partition("\n")[2]
        self.exchanges.append(TrialCommand(command=command, answer=tuple(map(printable, answer.splitlines()))))
        return output

    def close(self) -> None:
        """End the session."""
        self._line.close()


class ReplayLine:
    """A command line that returns the answers of a record."""

    prompt = f"^{ANSWER_END}"

    def __init__(self, recorded: TrialRecord) -> None:
        """Store the recorded answers."""
        self._answers = {
            exchange.command: "".join(f"{line}\n" for line in exchange.answer) for exchange in recorded.asked
        }

    def exchange(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:  # noqa: ARG002 - the protocol's signature
        """Return the recorded answer. Raise BadInput for a command that is not in the record."""
        if command not in self._answers:
            known = ", ".join(map(repr, self._answers)) or "none"
            raise BadInput(
                f"the record has no answer to {command!r}; recorded commands: {known}. Record the conversation again"
            )
        return f"\n{self._answers[command]}{ANSWER_END}"

    def close(self) -> None:
        """Do nothing, because there is no session."""


def run_trial(trial: TrialRequest) -> TrialRecord:
    """Try a dialect with show commands only, and return the record.

    The record contains the errors of the switch and of the dialect. Raise BadInput for a platform without a dialect.
    """
    dialect = _find_dialect(trial)
    line = RecordingLine(ReplayLine(trial.replayed) if trial.replayed else _open_line(trial, dialect))
    driver = CommandLineSwitch(TRIAL_SWITCH, dialect, line)
    record = TrialRecord(platform=trial.platform, ports=trial.ports, vlan=trial.vlan, access=trial.access)
    faults = list[str]()
    try:
        for part in _read_switch(driver, dialect, trial, faults):
            record = record.model_copy(update=part)
    except ElementError as error:
        faults.append(str(error).removesuffix(RETRIED))
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001 - a dialect's author needs every error in the record
        at = extract_tb(error.__traceback__)[-1]
        faults.append(
            f"{at.filename}:{at.lineno}: expected ValueError or no error, got {type(error).__name__}: {error}"
        )
    finally:
        driver.close()
    return record.model_copy(update={"asked": tuple(line.exchanges), "faults": tuple(faults)})


def _read_switch(
    driver: CommandLineSwitch, dialect: Dialect, trial: TrialRequest, faults: list[str]
) -> Iterator[dict[str, object]]:
    """Yield each part of the record as soon as the part was read, so that a later error does not discard the part."""
    reading = driver.read_all()
    parsed = describe_reading(reading)
    yield {"understood": parsed}
    yield {"lines": _format_example(trial, dialect, reading, faults)}
    if dialect.lldp:
        ports = trial.ports or tuple(map(PortName, reading.ports))
        neighbours = tuple(map(_describe_neighbour, driver.read_neighbours(ports)))
        yield {"understood": parsed.model_copy(update={"neighbours": neighbours})}


def describe_reading(reading: SwitchReading) -> ParsedSwitch:
    """Return the parsed state of a switch as a document."""
    vlans = {int(vlan): printable(reading.names.get(vlan, "")) for vlan in reading.vlans}
    ports = {printable(name): _describe_port(port) for name, port in reading.ports.items()}
    return ParsedSwitch(vlans=vlans, reserved=reading.reserved, ports=ports)


def _describe_port(port: PortReading) -> ParsedPort:
    return ParsedPort(
        mode=port.mode,
        tagged=VlanSet() if port.open else port.tagged,
        open=port.open,
        untagged=port.untagged,
        native=port.native,
        access=port.access,
        shut=port.off,
        member=port.member,
    )


def _describe_neighbour(neighbour: Neighbour) -> ParsedNeighbour:
    return ParsedNeighbour(
        local=neighbour.local,
        name=neighbour.name,
        port=neighbour.port,
        description=neighbour.port_description,
        chassis=neighbour.chassis,
        address=neighbour.address,
    )


def _format_example(
    trial: TrialRequest, dialect: Dialect, reading: SwitchReading, faults: list[str]
) -> tuple[str, ...]:
    access = trial.ports if trial.access else ()
    vlans = VlanSet() if trial.vlan is None else VlanSet([trial.vlan])
    try:
        observed = derive_observed_state(TRIAL_SWITCH, dialect, reading, SwitchScope(trial.ports, vlans, access))
    except ElementError as error:
        faults.append(str(error))
        return ()
    faults += [
        f"port {port} is {observed.untaken[port]}: SBF changes the port only after its adoption"
        for port in observed.in_use
    ]
    wanted = SwitchWanted(ports=dict.fromkeys(trial.ports, vlans), access=access)
    difference = compare_switch(wanted, observed)
    return list_sent_commands(dialect, difference, reading) if vlans and difference else ()


def _find_dialect(trial: TrialRequest) -> Dialect:
    if trial.vlan is not None and not trial.ports:
        raise BadInput(f"expected a port for the example of VLAN {trial.vlan}, got none: name a port with --port")
    dialect = find_dialect(trial.platform)
    if dialect is None:
        if trial.platform not in list_platform_names():
            raise BadInput(describe_unknown_platform(trial.platform))
        raise BadInput(f"platform {trial.platform} has no dialect: expected a platform with a command line")
    if trial.access and not dialect.access:
        raise BadInput(f"platform {trial.platform}: expected a dialect with access ports, but this dialect has none")
    return dialect


def _open_line(trial: TrialRequest, dialect: Dialect) -> SshCommandLine:
    if trial.address is None:
        raise BadInput("expected the switch's address or a record of an earlier trial, got neither")
    login = DeviceLogin(
        Switch(
            name=TRIAL_SWITCH, ports=trial.ports or (PortName("any"),), platform=trial.platform, address=trial.address
        ),
        trial.username,
        key_file=None if trial.key_file is None else Path(trial.key_file),
        password=None if trial.password is None else SecretStr(trial.password),
        enable=None if trial.enable is None else SecretStr(trial.enable),
        read_timeout=trial.timeout_s,
        known_hosts=None if trial.known_hosts is None else Path(trial.known_hosts),
    )
    return SshCommandLine(login, dialect.netmiko, privileged=dialect.privileged)


def main() -> None:
    """Read a trial request from standard input and print its record."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        record = run_trial(TrialRequest.model_validate_json(sys.stdin.read()))
    except BadInput as error:
        sys.stderr.write(f"virtcloud: {error}\n")
        sys.exit(EXIT_BAD_INPUT)
    sys.stdout.write(record.model_dump_json())


if __name__ == "__main__":
    main()
