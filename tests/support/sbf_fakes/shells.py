"""Shells of the test host in place of a device's command line (``CommandLine``), for tests with real programs.

``LocalShell`` runs single commands. ``TerminalShell`` is an interactive terminal with echo and prompts. The terminal
reads at most 4095 characters of a line.
"""

import os
import pty
import re
import select
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from virtcloud.model.errors import Unreachable


@dataclass
class LocalShell:
    """Runs each command in a new shell, after the script ``before``, which may redefine a program."""

    environment: Mapping[str, str]
    cut_off: bool = False
    before: str = ""
    prompt: str = r"^# "

    def exchange(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        if self.cut_off:
            raise Unreachable("switch sw1 (192.0.2.1) does not answer: cut off; SBF tries again")
        assert max(map(len, command.splitlines())) < 4096, "a terminal reads at most 4095 characters in a line"
        done = subprocess.run(
            ["/bin/sh"],
            input=f"{self.before}\n{command}\n",
            env=dict(self.environment),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def close(self) -> None:
        """End the session."""


QUIET_S = 10


@dataclass
class TerminalShell:
    """An interactive shell, as sshd would start it. The shell starts at its first use and ends with :meth:`close`."""

    environment: Mapping[str, str]
    prompt: str = r"^# "
    _terminal: list[int] = field(default_factory=list)

    def exchange(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        """Type a command. Return the output as soon as it contains ``times`` matches of the pattern ``until``."""
        descriptor = self._start()
        os.write(descriptor, f"{command}\n".encode())
        output = ""
        while len(re.findall(until, output, re.MULTILINE)) < times:
            assert select.select([descriptor], [], [], QUIET_S)[0], f"the shell is silent after {output[-200:]!r}"
            output += os.read(descriptor, 65536).decode().replace("\r\n", "\n")
        return output

    def close(self) -> None:
        if self._terminal:
            pid, descriptor = self._terminal
            os.close(descriptor)
            os.waitpid(pid, 0)
            self._terminal.clear()

    def _start(self) -> int:
        if not self._terminal:
            pid, descriptor = pty.fork()
            if pid == 0:
                os.execve("/bin/sh", ["sh", "-i"], {**self.environment, "PS1": "# ", "TERM": "dumb"})  # noqa: S606
            self._terminal += [pid, descriptor]
        return self._terminal[1]
