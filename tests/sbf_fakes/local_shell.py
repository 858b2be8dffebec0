"""A command line that is a shell on this machine, for programs that are the real ones."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from virtcloud.model.errors import Unreachable


@dataclass
class LocalShell:
    """Runs what it is sent; ``before`` is said before it, to put something else in a program's place."""

    environment: Mapping[str, str]
    cut_off: bool = False
    before: str = ""
    prompt: str = r"^# "

    def ask(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        """Run a line."""
        if self.cut_off:
            raise Unreachable("switch sw1 (192.0.2.1) does not answer: cut off; it is tried again")
        assert max(map(len, command.splitlines())) < 4096, "a terminal in canonical mode takes no longer line"
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
