"""Running a scheduler's commands: with a time limit, and no error that is not ours."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from virtcloud.model.errors import SchedulerSilent
from virtcloud.scheduler.ended import Ended

CONFIGURATION = Path("/etc/pbs.conf")


Run = Callable[[Sequence[str]], Ended]


def runner(folder: Path | None, timeout_s: float) -> Run:
    """Give what runs commands of ``folder``, each for ``timeout_s`` at most; it raises SchedulerSilent."""

    def run(command: Sequence[str]) -> Ended:
        program = command[0] if folder is None else str(folder / command[0])
        shown = " ".join(command[:4])
        try:
            ended = subprocess.run(  # noqa: S603 - fixed words, and numbers of jobs
                [program, *command[1:]],
                capture_output=True,
                timeout=timeout_s,
                check=False,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired as error:
            raise SchedulerSilent(f"{shown} did not end within {timeout_s:g} s; is the server overloaded?") from error
        except OSError as error:
            text = f"{program} cannot be run: {error.strerror}; set 'commands' in [scheduler] to the folder of qstat"
            raise SchedulerSilent(text) from error
        return Ended(shown, ended.returncode, _text(ended.stdout), _text(ended.stderr))

    return run


def folder_of_commands(configuration: Path = CONFIGURATION) -> Path | None:
    """Find the commands where an OpenPBS says that it is installed; none: they are on the PATH."""
    try:
        lines = configuration.read_text(errors="replace").splitlines()
    except OSError:
        return None
    found = [line.partition("=")[2].strip() for line in lines if line.startswith("PBS_EXEC=")]
    return Path(found[-1]) / "bin" if found and found[-1] else None


def _text(written: bytes) -> str:
    return written.decode(errors="replace")
