"""The folder of a lab on the machine: its files, the check whether the lab is alive, and the removal of remains."""

import contextlib
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtcloud.lab.addressing import SBF_SOCKET
from virtcloud.lab.errors import LabImpossible
from virtcloud.lab.fabric.nodes import lab_cgroup
from virtcloud.lab.lab_file import LabFile

STATE_FOLDER_VARIABLE = "VIRTCLOUD_LAB_STATE"
DEFAULT_STATE_FOLDER = "/run/virtcloud/lab"
LAB_FILE = "lab.yaml"
END_S = 20.0


@dataclass(frozen=True, slots=True)
class LabState:
    """The folder of a lab's files. Only root can read the folder."""

    folder: Path

    @classmethod
    def of_machine(cls) -> "LabState":
        """Return the folder that the variable ``VIRTCLOUD_LAB_STATE`` names (default: ``/run/virtcloud/lab``).

        Raise LabImpossible if the folder exists and this process may not enter it.
        """
        folder = Path(os.environ.get(STATE_FOLDER_VARIABLE, DEFAULT_STATE_FOLDER)).absolute()
        if _is_inaccessible(folder):
            raise LabImpossible(
                f"the lab's folder {folder} belongs to another user, who started the lab: run the command as root, for "
                "example with sudo"
            )
        return cls(folder)

    @property
    def socket(self) -> Path:
        """The socket of the control server on the station, the node on which SBF runs."""
        return self.folder / "lab.sock"

    @property
    def sbf_socket(self) -> Path:
        """The path of SBF's socket. If the lab has the default folder, clients use this path by default."""
        return Path(SBF_SOCKET) if str(self.folder) == DEFAULT_STATE_FOLDER else self.folder / "sbf.sock"

    @property
    def cgroup(self) -> Path:
        """The lab's control group on a machine with cgroup v2."""
        return lab_cgroup(str(self.folder))

    @property
    def metadata(self) -> dict[str, Any]:
        """The values that the last call of :meth:`write_metadata` wrote; empty before the first call."""
        return _read(self.folder / "lab.json")

    def write_metadata(self, metadata: dict[str, Any]) -> None:
        """Write the lab's name, kernel, token and options, and the names of each node's services."""
        target = self.folder / "lab.json"
        target.touch(mode=0o600)
        target.write_text(json.dumps(metadata))

    def write_lab_file(self, lab: LabFile) -> None:
        """Write the lab file as JSON, which is also valid YAML."""
        (self.folder / LAB_FILE).write_text(lab.model_dump_json(indent=1, exclude_none=True))

    def pid(self) -> int | None:
        """Return the process ID of the lab's first process, or None if this process is not running."""
        recorded = _read(self.folder / "pid")
        return recorded["pid"] if recorded and process_start_time(recorded["pid"]) == recorded["start"] else None

    def launcher(self) -> int | None:
        """Return the ID of the process that holds the lab's namespaces, or None if this process is not running."""
        recorded = _read(self.folder / "launcher")
        return recorded["pid"] if recorded and process_start_time(recorded["pid"]) == recorded["start"] else None

    def note_launcher(self, pid: int) -> None:
        """Record the process that holds the lab's namespaces."""
        (self.folder / "launcher").write_text(json.dumps({"pid": pid, "start": process_start_time(pid)}))

    def make(self) -> None:
        """Create the folder and its subfolders."""
        for name in ("log", "keys", "images"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)


def _is_inaccessible(folder: Path) -> bool:
    try:
        return folder.exists() and not os.access(folder, os.R_OK | os.X_OK, effective_ids=True)
    except PermissionError:
        return True


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        data: dict[str, Any] = json.loads(path.read_text())
        return data
    return {}


def process_start_time(pid: int) -> int | None:
    """Return the start time of a process (clock ticks since boot), or None if there is no such process.

    The start time distinguishes a process from a later process with the same ID.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def kill_lab(state: LabState) -> None:
    """Kill the lab's first process and the process that holds its namespaces. All other processes of the lab end too.

    Wait at most `END_S` seconds for the end of each of these two processes.
    """
    for find in (state.pid, state.launcher):
        pid = find()
        if pid is not None:
            _kill_process(pid)


def _kill_process(pid: int) -> None:
    start, deadline = process_start_time(pid), time.monotonic() + END_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    while process_start_time(pid) is not None and process_start_time(pid) == start and time.monotonic() < deadline:
        time.sleep(0.05)


def find_remains(state: LabState) -> list[str]:
    """Return descriptions of what a lab has left on this machine: processes, folder, control groups, SBF's socket."""
    remains = [f"process {pid} (and all processes below it)" for pid in (state.pid(), state.launcher()) if pid]
    remains += [str(path) for path in (state.folder, state.cgroup) if path.exists()]
    if state.folder.exists() and state.sbf_socket.exists():
        remains.append(str(state.sbf_socket))
    return remains


def remove_remains(state: LabState) -> list[str]:
    """Remove everything that :func:`find_remains` finds. Return descriptions of what could not be removed."""
    kill_lab(state)
    _remove_cgroups(state.cgroup)
    if state.folder.exists():
        state.sbf_socket.unlink(missing_ok=True)
        shutil.rmtree(state.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # other programs may have files there
            Path(SBF_SOCKET).parent.rmdir()
    return find_remains(state)


def _remove_cgroups(top: Path) -> None:
    deadline = time.monotonic() + END_S
    while top.exists() and time.monotonic() < deadline:
        for group in sorted(top.rglob("*"), reverse=True):
            if group.is_dir():
                _remove_folder(group)
        _remove_folder(top)
    with contextlib.suppress(OSError):  # other labs may have groups there
        top.parent.rmdir()


def _remove_folder(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:
        time.sleep(0.02)  # the group's last process is still terminating
