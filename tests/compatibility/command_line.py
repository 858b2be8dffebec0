import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

PROGRAM = Path(__file__).with_name("command_program.py")
COMMAND_S = 60.0


class CommandLine:
    """A process that has imported the command line of one version, and forks for each command."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._folder = tempfile.TemporaryDirectory(prefix="commands")
        self._output, self._errors = (Path(self._folder.name, name) for name in ("stdout", "stderr"))
        self._imports = Path(self._folder.name, "imports")
        with self._imports.open("w") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, PROGRAM],
                env=dict(environment),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def run(self, words: tuple[str, ...], **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command. Raise AssertionError if the command does not end, or if the imports wrote to stderr."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._output.write_text("")
        self._errors.write_text("")
        request = {"words": words, "stdout": str(self._output), "stderr": str(self._errors)}
        self._process.stdin.write(json.dumps({**request, "environment": {**self._environment, **environment}}) + "\n")
        self._process.stdin.flush()
        assert select.select([self._process.stdout], [], [], COMMAND_S)[0], f"{words} did not end: {self._read()}"
        code = self._process.stdout.readline()
        assert (bool(code), self._imports.read_text()) == (True, ""), self._imports.read_text()
        return subprocess.CompletedProcess(words, int(code), *self._read())

    def _read(self) -> tuple[str, str]:
        return self._output.read_text(), self._errors.read_text()

    def end(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._folder.cleanup()
