"""Commands on many guests at the same time, over ssh.

The guest's shell runs a short script, which runs the command. When the standard input ends, the script ends the command
and its children, because sshd sends no signal to a command without a terminal.

Before the command, the script prints a random line, the *mark*, which shows that the login succeeded. The exit code of
ssh does not show this: ssh exits with 255 for its own errors, and for a command that exits with 255.
"""

import secrets
import shlex
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, Protocol

from virtcloud.client.fan_out import DEFAULT_JOBS, GuestTask, ShowFanOut, fan_out
from virtcloud.client.ssh_arguments import ClusterLogins, SshArguments, SshOptions
from virtcloud.client.ssh_failures import SSH_FAILED, explain_failure, is_temporary
from virtcloud.model.errors import BadInput, GuestsFailed, VirtcloudError

CONNECT_S = 60
"""Seconds for which ssh waits for the answer of a guest's sshd."""
BATCH_OPTIONS = ("BatchMode=yes", f"ConnectTimeout={CONNECT_S}")
"""Options for ssh without a terminal. Options of the user override these options."""
CHUNK = 1 << 16
MAX_COMMAND_BYTES = 100_000
"""Maximum length of a command. Linux limits each argument of a program to 128 KiB (execve(2))."""
RETRY_S = 2.0
"""Pause in seconds before the next login to a guest that does not accept logins yet."""
SCRIPT = (
    'exec 4>&2 2>/dev/null; { sh -c "echo \\$PPID"; head -c "$1"; exec >/dev/null 4>&-; trap "" TERM; read -r _; '
    "kill -s TERM -- -$$ || kill -TERM -$$; sleep 5; kill -s KILL -- -$$ || kill -KILL -$$; } | "
    '{ read -r w; for f in 1 4; do printf "%s\\n" "$3" >&$f; done; "${SHELL:-sh}" -c "$2" 2>&4 4>&-; c=$?; '
    'kill -KILL "$w"; exit $c; }'
)
"""This script prints the mark `$3` to stdout and stderr, and runs the command `$2`. The first `$1` bytes of stdin
are the command's input.

The part before the pipe writes its process ID and the input to the pipe. At the end of stdin, this part ends the
process group. The part after the pipe runs the command, and ends the first part. The script works in dash, bash and
BusyBox's sh.
"""


@dataclass(frozen=True, slots=True)
class GuestResult:
    """The result of a command on one guest."""

    guest: str
    returncode: int | None
    """The command's exit code; None if the command did not start, or did not end in time."""
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    seconds: float
    error: str | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the command succeeded."""
        return self.returncode == 0

    @property
    def stdout(self) -> str:
        """The standard output as text. Bytes that are not UTF-8 become U+FFFD; see ``stdout_bytes``."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """The standard error as text; see ``stdout``."""
        return self.stderr_bytes.decode(errors="replace")

    @property
    def failure(self) -> str:
        """The reason of the failure, or the exit code."""
        lost = "; ssh also exits with 255 if the connection is lost" if self.returncode == SSH_FAILED else ""
        return self.error or f"exit code {self.returncode}{lost}"


class OutputSink(Protocol):
    """Receives the output of a guest's command. Different threads write stdout and stderr."""

    def write_stdout(self, data: bytes) -> None:
        """Write bytes of the standard output."""

    def write_stderr(self, data: bytes) -> None:
        """Write bytes of the standard error."""

    def close(self) -> None:
        """Close both streams."""


class CollectedOutput:
    """An `OutputSink` that stores the output in memory."""

    def __init__(self) -> None:
        """Create an empty output."""
        self.stdout = bytearray()
        self.stderr = bytearray()

    def write_stdout(self, data: bytes) -> None:
        """Append to the standard output."""
        self.stdout += data

    def write_stderr(self, data: bytes) -> None:
        """Append to the standard error."""
        self.stderr += data

    def close(self) -> None:
        """Do nothing: the output stays in memory."""


@dataclass(frozen=True, slots=True)
class GuestCommand:
    """A command line for the guests' shells, with the bytes of its standard input."""

    line: str
    stdin: bytes = b""

    def __post_init__(self) -> None:
        """Check the command line. Raise BadInput if the line is empty or too long, or contains NUL."""
        size = len(self.line.encode(errors="surrogateescape"))
        if not self.line.strip() or "\0" in self.line:
            raise BadInput("expected a command for the guests' shell, got an empty line or a NUL character")
        if size > MAX_COMMAND_BYTES:
            raise BadInput(
                f"the command has {size} bytes, and the limit is {MAX_COMMAND_BYTES}; copy a script to the guests "
                "first: virtcloud cluster cp"
            )


def make_command(command: str | Sequence[str], stdin: str | bytes | None = None) -> GuestCommand:
    """Return the command. A string is a line for the guest's shell. A sequence contains a program and its arguments."""
    line = command if isinstance(command, str) else shlex.join(command)
    return GuestCommand(line, stdin.encode() if isinstance(stdin, str) else stdin or b"")


def run_collected(  # noqa: PLR0913, PLR0917 - the options of Cluster.run
    logins: ClusterLogins,
    options: SshOptions,
    guests: Sequence[str],
    command: GuestCommand,
    jobs: int = DEFAULT_JOBS,
    timeout: float | None = None,
    progress: ShowFanOut | None = None,
    wait: float = 0,
) -> dict[str, GuestResult]:
    """Run a command on ``guests`` (empty: all guests). Return the results with the output.

    ``timeout`` and ``wait`` are times in seconds, as in :func:`run_commands`.
    """
    return run_commands(find_batch_logins(logins, options, guests), command, None, jobs, timeout, progress, wait)


def find_batch_logins(logins: ClusterLogins, options: SshOptions, guests: Sequence[str]) -> Mapping[str, SshArguments]:
    """Return the arguments of ssh for each guest. ssh asks no questions, because many processes share a terminal."""
    batch = replace(options, options=(*options.options, *BATCH_OPTIONS))
    return logins.find(batch, guests)


def run_commands(  # noqa: PLR0913, PLR0917 - as above
    logins: Mapping[str, SshArguments],
    command: GuestCommand,
    open_sink: Callable[[str], OutputSink] | None = None,
    jobs: int = DEFAULT_JOBS,
    timeout: float | None = None,
    progress: ShowFanOut | None = None,
    wait: float = 0,
) -> dict[str, GuestResult]:
    """Run a command on each guest of ``logins``. Return the results by guest.

    ``logins`` maps each guest to the arguments of ssh. ``open_sink`` returns the object that receives a guest's output;
    without ``open_sink``, the results contain the output. ``timeout`` limits the time for each guest, in seconds. If a
    guest does not accept the login yet, the login is repeated for up to ``wait`` seconds.
    """

    def work(name: str, task: GuestTask) -> GuestResult:
        collected = CollectedOutput()
        running = RunningCommand(collected if open_sink is None else open_sink(name))
        returncode, error = running.log_in(logins, name, command, task)
        while returncode is None and is_temporary(error) and task.seconds < wait and task.pause(RETRY_S):
            returncode, error = running.log_in(logins, name, command, task)
        running.close()
        if task.is_late:
            returncode, error = None, running.describe_lateness(timeout)
        output = bytes(collected.stdout), bytes(collected.stderr)
        return GuestResult(name, returncode, *output, task.seconds, error)

    return fan_out(logins, work, jobs, timeout, progress)


class MarkedStream:
    """Copies the part of a stream after the mark. Before the mark, the stream has messages of ssh and of the login."""

    def __init__(self, mark: bytes, write: Callable[[bytes], None]) -> None:
        """Create a copier that calls ``write`` with the bytes after the mark."""
        self._mark = mark
        self._write = write
        self.before = b""
        self.has_started = False

    def copy(self, stream: IO[bytes]) -> None:
        """Copy the stream until its end."""
        while data := stream.read1(CHUNK):  # type: ignore[attr-defined] # Popen's streams are buffered
            if self.has_started:
                self._write(data)
            else:
                self._search(data)

    def _search(self, data: bytes) -> None:
        before, found, rest = (self.before + data).partition(self._mark)
        self.before = before[-CHUNK:]
        self.has_started = bool(found)
        if rest:
            self._write(rest)


class RunningCommand:
    """The command on one guest. Writes the command's output to a sink."""

    def __init__(self, sink: OutputSink) -> None:
        """Prepare a command with a random mark."""
        mark = secrets.token_hex(16)
        self._sink = sink
        self._word = mark
        self._stdout = MarkedStream(f"{mark}\n".encode(), sink.write_stdout)
        self._stderr = MarkedStream(f"{mark}\n".encode(), sink.write_stderr)

    def log_in(
        self, logins: Mapping[str, SshArguments], name: str, command: GuestCommand, task: GuestTask
    ) -> tuple[int | None, str | None]:
        """Run the command on the guest ``name``; see :meth:`run`. If SBF refuses the login, return the reason."""
        try:
            login = logins[name]
        except VirtcloudError as error:
            return None, str(error)
        return self.run(login, command, task)

    def run(self, login: SshArguments, command: GuestCommand, task: GuestTask) -> tuple[int | None, str | None]:
        """Run the command. Return (exit code, None), or (None, the reason why the command did not start)."""
        words = ("sh", "-c", SCRIPT, "virtcloud", str(len(command.stdin)), command.line, self._word)
        arguments = [*login[:-1], "-T", login[-1], f"exec {shlex.join(words)}"]
        with task.run(arguments, subprocess.PIPE, subprocess.PIPE) as process:
            threads = [
                start_thread(self._stderr.copy, process.stderr),
                start_thread(_feed, process.stdin, command.stdin),
            ]
            if process.stdout:
                self._stdout.copy(process.stdout)
            for thread in threads:
                thread.join()
        if self._stdout.has_started:
            return process.returncode, None
        messages, self._stderr.before = self._stderr.before, b""
        return None, explain_failure(messages.decode(errors="replace"), process.returncode)

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()

    def describe_lateness(self, timeout: float | None) -> str:
        """Return the message for a command that was ended after ``timeout`` seconds."""
        if self._stdout.has_started:
            return f"the command did not end within {timeout:g} s, and was ended"
        return f"no login within {timeout:g} s; read the guest's console: virtcloud guest log"


def start_thread(call: Callable[..., None], *arguments: object) -> threading.Thread:
    """Start a daemon thread, which does not delay the end of the program."""
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    return thread


def _feed(stream: IO[bytes], data: bytes) -> None:
    """Write the command's input to the stream. Keep the stream open, because its end would end the command."""
    try:
        stream.write(data)
        stream.flush()
    except BrokenPipeError:  # the command has ended without reading its input
        with suppress(BrokenPipeError):
            stream.close()


def require_success(results: Mapping[str, GuestResult]) -> None:
    """Raise GuestsFailed if a command failed on any guest."""
    if failures := {name: result.failure for name, result in results.items() if not result.is_ok}:
        raise GuestsFailed("the command", failures, len(results))
