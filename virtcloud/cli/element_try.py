"""``virtcloud element try``: test a dialect on one switch. The test only reads, and does not use SBF.

The driver runs in a second process, ``python -m sbf_service.trial``, because the package virtcloud does not import
sbf_service. A pipe carries the request, which may contain passwords.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import click
import yaml
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryCommand
from virtcloud.cli.options import NumberType, WholeNumberType
from virtcloud.model.dialect_trial import ParsedPort, ParsedSwitch, TrialRecord, TrialRequest, compare_records
from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, ElementError
from virtcloud.model.message_text import count_of
from virtcloud.model.validation_errors import format_validation_errors
from virtcloud.model.values import VlanId
from virtcloud.model.yaml_document import read_document

MODULE = "sbf_service.trial"
DRIVER_LIBRARY = "netmiko"
FILE = click.Path(path_type=Path)
REPLAYED_FIELDS = {"platform", "ports", "vlan", "access"}
"""The fields of a request that a replay reads from the record."""


@click.command("try", cls=SummaryCommand)
@click.option("--platform", help="The platform of the dialect, built in or from a plug-in.")
@click.option("--address", metavar="HOST[:PORT]", help="The switch's address for SSH.")
@click.option("--username", metavar="NAME", help="The account on the switch; read-only access is sufficient.")
@click.option(
    "--key-file",
    type=FILE,
    help="The account's SSH key. Without --key-file and --password-file, you are asked for the password.",
)
@click.option("--password-file", type=FILE, help="File with the password, instead of a prompt.")
@click.option(
    "--enable-file", type=FILE, help="File with the 'enable' password, if it differs from the login password."
)
@click.option(
    "--known-hosts", type=FILE, help="Accept only the SSH host keys in this file; without this option, accept any key."
)
@click.option("--timeout", type=NumberType(0.1, 600), default=10, help="Seconds to wait for each answer of the switch.")
@click.option("--port", "ports", multiple=True, metavar="PORT", help="Show this port only; may be repeated.")
@click.option(
    "--vlan",
    type=WholeNumberType(VlanId.lowest, VlanId.highest),
    help="Print the lines that SBF would send for this VLAN ID on each --port.",
)
@click.option("--access", is_flag=True, help="Print the lines for an access port, untagged.")
@click.option("--record", type=FILE, help="Write the conversation and its result to this file (YAML).")
@click.option("--source", metavar="TEXT", help="The model and release of the switch, for readers of the record.")
@click.option("--replay", type=FILE, help="Use the answers of a file that --record wrote; no switch is contacted.")
@printing.json_option
def try_command(  # noqa: PLR0913 - click passes each option by its name
    *,
    password_file: Path | None,
    enable_file: Path | None,
    record: Path | None,
    source: str | None,
    replay: Path | None,
    as_json: bool,
    **options: object,
) -> None:
    """Test a platform's dialect on one switch, read-only. SBF is not used, and only show commands are sent.

    The command prints what the dialect parsed (VLANs, ports and LLDP neighbours), and the lines that it could not
    parse. The exit code is 1 if the switch did not answer a command, if a line could not be parsed, or if SBF would
    refuse --vlan. A replay uses the platform, ports and VLAN ID of the record, unless options override these fields.

    Example: virtcloud element try --platform cisco_ios --address 192.0.2.10 --username viewer --port Gi1/0/1 --vlan 100
    """
    replayed = None if replay is None else read_record(replay)
    if replayed is not None:
        trial = _make_replay(replayed, options)
    else:
        trial = _make_trial(options, password_file, enable_file)
    device = source or (replayed.source if replayed else "")
    result = _run_trial(trial).model_copy(update={"source": device})
    if record is not None:
        _write_record(record, result)
    printing.print_json(result) if as_json else _print_trial(result, record)
    errors = [*result.faults, *(compare_records(replayed, result) if replayed and record is None else ())]
    if errors:
        raise ElementError("\n".join(errors))


def _make_replay(record: TrialRecord, options: Mapping[str, object]) -> TrialRequest:
    overrides = {key: options[key] for key in REPLAYED_FIELDS if options[key]}
    return _validate_trial({**record.model_dump(include=REPLAYED_FIELDS), **overrides, "replayed": record})


def _make_trial(options: Mapping[str, object], password_file: Path | None, enable_file: Path | None) -> TrialRequest:
    if not all(options[key] for key in ("platform", "address", "username")):
        raise BadInput("expected --platform, --address and --username, or --replay FILE")
    paths = {key: options[key] and str(options[key]) for key in ("key_file", "known_hosts")}
    password = _read_password(options["key_file"] is not None, password_file)
    enable = enable_file and _read_secret(enable_file)
    timeout = {"timeout_s": options["timeout"]}
    plain = {key: options[key] for key in (*REPLAYED_FIELDS, "address", "username")}
    return _validate_trial({**plain, **paths, **timeout, "password": password, "enable": enable})


def read_record(path: Path) -> TrialRecord:
    """Read a record from a file. Raise BadInput if the file cannot be read or contains no record."""
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise BadInput(f"{path}: expected a recorded conversation: {error.strerror}") from error
    return read_document(text, str(path), TrialRecord)


def format_record(record: TrialRecord) -> str:
    """Format a record as YAML, with each line of an answer on a separate line."""
    document = record.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=sys.maxsize)


def _validate_trial(fields: Mapping[str, object]) -> TrialRequest:
    try:
        return TrialRequest.model_validate(fields)
    except ValidationError as error:
        raise BadInput(format_validation_errors(error)) from error


def _run_trial(trial: TrialRequest) -> TrialRecord:
    return TrialRecord.model_validate_json(run_driver_program(MODULE, trial, "element try"))


def run_driver_program(module: str, request: Document, command: str) -> str:
    """Run ``module``, a program of sbf_service that uses drivers. Return the program's output.

    Exit with the program's exit code if the program fails. Raise BadInput if the libraries of drivers are missing, or
    if the request contains bytes that are not UTF-8. The messages contain ``command``, the name of the virtcloud
    command.
    """
    if find_spec(DRIVER_LIBRARY) is None or find_spec(module.partition(".")[0]) is None:
        raise BadInput(f"the command '{command}' needs {DRIVER_LIBRARY}; install it with: pip install 'virtcloud[sbf]'")
    try:
        sent = request.model_dump_json()
    except PydanticSerializationError as error:
        raise BadInput(f"{command}: expected options and files in UTF-8, got other bytes: correct them") from error
    argv = [sys.executable, "-P", "-m", module]  # -P: import no module from the user's current folder
    process = subprocess.run(argv, input=sent, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 - starts virtcloud's own module
    if process.returncode:
        click.get_current_context().exit(process.returncode)
    return process.stdout


def _read_password(has_key: bool, password_file: Path | None) -> str | None:
    if password_file is not None:
        return _read_secret(password_file)
    if has_key:
        return None
    answer: str = click.prompt("Password", hide_input=True, err=True)
    return answer


def _read_secret(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise BadInput(f"{path}: expected a file with a password: {error.strerror}") from error
    except UnicodeDecodeError:
        raise BadInput(f"{path}: expected a password in UTF-8, got other bytes") from None  # error contains the secret


def _write_record(path: Path, record: TrialRecord) -> None:
    """Write a record to a file that only its owner can read: a configuration may contain secrets."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)
            file.write(format_record(record))
    except OSError as error:
        raise BadInput(f"{path}: the record cannot be written: {error.strerror}") from error


def _print_trial(record: TrialRecord, path: Path | None) -> None:
    for question in record.asked:
        click.echo(f"sent {question.command!r}: {count_of(len(question.answer), 'line')} of output")
    if record.understood is not None:
        _print_switch(record, record.understood)
    if record.vlan is not None and record.understood is not None:
        click.echo(f"\nlines that SBF would send for VLAN {record.vlan} on {', '.join(record.ports)} (none was sent):")
        click.echo("\n".join(record.lines) or "none")
    if path is not None:
        click.echo(f"\nthe conversation is in {path}; remove passwords before you share the file")


def _print_switch(record: TrialRecord, switch: ParsedSwitch) -> None:
    click.echo()
    printing.print_table(("VLAN", "name"), list(switch.vlans.items()), "no VLANs")
    click.echo(f"\nVLAN IDs that the switch reserves: {switch.reserved or 'none'}\n")
    columns = ("port", "mode", "tagged", "native", "access", "shut")
    printing.print_table(columns, [_row(name, port) for name, port in _select_ports(record, switch)], "no ports")
    click.echo()
    if switch.neighbours is None:
        click.echo("neighbours: not read, or not parsed")
        return
    rows = [
        (neighbour.local, neighbour.name, neighbour.port, neighbour.description, neighbour.address)
        for neighbour in switch.neighbours
    ]
    printing.print_table(("port", "neighbour", "neighbour's port", "description", "address"), rows, "no neighbours")


def _select_ports(record: TrialRecord, switch: ParsedSwitch) -> Iterator[tuple[str, ParsedPort]]:
    """Yield the ports of ``--port``. Without this option, or if the switch lacks one of them, yield all ports."""
    wanted = {port.lower() for port in record.ports}
    exact = [(name, port) for name, port in switch.ports.items() if name.lower() in wanted]
    yield from exact if len(exact) == len(wanted) and exact else switch.ports.items()


def _row(name: str, port: ParsedPort) -> tuple[object, ...]:
    mode = f"{port.mode or 'none'}{' (member of an aggregate)' if port.member else ''}"
    access = "" if port.access is None else port.access
    return (name, mode, "all VLANs" if port.open else str(port.tagged), port.native or "", access, "yes" * port.shut)
