"""Runs commands of a batch system. Each command has a time limit."""

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from virtcloud.model.errors import SchedulerUnavailable


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command. The output is decoded as UTF-8; invalid bytes are replaced."""

    command: str
    code: int
    out: str
    err: str

    @property
    def failure(self) -> str:
        """The command, its exit code and its error message, on one line."""
        message = "; ".join(line.strip() for line in self.err.splitlines() if line.strip())
        return f"{self.command} ended with exit code {self.code}: {message or 'no error message'}"


PBS_CONF = Path("/etc/pbs.conf")


CommandRunner = Callable[[Sequence[str]], CommandResult]


def build_runner(folder: Path | None, timeout_s: float) -> CommandRunner:
    """Return a function that runs the programs of ``folder``, or the programs on PATH if ``folder`` is None.

    The function raises SchedulerUnavailable if a command cannot be run or exceeds the time limit.
    """

    def run(command: Sequence[str]) -> CommandResult:
        program = command[0] if folder is None else str(folder / command[0])
        shortened = " ".join(command[:4])
        try:
            process = subprocess.run(  # noqa: S603 - constant words and job numbers
                [program, *command[1:]],
                capture_output=True,
                timeout=timeout_s,
                check=False,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired as error:
            raise SchedulerUnavailable(
                f"{shortened} did not end within {timeout_s:g} s; is the server overloaded?"
            ) from error
        except OSError as error:
            text = (
                f"{program} cannot be run: {error.strerror}; "
                "set 'commands' in [scheduler] to the folder that contains qstat"
            )
            raise SchedulerUnavailable(text) from error
        return CommandResult(shortened, process.returncode, _decode(process.stdout), _decode(process.stderr))

    return run


def find_command_folder(configuration: Path = PBS_CONF) -> Path | None:
    """Return the folder of OpenPBS's commands; None if ``configuration`` is unreadable or does not name the folder."""
    try:
        folder = parse_pbs_conf(configuration.read_text(errors="replace")).get("PBS_EXEC")
    except OSError:
        return None
    return Path(folder) / "bin" if folder else None


def parse_pbs_conf(text: str) -> dict[str, str]:
    """Parse a pbs.conf. As in PBS, the last value of a key counts."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.lstrip().startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def _decode(output: bytes) -> str:
    return output.decode(errors="replace")
