"""``qmgr``, the way to what an OpenPBS server has; its words become errors of ours.

Where this machine's OpenPBS is: its commands, its spool, its own Python.

Which jobs run with a cluster, by ``qselect``: users' variables can spoil what ``qstat`` says in JSON.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pbs_hooks.openpbs.server_state import (
    HOOK_EVENTS,
    PROGRAM_TYPE,
    SETTINGS_TYPE,
    InstallationChange,
    InstalledHook,
    QmgrImport,
    QmgrLine,
    ServerState,
    parse_qmgr_list,
    parse_resources,
)
from virtcloud.model.errors import Forbidden, NotFound, Refused, SchedulerUnavailable, Unreachable
from virtcloud.scheduler.command import build_runner

PBS_CONF = "/etc/pbs.conf"
DEFAULT_EXEC = "/opt/pbs"


@dataclass(frozen=True, slots=True)
class PbsInstallation:
    """An installed OpenPBS: ``exec`` has its programs, ``home`` what a running one keeps."""

    exec: Path
    home: Path

    def program(self, name: str) -> Path:
        """Give a command's file; raises :class:`NotFound`."""
        for folder in ("bin", "sbin"):
            if (self.exec / folder / name).exists():
                return self.exec / folder / name
        raise NotFound(f"{name}: expected it in {self.exec}/bin or {self.exec}/sbin, got none; is OpenPBS whole there?")


def parse_pbs_conf(text: str) -> dict[str, str]:
    """Read a pbs.conf; what comes later counts, as with PBS."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.lstrip().startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def find_installation(environment: Mapping[str, str] = os.environ) -> PbsInstallation:
    """Find OpenPBS by pbs.conf, by its usual place, or by ``qmgr`` on PATH; raises :class:`NotFound`."""
    file = Path(environment.get("PBS_CONF_FILE", PBS_CONF))
    said = {**parse_pbs_conf(file.read_text() if file.is_file() else ""), **environment}
    on_path = shutil.which("qmgr", path=environment.get("PATH"))
    by_path = [Path(on_path).resolve().parents[1]] if on_path else []
    candidates = [*(Path(said[key]) for key in ("PBS_EXEC",) if key in said), Path(DEFAULT_EXEC), *by_path]
    for one in candidates:
        if (one / "bin/qmgr").exists():
            return PbsInstallation(one, Path(said.get("PBS_HOME", "/var/spool/pbs")))
    looked = ", ".join(dict.fromkeys(f"{one}/bin" for one in candidates))
    raise NotFound(
        f"qmgr: expected OpenPBS's command in {looked} or on PATH, got none; run this on the host of the PBS server, "
        "or say in PBS_EXEC where OpenPBS is"
    )


COMMAND_TIMEOUT_S = 60.0


class QmgrServer(Protocol):
    """What an installer needs of a PBS server."""

    def ask(self, line: str) -> str:
        """Give what ``qmgr`` prints for a line."""

    def put(self, hook: str, kind: str, text: str) -> None:
        """Import a hook's program or settings."""


@dataclass(frozen=True, slots=True)
class Qmgr:
    """The server of this host. Raises :class:`Unreachable`, :class:`Forbidden`, :class:`Refused`."""

    place: PbsInstallation

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
                f"{_join_lines(said)}; run this on the PBS server's host"
            )
        if "cannot connect to server" in said:
            raise Unreachable(
                f"PBS server: expected it to answer qmgr, got: {_join_lines(said)}; is pbs_server running here?"
            )
        if done.returncode:
            raise Refused(f"qmgr -c '{line}': the PBS server said: {_join_lines(said)}")
        return done.stdout

    def put(self, hook: str, kind: str, text: str) -> None:
        """Import a hook's program or settings; settings are JSON (PBS goes by the file's name)."""
        with _write_temporary(text, ".py" if kind == PROGRAM_TYPE else ".json") as path:
            self.ask(f"import hook {hook} {kind} default {path}")

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [str(self.place.program("qmgr")), *words]
        try:
            return subprocess.run(  # noqa: S603 - PBS's own program
                command, capture_output=True, text=True, errors="replace", check=False, timeout=COMMAND_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            raise Unreachable(
                f"PBS server: expected an answer to qmgr within {COMMAND_TIMEOUT_S:.0f} s, got none"
            ) from error


def _join_lines(said: str) -> str:
    """Give what matters of a complaint of two lines."""
    return "; ".join(line.strip() for line in said.splitlines() if line.strip())


@contextlib.contextmanager
def _write_temporary(text: str, suffix: str) -> Iterator[Path]:
    """Put text into a file that only we can read."""
    descriptor, name = tempfile.mkstemp(suffix=suffix, prefix="virtcloud-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield Path(name)
    finally:
        Path(name).unlink()


def read_server_state(server: QmgrServer) -> ServerState:
    """Read what the server has."""
    hooks = {name: one for name, one in parse_qmgr_list(server.ask("list hook")).items() if name in HOOK_EVENTS}
    return ServerState(
        parse_resources(server.ask("list resource")),
        {
            name: InstalledHook(name, one, _export(server, name, PROGRAM_TYPE), _export(server, name, SETTINGS_TYPE))
            for name, one in hooks.items()
        },
    )


def _export(server: QmgrServer, hook: str, kind: str) -> str:
    return server.ask(f"export hook {hook} {kind} default")


def apply_change(server: QmgrServer, change: InstallationChange) -> None:
    """Do one change."""
    for request in change.requests:
        match request:
            case QmgrLine(line):
                server.ask(line)
            case QmgrImport(hook, kind, text):
                server.put(hook, kind, text)


SELECT_WITH_CLUSTER = ("-s", "RESU", "-l", "vcluster.ge.a")
"""Running, ending, suspended; requests begin with a letter, and a resource that is not set is below all."""


def list_jobs_with_cluster(place: PbsInstallation) -> list[str]:
    """Give their ids. Raises :class:`NotFound` and :class:`SchedulerSilent`: no answer is not "none"."""
    ended = build_runner(None, COMMAND_TIMEOUT_S)((str(place.program("qselect")), *SELECT_WITH_CLUSTER))
    if ended.code or ended.err.strip():
        raise SchedulerUnavailable(
            f"{ended.complaint}: it cannot be told which jobs run with a cluster; see to the server"
        )
    return ended.out.split()
