"""Client of the OpenPBS server on this host: finds the installation, and reads and changes hooks with ``qmgr``.

``qselect`` lists the jobs with a cluster: environment variables of jobs can make the JSON of ``qstat`` invalid.
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
    PbsHook,
    QmgrImport,
    QmgrLine,
    ServerState,
    parse_qmgr_list,
    parse_resources,
)
from virtcloud.model.errors import Forbidden, NotFound, Refused, SchedulerUnavailable, Unreachable
from virtcloud.scheduler.command import build_runner, parse_pbs_conf

PBS_CONF = "/etc/pbs.conf"
DEFAULT_EXEC = "/opt/pbs"


@dataclass(frozen=True, slots=True)
class PbsInstallation:
    """An OpenPBS installation: ``exec`` is the folder of the programs, ``home`` the folder of the server's state."""

    exec: Path
    home: Path

    def program(self, name: str) -> Path:
        """Return the path of a command. Raise NotFound for a missing command."""
        for folder in ("bin", "sbin"):
            if (self.exec / folder / name).exists():
                return self.exec / folder / name
        raise NotFound(
            f"{name}: expected it in {self.exec}/bin or {self.exec}/sbin, got none; is OpenPBS complete there?"
        )


def find_installation(environment: Mapping[str, str] = os.environ) -> PbsInstallation:
    """Find OpenPBS through PBS_EXEC, pbs.conf, the default folder, or ``qmgr`` on PATH. Raise NotFound on failure."""
    file = Path(environment.get("PBS_CONF_FILE", PBS_CONF))
    values = {**parse_pbs_conf(file.read_text() if file.is_file() else ""), **environment}
    on_path = shutil.which("qmgr", path=environment.get("PATH"))
    by_path = [Path(on_path).resolve().parents[1]] if on_path else []
    candidates = [*(Path(values[key]) for key in ("PBS_EXEC",) if key in values), Path(DEFAULT_EXEC), *by_path]
    for folder in candidates:
        if (folder / "bin/qmgr").exists():
            return PbsInstallation(folder, Path(values.get("PBS_HOME", "/var/spool/pbs")))
    searched = ", ".join(dict.fromkeys(f"{folder}/bin" for folder in candidates))
    raise NotFound(
        f"qmgr: expected OpenPBS's command in {searched} or on PATH, got none; run this on the host of the PBS server, "
        "or set PBS_EXEC to the folder of OpenPBS"
    )


COMMAND_TIMEOUT_S = 60.0


class QmgrServer(Protocol):
    """The operations of a PBS server that an installer needs."""

    def run_line(self, line: str) -> str:
        """Execute a line with ``qmgr`` and return the output."""

    def import_text(self, hook: str, kind: str, text: str) -> None:
        """Import the program or the settings of a hook."""


@dataclass(frozen=True, slots=True)
class Qmgr:
    """Client of the server on this host.

    The methods raise Unreachable, Forbidden, NotFound (``qmgr`` or pbs.conf is missing) or Refused.
    """

    installation: PbsInstallation

    def run_line(self, line: str) -> str:
        """Execute a line with ``qmgr`` and return the output."""
        done = self._run(["-c", line])
        output = f"{done.stdout}\n{done.stderr}".strip()
        if "nauthorized" in output:
            raise Forbidden(
                f"qmgr -c '{line}': expected the rights of root on the PBS server's host, or of a PBS manager, "
                f"got: {output}; run this as root"
            )
        if "Failed to load pbs.conf" in output:
            raise NotFound(
                "PBS server: expected its address in /etc/pbs.conf, or in the file that PBS_CONF_FILE names, got: "
                f"{_join_lines(output)}; run this on the PBS server's host"
            )
        if "cannot connect to server" in output:
            raise Unreachable(
                f"PBS server: expected an answer to qmgr, got: {_join_lines(output)}; is pbs_server running here?"
            )
        if done.returncode:
            raise Refused(f"qmgr -c '{line}': the PBS server answered: {_join_lines(output)}")
        return done.stdout

    def import_text(self, hook: str, kind: str, text: str) -> None:
        """Import the program or the settings of a hook.

        PBS derives the format of settings from the name of the settings file, so the file's name ends in ``.json``.
        """
        with _write_temporary(text, ".py" if kind == PROGRAM_TYPE else ".json") as path:
            self.run_line(f"import hook {hook} {kind} default {path}")

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [str(self.installation.program("qmgr")), *words]
        try:
            return subprocess.run(  # noqa: S603 - the command is a program of PBS
                command,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
                timeout=COMMAND_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise Unreachable(
                f"PBS server: expected an answer to qmgr within {COMMAND_TIMEOUT_S:.0f} s, got none; is pbs_server "
                "overloaded?"
            ) from error


def _join_lines(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


@contextlib.contextmanager
def _write_temporary(text: str, suffix: str) -> Iterator[Path]:
    """Yield the path of a temporary file that contains ``text``. Delete the file at the end of the block.

    Only the user who runs this program can read the file.
    """
    descriptor, name = tempfile.mkstemp(suffix=suffix, prefix="virtcloud-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        yield Path(name)
    finally:
        Path(name).unlink()


def read_server_state(server: QmgrServer) -> ServerState:
    """Read virtcloud's resources and hooks from the server."""
    listed = parse_qmgr_list(server.run_line("list hook"))
    hooks = {name: attributes for name, attributes in listed.items() if name in HOOK_EVENTS}
    return ServerState(
        parse_resources(server.run_line("list resource")),
        {
            name: PbsHook(name, attributes, _export(server, name, PROGRAM_TYPE), _export(server, name, SETTINGS_TYPE))
            for name, attributes in hooks.items()
        },
    )


def _export(server: QmgrServer, hook: str, kind: str) -> str:
    return server.run_line(f"export hook {hook} {kind} default")


def apply_change(server: QmgrServer, change: InstallationChange) -> None:
    """Apply one change."""
    for request in change.requests:
        match request:
            case QmgrLine(line):
                server.run_line(line)
            case QmgrImport(hook, kind, text):
                server.import_text(hook, kind, text)


SELECT_WITH_CLUSTER = ("-s", "RESU", "-l", "vcluster.ge.a")
"""Options of ``qselect`` that select running, exiting and suspended jobs with a cluster.

The value of the resource ``vcluster`` begins with a letter. An unset resource sorts before all letters.
"""


def list_jobs_with_cluster(installation: PbsInstallation) -> list[str]:
    """Return the ids of running, exiting and suspended jobs with a cluster.

    Raise NotFound if ``qselect`` is missing, and SchedulerUnavailable if ``qselect`` fails.
    """
    ended = build_runner(None, COMMAND_TIMEOUT_S)((str(installation.program("qselect")), *SELECT_WITH_CLUSTER))
    if ended.code or ended.err.strip():
        raise SchedulerUnavailable(f"{ended.failure}: the jobs with a cluster are unknown; check the server")
    return ended.out.split()
