"""``virtcloud element try``: a dialect against one switch, read-only, without SBF.

The driver runs in a process of its own, ``python -m sbf_service.trial``: what every machine imports does not know the
service (docs/decisions). The trial is passed through a pipe, since it may have passwords.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import yaml
from pydantic import ValidationError

from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryCommand
from virtcloud.cli.options import json_option
from virtcloud.model.dialect_trial import ParsedPort, ParsedSwitch, TrialRecord, TrialRequest, compare_records
from virtcloud.model.document import format_validation_errors
from virtcloud.model.errors import BadInput, ElementError

MODULE = "sbf_service.trial"
NEEDED = "netmiko"
FILE = click.Path(path_type=Path)


@click.command("try", cls=SummaryCommand)
@click.option("--platform", help="The dialect: a platform's name, built in or of a plug-in.")
@click.option("--address", metavar="HOST[:PORT]", help="Where the switch answers to SSH.")
@click.option("--username", metavar="NAME", help="The account; one that may only read will do.")
@click.option("--key-file", type=FILE, help="The account's SSH key; without it the password is asked for.")
@click.option("--password-file", type=FILE, help="File with the password, instead of the question.")
@click.option("--enable-file", type=FILE, help="File with the 'enable' password, if it is another one.")
@click.option("--known-hosts", type=FILE, help="Accept only SSH host keys of this file; without it any.")
@click.option("--timeout", type=click.FloatRange(0.1, 600), default=10, help="Seconds that the switch may be silent.")
@click.option("--port", "ports", multiple=True, metavar="PORT", help="Show this port only; may be repeated.")
@click.option("--vlan", type=int, help="Print the lines that SBF would send for this VLAN on each --port.")
@click.option("--access", is_flag=True, help="The example is untagged, on access ports.")
@click.option("--record", type=FILE, help="Write the conversation, and what was understood, to this file (YAML).")
@click.option("--source", metavar="TEXT", help="What the switch is (model, release), for readers of the record.")
@click.option("--replay", type=FILE, help="Take the answers from such a file; no switch is asked.")
@json_option
def try_command(  # noqa: PLR0913 - click gives each option by its name
    *,
    platform: str | None,
    address: str | None,
    username: str | None,
    key_file: Path | None,
    password_file: Path | None,
    enable_file: Path | None,
    known_hosts: Path | None,
    timeout: float,
    ports: tuple[str, ...],
    vlan: int | None,
    access: bool,
    record: Path | None,
    source: str | None,
    replay: Path | None,
    as_json: bool,
) -> None:
    """Try a platform's dialect on one switch, read-only: SBF is not asked, and only show commands are sent.

    Prints the VLANs, ports and LLDP neighbours that were understood, and what was not. Exit code 1 when something was
    not read or not understood, or when SBF would refuse the example of --vlan. A replay takes the platform, ports
    and example of the record unless others are given.

    Example: virtcloud element try --platform cisco_ios --address 192.0.2.10 --username viewer --port Gi1/0/1 --vlan 100
    """
    given: dict[str, object] = {"platform": platform, "ports": ports, "vlan": vlan, "access": access}
    recorded = None if replay is None else read_record(replay)
    if recorded is not None:
        former = recorded.model_dump(include={"platform", "ports", "vlan", "access"})
        given = {**former, **{key: value for key, value in given.items() if value}, "replayed": recorded}
    else:
        if address is None or username is None or platform is None:
            raise BadInput("expected --platform, --address and --username, or --replay FILE")
        login: dict[str, object] = {"address": address, "username": username}
        files = {"key_file": key_file and str(key_file), "known_hosts": known_hosts and str(known_hosts)}
        secrets = {"password": _password(key_file, password_file), "enable": enable_file and _secret(enable_file)}
        given = {**given, **login, **files, **secrets, "timeout_s": timeout}
    named = source or (recorded.source if recorded else "")
    found = _tried(_trial(given)).model_copy(update={"source": named})
    if record is not None:
        _write_record(record, found)
    printing.print_json(found) if as_json else _print(found, record)
    faults = [*found.faults, *(compare_records(recorded, found) if recorded and record is None else ())]
    if faults:
        raise ElementError("\n".join(faults))


def read_record(path: Path) -> TrialRecord:
    """Read a recorded conversation. Raise BadInput for a file that is none."""
    try:
        return TrialRecord.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadInput(f"{path}: expected a recorded conversation: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: expected a recorded conversation (YAML): {error}") from error
    except ValidationError as error:
        raise BadInput(f"{path}: expected a recorded conversation: {format_validation_errors(error)}") from error


def format_record(record: TrialRecord) -> str:
    """Return a conversation as it is written to a file: one line of YAML for each line of an answer."""
    document = record.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=sys.maxsize)


def _trial(given: dict[str, object]) -> TrialRequest:
    try:
        return TrialRequest.model_validate(given)
    except ValidationError as error:
        raise BadInput(format_validation_errors(error)) from error


def _tried(trial: TrialRequest) -> TrialRecord:
    """Run the trial in a process of its own; its message and exit code for bad input are ours."""
    if find_spec(NEEDED) is None or find_spec(MODULE.partition(".")[0]) is None:
        raise BadInput(f"the command 'element try' needs {NEEDED}; install it with: pip install 'virtcloud[sbf]'")
    argv = [sys.executable, "-m", MODULE]
    done = subprocess.run(argv, input=trial.model_dump_json(), stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        click.get_current_context().exit(done.returncode)
    return TrialRecord.model_validate_json(done.stdout)


def _password(key_file: Path | None, password_file: Path | None) -> str | None:
    if password_file is not None:
        return _secret(password_file)
    if key_file is not None:
        return None
    answer: str = click.prompt("Password", hide_input=True, err=True)
    return answer


def _secret(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise BadInput(f"{path}: expected a file with a password: {error.strerror}") from error


def _write_record(path: Path, record: TrialRecord) -> None:
    """Write a record that nobody else can read: a configuration has secrets."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)
            file.write(format_record(record))
    except OSError as error:
        raise BadInput(f"{path}: the record cannot be written: {error.strerror}") from error


def _print(record: TrialRecord, path: Path | None) -> None:
    for question in record.asked:
        count = len(question.answer)
        click.echo(f"asked {question.command!r}: {count} line{'' if count == 1 else 's'}")
    if record.understood is not None:
        _print_understood(record, record.understood)
    if record.vlan is not None and record.understood is not None:
        click.echo(f"\nlines that SBF would send for VLAN {record.vlan} on {', '.join(record.ports)} (none was sent):")
        click.echo("\n".join(record.lines) or "none")
    if path is not None:
        click.echo(f"\nthe conversation is in {path}: take passwords out of it before it leaves this machine")


def _print_understood(record: TrialRecord, found: ParsedSwitch) -> None:
    click.echo()
    printing.print_table(("VLAN", "name"), list(found.vlans.items()), "no VLANs")
    click.echo(f"\nVLAN IDs that the switch reserves: {found.reserved or 'none'}\n")
    heads = ("port", "mode", "tagged", "native", "access", "shut")
    printing.print_table(heads, [_row(name, port) for name, port in _chosen(record, found)], "no ports")
    click.echo()
    if found.neighbours is None:
        click.echo("neighbours: not asked for, or not understood")
        return
    heard = [(one.local, one.name, one.port, one.description, one.address) for one in found.neighbours]
    printing.print_table(("port", "neighbour", "its port", "description", "address"), heard, "no neighbours")


def _chosen(record: TrialRecord, found: ParsedSwitch) -> Iterator[tuple[str, ParsedPort]]:
    """Yield the ports to print: all, unless some were named and the trial found them under these very names."""
    wanted = {port.lower() for port in record.ports}
    exact = [(name, port) for name, port in found.ports.items() if name.lower() in wanted]
    yield from exact if len(exact) == len(wanted) and exact else found.ports.items()


def _row(name: str, port: ParsedPort) -> tuple[object, ...]:
    mode = f"{port.mode or 'none'}{' (member of an aggregate)' if port.member else ''}"
    access = "" if port.access is None else port.access
    return (name, mode, "all VLANs" if port.open else str(port.tagged), port.native or "", access, "yes" * port.shut)
