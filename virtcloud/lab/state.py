"""The lab's folder on the machine, and whether the lab that wrote it still lives."""

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
    """The folder where a lab keeps its files; only root reads it."""

    folder: Path

    @classmethod
    def of_machine(cls) -> "LabState":
        """Return the machine's folder: ``VIRTCLOUD_LAB_STATE``, or ``/run/virtcloud/lab``.

        Raise LabImpossible when it exists and the caller may not enter it.
        """
        folder = Path(os.environ.get(STATE_FOLDER_VARIABLE, DEFAULT_STATE_FOLDER)).absolute()
        if _is_closed(folder):
            raise LabImpossible(
                f"the lab's folder {folder} belongs to another user, who started the lab: run this as root, for "
                "instance with sudo"
            )
        return cls(folder)

    @property
    def socket(self) -> Path:
        """Where the station listens."""
        return self.folder / "lab.sock"

    @property
    def sbf_socket(self) -> Path:
        """Where SBF listens for the machine's users: where they look for it, unless the lab's folder is another one."""
        return Path(SBF_SOCKET) if str(self.folder) == DEFAULT_STATE_FOLDER else self.folder / "sbf.sock"

    @property
    def cgroup(self) -> Path:
        """The lab's control group on a machine with cgroup v2."""
        return lab_cgroup(str(self.folder))

    @property
    def about(self) -> dict[str, Any]:
        """What the lab is: its name, kernel, token, whether it is bare; empty when that was never written."""
        return _read(self.folder / "lab.json")

    def write_about(self, about: dict[str, Any]) -> None:
        """Say what the lab is."""
        target = self.folder / "lab.json"
        target.touch(mode=0o600)
        target.write_text(json.dumps(about))

    def write_lab_file(self, lab: LabFile) -> None:
        """Keep what the lab is built from (as JSON, which is YAML too)."""
        (self.folder / LAB_FILE).write_text(lab.model_dump_json(indent=1, exclude_none=True))

    def pid(self) -> int | None:
        """Give the process id of the lab's first process if that process lives."""
        noted = _read(self.folder / "pid")
        return noted["pid"] if noted and process_start_time(noted["pid"]) == noted["start"] else None

    def launcher(self) -> int | None:
        """Give the process id of a launch that is under way, or was when its launcher died."""
        noted = _read(self.folder / "launcher")
        return noted["pid"] if noted and process_start_time(noted["pid"]) == noted["start"] else None

    def note_launcher(self, pid: int) -> None:
        """Remember the process that holds the lab's namespaces."""
        (self.folder / "launcher").write_text(json.dumps({"pid": pid, "start": process_start_time(pid)}))

    def make(self) -> None:
        """Make the folder and those within."""
        for name in ("log", "keys", "images"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)


def _is_closed(folder: Path) -> bool:
    """Return whether a folder exists that this process may not read and enter."""
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
    """Give when a process started (clock ticks since boot), which tells it from a later one of the same number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def kill_lab(state: LabState) -> None:
    """Kill the lab's first process, with which every other process of the lab goes, and wait until it is gone."""
    for find in (state.pid, state.launcher):
        pid = find()
        if pid is not None:
            _kill_process(pid)


def _kill_process(pid: int) -> None:
    since, deadline = process_start_time(pid), time.monotonic() + END_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    while process_start_time(pid) is not None and process_start_time(pid) == since and time.monotonic() < deadline:
        time.sleep(0.05)


def find_remains(state: LabState) -> list[str]:
    """Say in words what a lab has left on this machine: processes, folder, control groups, the service's socket."""
    found = [f"process {pid} (and all processes below it)" for pid in (state.pid(), state.launcher()) if pid]
    found += [str(one) for one in (state.folder, state.cgroup) if one.exists()]
    if state.folder.exists() and state.sbf_socket.exists():
        found.append(str(state.sbf_socket))
    return found


def remove_remains(state: LabState) -> list[str]:
    """Remove all that :func:`remains` finds; gives what is still there, which is nothing when all went well."""
    kill_lab(state)
    _remove_cgroups(state.cgroup)
    if state.folder.exists():
        state.sbf_socket.unlink(missing_ok=True)
        shutil.rmtree(state.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # others may keep things there
            Path(SBF_SOCKET).parent.rmdir()
    return find_remains(state)


def _remove_cgroups(top: Path) -> None:
    deadline = time.monotonic() + END_S
    while top.exists() and time.monotonic() < deadline:
        for group in sorted(top.rglob("*"), reverse=True):
            if group.is_dir():
                _remove_folder(group)
        _remove_folder(top)
    with contextlib.suppress(OSError):  # other labs may have theirs there
        top.parent.rmdir()


def _remove_folder(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:
        time.sleep(0.02)  # its last process is still on its way out
