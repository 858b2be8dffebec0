"""Running one hook on one event, in an interpreter as bare as the one in PBS."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from virtcloud.testing.fakepbs.event import Event
from virtcloud.testing.fakepbs.outcome import Failure, Outcome

BARE = ("-I", "-S", "-OO")
"""No site-packages, no PYTHONPATH, no asserts, no docstrings: the interpreter PBS embeds is started so."""
START_S = 15.0
"""What the interpreter has to start, and to end after a hook's alarm."""
RUN = Path(__file__).parent / "interpreter" / "run.py"


class HookDidNotRunError(Exception):
    """The interpreter could not be started, or ended before the hook began; the message has what it said."""


def run_hook(
    hook_text: str,
    event: Event,
    python: str = sys.executable,
    *,
    within: Sequence[str] = (),
    folder: Path | None = None,
) -> Outcome:
    """Run a hook on an event and say what came of it.

    ``python`` is the interpreter, by default the one that runs this; ``within`` goes before it on the command line
    (``("ip", "netns", "exec", "n1")``).
    The hook is killed when it outlives its alarm. Raises HookDidNotRunError.
    """
    with tempfile.TemporaryDirectory(prefix="fakepbs-", dir=folder) as name:
        work = Path(name)
        _lay_out(work, hook_text, event)
        command = [*within, python, *BARE, str(RUN), name]
        limit = event.alarm + START_S
        return _outcome(work, command, limit)


def _lay_out(work: Path, hook_text: str, event: Event) -> None:
    config = None
    if event.config is not None:
        config = work / "config.json"
        config.write_text(event.config, encoding="utf-8")
    (work / "hook.py").write_text(hook_text, encoding="utf-8")
    (work / "event.json").write_text(json.dumps(event.told(config)), encoding="utf-8")


def _outcome(work: Path, command: list[str], limit: float) -> Outcome:
    try:
        # The caller's own hook and interpreter.
        ended = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return Outcome(accepted=False, failure=Failure.KILLED, seconds=limit)
    except OSError as error:
        raise HookDidNotRunError(f"{command}: {error}") from error
    written = work / "outcome.json"
    printed = ended.stdout + ended.stderr
    if written.exists():
        return _read(json.loads(written.read_text(encoding="utf-8")), printed)
    if (work / "began").exists():
        return Outcome(accepted=False, failure=Failure.KILLED, printed=printed)
    raise HookDidNotRunError(f"{command}: exit code {ended.returncode}: {printed}")


def _read(found: dict[str, Any], printed: str) -> Outcome:
    return Outcome(
        **{
            **found,
            "failure": found["failure"] and Failure(found["failure"]),
            "argv": found["argv"] and tuple(found["argv"]),
            "log": tuple((level, text) for level, text in found["log"]),
            "job_log": tuple((job, text) for job, text in found["job_log"]),
            "printed": printed,
        }
    )
