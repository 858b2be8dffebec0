"""``virtcloud cluster run``: a command on all guests of a cluster, and its output with the guests' names."""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Literal

import click

from virtcloud.cli import groups
from virtcloud.cli.groups import SummaryCommand
from virtcloud.cli.options import DurationType, WholeNumberType, open_client, split_names
from virtcloud.client.fan_out import DEFAULT_JOBS
from virtcloud.client.guest_commands import (
    GuestResult,
    OutputSink,
    find_batch_logins,
    make_command,
    require_success,
    run_commands,
)
from virtcloud.client.ssh_arguments import SshOptions, open_logins
from virtcloud.model.message_text import printable

MAX_LINE_BYTES = 1 << 16
"""The length above which a line is printed in parts. Without this limit, a guest that sends no line feed could fill the
memory.
"""
MAX_JOBS = 100


THROUGH = click.option(
    "--through",
    type=click.Choice(["sbf", "gateway"]),
    help="Connect to the guests through a gateway or through SBF.  [default: a reachable gateway of the "
    "cluster, otherwise SBF]",
)


def _require_key_file(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Raise BadParameter if the file does not exist. ssh would only warn, and then report a refused login."""
    if value is not None and not os.path.isfile(os.path.expanduser(value)):  # noqa: PTH111, PTH113 - pathlib fails without a home
        raise click.BadParameter(f"{value}: expected a file with your private key, found none", context, parameter)
    return value


IDENTITY = click.option(
    "--identity",
    "-i",
    metavar="FILE",
    callback=_require_key_file,
    help="File with your private key.  [default: ssh's default]",
)


def fan_out_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of commands that connect to many guests with ssh."""
    for option in (
        click.option(
            "--option", "-o", "options", multiple=True, help="An option for ssh, as in ssh_config(5); may be repeated."
        ),
        IDENTITY,
        THROUGH,
        click.option(
            "--user", "-l", help="The login user in the guests.  [default: the login user of the cluster's guests]"
        ),
        click.option(
            "--jobs",
            type=WholeNumberType(1, MAX_JOBS),
            default=DEFAULT_JOBS,
            show_default=True,
            help="Maximum number of guests with a connection at the same time.",
        ),
        click.option("--timeout", type=DurationType(), help="Maximum time for each guest.  [default: no limit]"),
        click.option(
            "--guest",
            "-g",
            "guests",
            multiple=True,
            metavar="NAME[,NAME]...",
            help="Only this guest; may be repeated.  [default: all guests of the cluster]",
        ),
    ):
        command = option(command)
    return command


@click.command(cls=SummaryCommand)
@click.argument("key")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...")
@fan_out_options
@click.option(
    "--wait",
    type=DurationType(),
    default=0.0,
    help="Maximum time to retry the login to a guest that does not accept logins yet.  [default: no retries]",
)
@click.option("--stdin", "use_stdin", is_flag=True, help="Read the standard input, and pass it to each command.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON after all commands have ended.")
@click.pass_context
def run(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    key: str,
    *,
    command: tuple[str, ...],
    guests: tuple[str, ...],
    timeout: float | None,
    wait: float,
    jobs: int,
    user: str | None,
    identity: str | None,
    options: tuple[str, ...],
    through: Literal["sbf", "gateway"] | None,
    use_stdin: bool,
    as_json: bool,
) -> None:
    """Run COMMAND on all guests of the cluster KEY at the same time, over ssh.

    Each line of the output begins with the guest's name.

    As with ssh, the words of COMMAND are joined with spaces, and the guest's shell interprets them. The standard
    input of COMMAND is empty, unless --stdin is set. ssh asks no questions: a key with a passphrase must be in the
    ssh-agent. Ctrl-C ends COMMAND on all guests.

    The exit code is 0 if COMMAND succeeded on all guests. If COMMAND failed on a guest, the exit code is 1,
    and stderr lists the failed guests.

    Example: virtcloud cluster run demo -- uname -r

    Example: virtcloud cluster run demo --guest g1,g2 --timeout 1m --json -- './prepare && ./check'
    """
    wanted = make_command(" ".join(command), sys.stdin.buffer.read() if use_stdin else None)
    output = None if as_json else PrefixedOutput(sys.stdout.buffer, sys.stderr.buffer)
    sink, check = (output.open_sink, output.require_reader) if output else (None, None)
    names = split_names(guests, "--guest", "guests")
    with groups.exiting_at_signals(), open_logins(open_client(context).sbf, key) as logins:
        found = find_batch_logins(logins, SshOptions(user, identity, options, through), names)
        with _exit_when_interrupted(context):
            results = run_commands(found, wanted, sink, jobs, timeout, check, wait)
    if not output:
        click.echo(json.dumps({name: _document(result) for name, result in results.items()}, indent=2))
    require_success(results)


@contextmanager
def _exit_when_interrupted(context: click.Context) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        groups.exit_interrupted(context, "interrupted; the command was ended on all guests")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise Python writes to the closed pipe again at its exit
        context.exit(groups.EXIT_FAILED)


def _document(result: GuestResult) -> Mapping[str, object]:
    return {
        "returncode": result.returncode,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "seconds": round(result.seconds, 3),
        "error": result.error,
    }


class PrefixedOutput:
    """Writes the output of all guests to the standard streams. Each line begins with the guest's name. Thread-safe."""

    def __init__(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        """Create the output on two streams."""
        self._streams = {False: stdout, True: stderr}
        self._lock = threading.Lock()
        self._has_reader = True

    def open_sink(self, guest: str) -> OutputSink:
        """Return the receiver of a guest's output."""
        return PrefixedSink(f"{guest}: ".encode(), self._write)

    def require_reader(self, _progress: object) -> None:
        """Raise BrokenPipeError if the program that reads the output, such as ``head``, has ended."""
        if not self._has_reader:
            raise BrokenPipeError

    def _write(self, data: bytes, is_error: bool) -> None:
        stream = self._streams[is_error]
        shown = printable(data.decode(errors="replace").replace("\r", "")).encode() if stream.isatty() else data
        with self._lock:
            try:
                stream.write(shown)
                stream.flush()
            except BrokenPipeError:
                self._has_reader = False


class PrefixedSink:
    """An `OutputSink` that writes whole lines with a prefix."""

    def __init__(self, prefix: bytes, write: Callable[[bytes, bool], None]) -> None:
        """Store the prefix, and the function that writes lines.

        The second argument of ``write`` is true for the standard error.
        """
        self._prefix = prefix
        self._write = write
        self._rest = {False: b"", True: b""}

    def write_stdout(self, data: bytes) -> None:
        """Write the lines that ``data`` completes. Store the rest of ``data``."""
        self._write_lines(data, is_error=False)

    def write_stderr(self, data: bytes) -> None:
        """Write the lines that ``data`` completes. Store the rest of ``data``."""
        self._write_lines(data, is_error=True)

    def close(self) -> None:
        """Write the unfinished last line of each stream, if there is one."""
        for is_error, rest in self._rest.items():
            if rest:
                self._write(self._prefix + rest + b"\n", is_error)

    def _write_lines(self, data: bytes, *, is_error: bool) -> None:
        lines, feed, rest = (self._rest[is_error] + data).rpartition(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines, rest = lines + feed + rest, b""
            feed = b"\n"
        self._rest[is_error] = rest
        if feed:
            self._write(self._prefix + lines.replace(b"\n", b"\n" + self._prefix) + feed, is_error)
