"""The processes of dnsmasq: their start in a network namespace of their own, and their identification."""

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from virtcloud.agent.host_services import dnsmasq_program
from virtcloud.agent.host_services.dnsmasq_config import (
    FILE_OPTIONS,
)
from virtcloud.model.errors import Refused

START_S = 20.0
"""Time limit in seconds for the start of a server."""


class ServerLaunch:
    """The start of a server by `dnsmasq_program`. The program's argument is the one by which the server is found."""

    def __init__(self, argument: str) -> None:
        """Start the program. ``argument`` is the first argument of dnsmasq. Raise Refused if it cannot start."""
        argv = [sys.executable, "-I", "-S", dnsmasq_program.__file__, argument]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a file of this package
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", start_new_session=True
            )
        except OSError as error:
            raise Refused(f"cannot start dnsmasq: {error.strerror}") from error

    def wait_for_namespace(self) -> int:
        """Wait until the program has created its namespace. Return its process ID. Raise Refused if it fails."""
        line = self._read(until_end=False)
        status, _, pid = line.partition(" ")
        if status != "apart" or not pid.isdigit():
            raise Refused(f"cannot start dnsmasq: expected 'apart' and a process ID, got {line!r}")
        return int(pid)

    def configure(self, spec: dict[str, Any]) -> None:
        """Send the specification. Wait until dnsmasq is ready. Raise Refused with the error if it fails."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # the program ended; its error follows
                self._process.stdin.write(json.dumps(spec).encode() + b"\n")
                self._process.stdin.flush()
        if error := self._read(until_end=True):
            raise Refused(f"cannot start dnsmasq: {error}")

    def close(self) -> None:
        """Close the pipes. A program without specification ends then."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()  # the program has forked, and its first process ends immediately

    def _read(self, *, until_end: bool) -> str:
        """Return the output up to the next end of line, or up to the end of the output."""
        text, deadline = b"", time.monotonic() + START_S
        if self._process.stdout is None:
            return ""
        descriptor, ready = self._process.stdout.fileno(), select.poll()
        ready.register(descriptor, select.POLLIN)
        while until_end or not text.endswith(b"\n"):
            if not ready.poll(max(deadline - time.monotonic(), 0) * 1000):
                return f"{text.decode(errors='replace')} (no answer within {START_S:.0f} s)"
            if not (data := os.read(descriptor, 4096)):
                break
            text += data
        return text.decode(errors="replace").strip()


def file_arguments(folder: Path) -> list[str]:
    """Return the arguments that name the files of a server. The first one identifies the server's processes."""
    return [f"{option}={folder / name}" for name, option in FILE_OPTIONS.items()]
