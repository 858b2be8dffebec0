"""Runs one hook on one event in an interpreter like PBS's. Defines the hosts on which hooks and scripts run."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from virtcloud.testing.fakepbs.hook_event import ALARM_S, HookEvent, HookFailure, HookOutcome

BARE_OPTIONS = ("-I", "-S", "-OO")
"""Options of PBS's embedded interpreter: no site-packages, no PYTHONPATH, no asserts, no docstrings."""
INTERPRETER_START_S = 15.0
"""The interpreter is killed after the time limit of the hook (its alarm) plus this number of seconds."""
INTERPRETER_PROGRAM = Path(__file__).parent / "interpreter" / "run.py"


RunProgram = Callable[[Sequence[str], float], "subprocess.CompletedProcess[str]"]
"""Runs a command with a time limit in seconds. Raises subprocess.TimeoutExpired if the command runs longer, and OSError
if the command cannot be started.
"""


class HookDidNotRunError(Exception):
    """The interpreter did not start, or ended before it ran the hook.

    The message contains the reason why the interpreter did not start, or the interpreter's output.
    """


def run_here(command: Sequence[str], timeout_s: float) -> "subprocess.CompletedProcess[str]":
    """Run a command on this computer."""
    # the hook and the interpreter come from the caller
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)  # noqa: S603


def run_hook(  # noqa: PLR0913 - options of the interpreter
    hook_text: str,
    event: HookEvent,
    python: str = sys.executable,
    *,
    within: Sequence[str] = (),
    folder: Path | None = None,
    run_program: RunProgram = run_here,
) -> HookOutcome:
    """Run a hook on an event and return the outcome.

    - ``python``: the interpreter (default: the interpreter of this process).
    - ``within``: a command prefix, such as ``("ip", "netns", "exec", "n1")``.
    - ``folder``: the folder in which the hook's files are created (default: the system's folder for temporary files).
    - ``run_program``: runs the interpreter, perhaps on another computer that has the same ``folder``.

    The alarm interrupts a hook that exceeds its time limit. A hook that ignores the alarm is killed. Raise
    HookDidNotRunError if the interpreter did not run the hook.
    """
    with tempfile.TemporaryDirectory(prefix="fakepbs-", dir=folder) as name:
        work = Path(name)
        _write_input(work, hook_text, event)
        command = [*within, python, *BARE_OPTIONS, str(INTERPRETER_PROGRAM), name]
        limit = event.alarm + INTERPRETER_START_S
        return _run_interpreter(work, command, limit, run_program)


def _write_input(work: Path, hook_text: str, event: HookEvent) -> None:
    config = None
    if event.config is not None:
        config = work / "config.json"
        config.write_text(event.config, encoding="utf-8")
    (work / "hook.py").write_text(hook_text, encoding="utf-8")
    (work / "event.json").write_text(json.dumps(event.as_json(config)), encoding="utf-8")


def _run_interpreter(work: Path, command: list[str], limit: float, run_program: RunProgram) -> HookOutcome:
    try:
        ended = run_program(command, limit)
    except subprocess.TimeoutExpired:
        return HookOutcome(accepted=False, failure=HookFailure.KILLED, seconds=limit)
    except OSError as error:
        raise HookDidNotRunError(f"{command}: {error}") from error
    outcome_file = work / "outcome.json"
    printed = ended.stdout + ended.stderr
    if outcome_file.exists():
        return _parse_outcome(json.loads(outcome_file.read_text(encoding="utf-8")), printed)
    if (work / "began").exists():
        return HookOutcome(accepted=False, failure=HookFailure.KILLED, printed=printed)
    raise HookDidNotRunError(f"{command}: exit code {ended.returncode}: {printed}")


def _parse_outcome(document: dict[str, Any], printed: str) -> HookOutcome:
    return HookOutcome(
        **{
            **document,
            "failure": document["failure"] and HookFailure(document["failure"]),
            "argv": document["argv"] and tuple(document["argv"]),
            "log": tuple((level, text) for level, text in document["log"]),
            "job_log": tuple((job, text) for job, text in document["job_log"]),
            "printed": printed,
        }
    )


@dataclass(frozen=True, slots=True)
class HookDefinition:
    """A hook: text, configuration (JSON text), alarm in seconds, name, and interpreter."""

    text: str
    config: str | None = None
    alarm: float = ALARM_S
    name: str = "hook"
    python: str = sys.executable


@dataclass(slots=True)
class FakeHost:
    """A host with its PBS name. All its commands begin with ``within``, such as ``("ip", "netns", "exec", "n1")``."""

    name: str
    within: tuple[str, ...] = ()
    alive: bool = True
    _scripts: set["subprocess.Popen[bytes]"] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hook(self, hook: HookDefinition, event: HookEvent) -> HookOutcome:
        """Run a hook on this host."""
        return run_hook(hook.text, event, hook.python, within=self.within)

    def start(self, script: str, env: Mapping[str, str], stdout: Path, stderr: Path) -> "subprocess.Popen[bytes]":
        """Start a job's script in a new process session.

        The script's output is appended to ``stdout`` and ``stderr``.
        """
        with stdout.open("ab") as out, stderr.open("ab") as err:
            started = subprocess.Popen(  # noqa: S603 - a script of a test
                [*self.within, "/bin/sh", "-c", script], env=env, stdout=out, stderr=err, start_new_session=True
            )
        with self._lock:
            self._scripts.add(started)
        return started

    def end(self, script: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
        """Send a signal to a script and its child processes. Do nothing if the script has ended."""
        if script.poll() is None:
            with suppress(ProcessLookupError):  # the script has just ended
                os.killpg(script.pid, number)

    def die(self) -> None:
        """Stop the host and kill all its scripts."""
        self.alive = False
        with self._lock:
            for script in self._scripts:
                self.end(script, signal.SIGKILL)
