"""``qmgr``, the way to what an OpenPBS server has; its words become errors of ours."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from virtcloud.model.errors import Forbidden, NotFound, Refused, Unreachable
from virtcloud.pbs.difference import PROGRAM, SETTINGS, Change, Put, Say
from virtcloud.pbs.found import Found, objects, resources
from virtcloud.pbs.place import Place
from virtcloud.pbs.wanted import EVENTS, Hook

PATIENCE_S = 60.0


class Server(Protocol):
    """What an installer needs of a PBS server."""

    def ask(self, line: str) -> str:
        """Give what ``qmgr`` prints for a line."""

    def put(self, hook: str, kind: str, text: str) -> None:
        """Import a hook's program or settings."""


@dataclass(frozen=True, slots=True)
class Qmgr:
    """The server of this host. Raises :class:`Unreachable`, :class:`Forbidden`, :class:`Refused`."""

    place: Place

    def ask(self, line: str) -> str:
        """Give what ``qmgr`` prints for a line."""
        done = self._run(["-c", line])
        said = f"{done.stdout}\n{done.stderr}".strip()
        if "nauthorized" in said:
            raise Forbidden(
                f"qmgr -c '{line}': expected to be root on the PBS server's host, or its manager; it said: {said}"
            )
        if "Failed to load pbs.conf" in said:
            raise NotFound(
                "PBS server: expected /etc/pbs.conf, or what PBS_CONF_FILE names, to say where it is, got: "
                f"{_line(said)}; run this on the PBS server's host"
            )
        if "cannot connect to server" in said:
            raise Unreachable(
                f"PBS server: expected it to answer qmgr, got: {_line(said)}; is pbs_server running here?"
            )
        if done.returncode:
            raise Refused(f"qmgr -c '{line}': the PBS server said: {_line(said)}")
        return done.stdout

    def put(self, hook: str, kind: str, text: str) -> None:
        """Import a hook's program or settings; settings are JSON (PBS goes by the file's name)."""
        with _file(text, ".py" if kind == PROGRAM else ".json") as path:
            self.ask(f"import hook {hook} {kind} default {path}")

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [str(self.place.program("qmgr")), *words]
        try:
            return subprocess.run(  # noqa: S603 - PBS's own program
                command, capture_output=True, text=True, errors="replace", check=False, timeout=PATIENCE_S
            )
        except subprocess.TimeoutExpired as error:
            raise Unreachable(f"PBS server: expected an answer to qmgr within {PATIENCE_S:.0f} s, got none") from error


def _line(said: str) -> str:
    """Give what matters of a complaint of two lines."""
    return "; ".join(line.strip() for line in said.splitlines() if line.strip())


@contextlib.contextmanager
def _file(text: str, suffix: str) -> Iterator[Path]:
    """Put text into a file that only we can read."""
    descriptor, name = tempfile.mkstemp(suffix=suffix, prefix="virtcloud-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield Path(name)
    finally:
        Path(name).unlink()


def read(server: Server) -> Found:
    """Read what the server has."""
    hooks = {name: one for name, one in objects(server.ask("list hook")).items() if name in EVENTS}
    return Found(
        resources(server.ask("list resource")),
        {
            name: Hook(name, one, _export(server, name, PROGRAM), _export(server, name, SETTINGS))
            for name, one in hooks.items()
        },
    )


def _export(server: Server, hook: str, kind: str) -> str:
    return server.ask(f"export hook {hook} {kind} default")


def apply(server: Server, change: Change) -> None:
    """Do one change."""
    for request in change.requests:
        match request:
            case Say(line):
                server.ask(line)
            case Put(hook, kind, text):
                server.put(hook, kind, text)
