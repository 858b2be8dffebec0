"""Writes virtcloud's scripts for Torque: prologues, epilogues and the submit filter.

Each script is one file with the owner and mode that Torque requires.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pbs_hooks.bundle import bundle_program
from pbs_hooks.torque.scripts.script_head import FILTERS
from virtcloud.model.errors import BadInput

ENTRY_MODULE, HEAD_MODULE = "pbs_hooks.torque.scripts.script_entry", "pbs_hooks.torque.scripts.script_head"
INTERPRETER = "#!/usr/bin/python3 -IS\n"
SCRIPT_MARK = "# Written by 'virtcloud torque'; do not change it here. Bundle "
ROOT_ONLY, EVERYONE = 0o500, 0o555
SCRIPT_MODES: Mapping[str, int] = {
    "prologue": ROOT_ONLY,
    "prologue.parallel": ROOT_ONLY,
    "epilogue": ROOT_ONLY,
    "epilogue.parallel": ROOT_ONLY,
    "epilogue.precancel": EVERYONE,  # Torque runs the script as the job's user
}
PROGRAM_TAIL = """
if may_have_request or script in FILTERS:
    import os

    sys.exit(load(SOURCES, LOADER, ENTRY).main(script, sys.argv[1:], os.environ, {settings!r}))
"""


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """A wanted file, and whether the existing file matches."""

    path: Path
    mode: int
    is_right: bool


def build_program(settings: Path) -> str:
    """Return the program of all script files, which depends at run time on the file's name."""
    text = bundle_program(ENTRY_MODULE, PROGRAM_TAIL.format(settings=str(settings)), (HEAD_MODULE,))
    return f"{INTERPRETER}{SCRIPT_MARK}{hashlib.sha256(text.encode()).hexdigest()[:12]}.\n{text}"


def plan_scripts(folder: Path, text: str, owner: int = 0) -> list[ScriptFile]:
    """Return the scripts for a MoM's folder.

    Raise BadInput if the folder contains foreign files with the scripts' names.
    """
    return _compare_files([(folder / name, mode) for name, mode in SCRIPT_MODES.items()], text, owner)


def plan_submit_filter(path: Path, text: str, owner: int = 0) -> list[ScriptFile]:
    """Return the submit filter for a host with qsub.

    Raise BadInput for an unknown file name and for a foreign file.
    """
    if path.name not in FILTERS:
        raise BadInput(f"{path}: expected a submit filter's file name: one of {', '.join(FILTERS)}")
    return _compare_files([(path, EVERYONE)], text, owner)


def write_files(files: Sequence[ScriptFile], text: str, owner: int = 0) -> None:
    """Write each file whose content, mode or owner is wrong. Idempotent.

    Replace files atomically. Raise BadInput if a file cannot be written.
    """
    for file in files:
        if not file.is_right:
            _write_file(file, text, owner)


def _compare_files(wanted: Sequence[tuple[Path, int]], text: str, owner: int) -> list[ScriptFile]:
    foreign = [str(path) for path, _ in wanted if _is_foreign(path)]
    if foreign:
        raise BadInput(
            f"{', '.join(foreign)}: not written by this command; left unchanged. Write virtcloud's scripts to "
            "another folder and call them from the existing scripts (docs/how-to/torque.md), or move the existing "
            "scripts"
        )
    return [ScriptFile(path, mode, _is_right(path, mode, text, owner)) for path, mode in wanted]


def _is_foreign(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        with path.open("rb") as file:
            return SCRIPT_MARK.encode() not in file.read(4 * len(SCRIPT_MARK))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error


def _is_right(path: Path, mode: int, text: str, owner: int) -> bool:
    if not path.exists():
        return False
    found = path.stat()
    return stat.S_IMODE(found.st_mode) == mode and found.st_uid == owner and path.read_bytes() == text.encode()


def _write_file(file: ScriptFile, text: str, owner: int) -> None:
    new = file.path.with_name(f".{file.path.name}.new")
    try:
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
            os.fchown(opened.fileno(), owner, -1)
            os.fchmod(opened.fileno(), file.mode)
        new.replace(file.path)
    except OSError as error:
        hint = "run this as root" if isinstance(error, PermissionError) else "check its folder"
        raise BadInput(f"{file.path}: cannot be written: {error.strerror}; {hint}") from error


def describe_files(files: Sequence[ScriptFile]) -> Iterator[str]:
    """Yield a line for each file."""
    for file in files:
        yield f"{file.path}: {'unchanged' if file.is_right else 'written'} (mode {file.mode:04o})"
