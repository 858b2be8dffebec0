"""A host of the fake batch system: where a hook and a job's script run."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from virtcloud.testing.fakepbs.event import ALARM_S, Event
from virtcloud.testing.fakepbs.outcome import Outcome
from virtcloud.testing.fakepbs.runner import run_hook


@dataclass(frozen=True, slots=True)
class Hook:
    """A hook as its administrator made it: text, configuration (JSON text), alarm in seconds, interpreter."""

    text: str
    config: str | None = None
    alarm: float = ALARM_S
    name: str = "hook"
    python: str = sys.executable


@dataclass(slots=True)
class Host:
    """A host, by PBS's name of it; ``within`` goes before every command there (``("ip", "netns", "exec", "n1")``)."""

    name: str
    within: tuple[str, ...] = ()
    alive: bool = True
    _scripts: set["subprocess.Popen[bytes]"] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hook(self, hook: Hook, event: Event) -> Outcome:
        """Run a hook here."""
        return run_hook(hook.text, event, hook.python, within=self.within)

    def start(self, script: str, env: Mapping[str, str], stdout: Path, stderr: Path) -> "subprocess.Popen[bytes]":
        """Start a job's script in a session of its own; what it says is added to the two files."""
        with stdout.open("ab") as out, stderr.open("ab") as err:
            started = subprocess.Popen(  # noqa: S603 - a test's own script
                [*self.within, "/bin/sh", "-c", script], env=env, stdout=out, stderr=err, start_new_session=True
            )
        with self._lock:
            self._scripts.add(started)
        return started

    def end(self, script: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
        """Send a signal to a script and all it started; nothing happens to one that ended."""
        if script.poll() is None:
            with suppress(ProcessLookupError):  # it ends at this moment
                os.killpg(script.pid, number)

    def die(self) -> None:
        """Stop, with all that runs here."""
        self.alive = False
        with self._lock:
            for script in self._scripts:
                self.end(script, signal.SIGKILL)
