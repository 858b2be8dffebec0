"""A relay's process, seen from the agent."""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from virtcloud.agent import jobport_relay
from virtcloud.model.errors import Refused

START_S = 20.0
ASK_S = 2.0


class Spawned:
    """A relay while it is started. It is nobody's child, and outlives the agent."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Talk through the pipes of ``process``, which ends as soon as it has a child."""
        self._pipes = process
        self.pid = 0

    def meet(self) -> None:
        """Wait until it has a namespace and a process of its own; raises Refused."""
        word, _, pid = self._said().partition(" ")
        if word != "apart" or not pid.isdigit():
            raise Refused(f"the relay of a job was to say 'apart', and said {word + pid!r}; the agent's log has more")
        self.pid = int(pid)

    def be(self, wanted: Mapping[str, Any]) -> None:
        """Tell it what to be, and wait until it is; raises Refused with what it said instead."""
        if self._pipes.stdin is not None:
            self._pipes.stdin.write(json.dumps(wanted) + "\n")
            self._pipes.stdin.flush()
        said = self._said()
        if said != "ready":
            raise Refused(f"the relay of a job cannot start: {said or 'it ended'}")

    def kill(self) -> None:
        """End it, if it is there."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _said(self) -> str:
        stdout = self._pipes.stdout
        if stdout is None:
            return ""
        ready = select.poll()
        ready.register(stdout, select.POLLIN)
        return stdout.readline().strip() if ready.poll(START_S * 1000) else f"nothing in {START_S:.0f} s"


@contextmanager
def spawned() -> Iterator[Spawned]:
    """Start a relay; one that is not what it was to be in the end is killed, and its namespace goes with it."""
    argv = [sys.executable, "-I", "-S", jobport_relay.__file__]
    try:
        process = subprocess.Popen(  # noqa: S603 - our own file
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", start_new_session=True
        )
    except OSError as error:
        raise Refused(f"cannot start the relay of a job: {error.strerror}") from error
    made = Spawned(process)
    with process:
        try:
            yield made
        except BaseException:
            made.kill()
            raise


def tell(path: Path, line: str) -> str | None:
    """Ask the relay that listens at ``path``; None when nobody does."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(ASK_S)
        try:
            link.connect(str(path))
            link.sendall(f"{line}\n".encode())
            return link.recv(4096).decode(errors="replace").strip()
        except OSError:
            return None


def pid_behind(path: Path) -> int | None:
    """Give the process that listens at ``path``; None when nobody does."""
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(str(path))
            found: int = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        except OSError:
            return None
    return found
