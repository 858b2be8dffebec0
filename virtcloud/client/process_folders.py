"""Folders that each belong to one process of this computer. The folder's name identifies the process.

If a process is killed, its folder stays.
"""

import glob
import os
import platform
import re
import shutil
from pathlib import Path


def name_process_folder(purpose: str) -> str:
    """Return the name of this process's folder: ``purpose``, the name of this computer, and the process ID.

    Several computers may share the folder's parent.
    """
    return f"{purpose}{platform.node()}-{os.getpid()}"


def remove_folders_of_ended_processes(parent: Path, purpose: str, suffix: str = "") -> None:
    """Remove each folder in ``parent`` that belongs to an ended process of this computer.

    ``suffix`` is a regular expression for the characters after the name that `name_process_folder` returned.
    """
    prefix = f"{purpose}{platform.node()}-"
    for path in parent.glob(f"{glob.escape(prefix)}*"):
        found = re.fullmatch(f"([0-9]+){suffix}", path.name.removeprefix(prefix))
        if found is not None and not _is_running(int(found.group(1))):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # a process of another user
    return True
