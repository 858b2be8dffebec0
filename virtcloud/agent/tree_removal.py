"""Removes folders to which guests or users could write.

rm(1) follows no symbolic links and handles deep trees. The removal of millions of files can take minutes. A file system
that does not answer, for example on a broken disk, blocks rm(1) forever, even after SIGKILL. Therefore the agent ends
the removal when rm(1) makes no progress, and does not wait for the end of the killed process. Until this end, the agent
starts no further rm(1). The agent itself makes no call with the folder's path, because this call could block the agent
too. The agent only lists the parent folder, which can be on another file system.
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRESS_S = 1.0
"""Seconds between two calls of ``progress``."""
STALL_S = 60.0
"""Seconds without progress after which rm(1) is killed."""
TIMEOUT_S = 600.0
"""Maximum duration of a removal in seconds."""
KILLED_S = 1.0
"""Maximum time in seconds to wait for the end of a killed rm(1)."""
USED_TIME = slice(11, 13)
"""The fields ``utime`` and ``stime`` of /proc/PID/stat, counted from the field after the name (proc_pid_stat(5))."""
_BLOCKED: dict[Path, "subprocess.Popen[str]"] = {}
"""The killed processes that had not ended after `KILLED_S`, by the folder that they remove."""


def remove_tree(folder: Path, progress: Callable[[], object] = lambda: None, *, timeout_s: float | None = None) -> None:
    """Remove a folder. Idempotent. Call ``progress`` every `PROGRESS_S` seconds.

    Raise OSError if rm(1) fails, makes no progress for `STALL_S` seconds, or takes longer than ``timeout_s`` seconds
    (default: `TIMEOUT_S`). Raise the error of `check_not_blocked`.
    """
    check_not_blocked(folder)
    if not _is_listed(folder):
        return
    argv = ["rm", "-rf", "--one-file-system", "--", str(folder)]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, errors="replace")  # noqa: S603 - no shell
    try:
        messages = _wait_for_end(process, folder, progress, TIMEOUT_S if timeout_s is None else timeout_s)
    except BaseException:
        process.kill()
        try:
            process.communicate(timeout=KILLED_S)
        except subprocess.TimeoutExpired:
            _BLOCKED[folder] = process
        raise
    if process.returncode:
        raise OSError(process.returncode, " ".join(messages.split()), str(folder))


def check_not_blocked(folder: Path) -> None:
    """Raise OSError if the killed rm(1) of an earlier removal has not ended. Make no call to the file system."""
    process = _BLOCKED.get(folder)
    if process is None:
        return
    if process.poll() is None:
        text = f"rm was killed, but its process {process.pid} has not ended: check the file system of this folder"
        raise OSError(0, text, str(folder))
    del _BLOCKED[folder]
    if process.stderr is not None:
        process.stderr.close()


def _is_listed(folder: Path) -> bool:
    """Return whether the parent folder contains ``folder``. Make no call to the file system of ``folder``."""
    try:
        return folder in folder.parent.iterdir()
    except FileNotFoundError:
        return False


def _wait_for_end(
    process: "subprocess.Popen[str]", folder: Path, progress: Callable[[], object], timeout_s: float
) -> str:
    work, now = "", time.monotonic()
    deadline, stalls_at = now + timeout_s, now + STALL_S
    while True:
        try:
            return process.communicate(timeout=PROGRESS_S)[1]
        except subprocess.TimeoutExpired as error:
            progress()
            now, former, work = time.monotonic(), work, read_work(process.pid)
            if work != former:
                stalls_at = now + STALL_S
            if now > stalls_at:
                text = f"rm made no progress for {STALL_S:g} s: check the file system of this folder"
                raise OSError(0, text, str(folder)) from error
            if now > deadline:
                raise OSError(0, f"rm took longer than {timeout_s:g} s", str(folder)) from error


def read_work(pid: int) -> str:
    """Return a text that changes while a process works: its processor time and the numbers of its context switches.

    A process that waits for one answer of a file system has the same text until the answer. Call this
    function only before the process's exit code is read (waitpid(2)).
    """
    status = Path(f"/proc/{pid}/status").read_text()
    switches = [line for line in status.splitlines() if "ctxt_switches" in line]
    used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[USED_TIME]
    return " ".join([*switches, *used])
