"""Tests of a job's folder on the real kernel: its size is always limited, and it can always be removed."""

import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from virtcloud.agent.job_access.job_folder import JobFolders, TmpfsMounts
from virtcloud.model.errors import Refused

Run = Callable[[Callable[[], object]], object]
FILES = {"hosts": "10.0.0.1 g1\n", "known_hosts": ""}
NOBODY = pwd.getpwnam("nobody").pw_uid
FILL = """
import os
os.chmod(".", 0o700)
try:
    with open("known_hosts", "wb") as file:
        while True:
            file.write(b"x" * 4096)
            file.flush()
except OSError as error:
    print(error.errno)
try:
    for number in range(10**6):
        os.close(os.open(f"file{number}", os.O_CREAT | os.O_WRONLY))
except OSError as error:
    print(error.errno)
"""
DIG = """
import os
os.chmod(".", 0o700)
try:
    while True:
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
        os.symlink("/etc", "link")
except OSError as error:
    print(error.errno)
"""
BUSY = """
import os, sys
os.chmod(".", 0o700)
os.mkdir("busy")
os.chdir("busy")
print("begun", flush=True)
number = 0
while True:
    number += 1
    try:
        os.mkdir(str(number % 8))
        os.rmdir(str((number + 4) % 8))
    except OSError:
        pass
"""


@pytest.fixture
def folders(tmp_path: Path) -> JobFolders:
    for one in (tmp_path, *tmp_path.parents[:3]):  # only root may enter
        one.chmod(one.stat().st_mode | 0o711)
    return JobFolders(tmp_path / "jobs", TmpfsMounts())


def as_nobody(folder: Path, program: str) -> subprocess.Popen[str]:
    argv = ["setpriv", "--reuid", str(NOBODY), "--clear-groups", sys.executable, "-I", "-S", "-c", program]
    return subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, text=True)  # noqa: S603


def said(folder: Path, program: str) -> list[str]:
    with as_nobody(folder, program) as process:
        assert process.stdout
        return process.stdout.read().split()


def left(folders: JobFolders) -> list[str]:
    return sorted(one.name for one in folders.path("x").parent.iterdir())


def test_a_user_fills_no_more_than_the_jobs_own_folder(folders: JobFolders, with_mounts: Run) -> None:
    def work() -> object:
        folder = folders.ensure("12.pbs", "nobody", FILES)
        faults, size = said(folder, FILL), os.statvfs(folder)
        other = folders.ensure("13.pbs", "nobody", FILES)
        return faults, size.f_blocks * size.f_frsize, size.f_files, (other / "hosts").read_text()

    assert with_mounts(work) == (["28", "28"], (1 << 18) + 8192, 34, "10.0.0.1 g1\n")


def test_a_tree_of_any_depth_is_removed_with_its_folder(folders: JobFolders, with_mounts: Run) -> None:
    def work() -> object:
        faults = said(folders.ensure("12.pbs", "nobody", FILES), DIG)
        folders.ensure_none("12.pbs")
        return faults, left(folders)

    assert with_mounts(work) == (["28"], [])


def test_a_folder_that_changes_while_it_is_removed_is_removed(folders: JobFolders, with_mounts: Run) -> None:
    def work() -> object:
        with as_nobody(folders.ensure("12.pbs", "nobody", FILES), BUSY) as process:
            assert process.stdout
            process.stdout.readline()
            folders.ensure_none("12.pbs")
            running = process.poll() is None
            process.kill()
        return running, left(folders)

    assert with_mounts(work) == (True, [])


def test_a_deep_tree_of_an_earlier_versions_folder_is_removed(folders: JobFolders, with_mounts: Run) -> None:
    """Earlier versions created a plain folder, which may be too deep for shutil.rmtree."""

    def work() -> object:
        place = folders.path("12.pbs")
        place.mkdir(parents=True)
        os.chown(place, NOBODY, -1)
        said(place, DIG.replace("while True", "for _ in range(3000)"))
        folders.ensure_none("12.pbs")
        return left(folders)

    assert with_mounts(work) == []


def test_a_users_files_survive_a_restart_of_the_agent(folders: JobFolders, with_mounts: Run) -> None:
    def work() -> object:
        folder = folders.ensure("12.pbs", "nobody", FILES)
        (folder / "known_hosts").write_text("g1 ssh-ed25519 AAAA")
        again = JobFolders(folder.parent, TmpfsMounts()).ensure("12.pbs", "nobody", FILES)
        return (again / "known_hosts").read_text()

    assert with_mounts(work) == "g1 ssh-ed25519 AAAA"


def test_other_files_or_another_user_make_the_folder_anew(folders: JobFolders, with_mounts: Run) -> None:
    def work() -> object:
        folder = folders.ensure("12.pbs", "nobody", FILES)
        (folder / "mine").touch()
        folder = folders.ensure("12.pbs", "root", FILES)
        files = sorted(one.name for one in folder.iterdir())
        folders.ensure_none("12.pbs")
        return files, left(folders)

    assert with_mounts(work) == (["hosts", "known_hosts"], [])


class Killed(BaseException):
    """Raised when the test kills the agent."""


@pytest.mark.parametrize("call", ["mount", "write_text", "chmod", "chown"])
def test_an_incomplete_folder_is_created_again(
    folders: JobFolders, with_mounts: Run, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = {"mount": TmpfsMounts, "write_text": Path, "chmod": Path, "chown": os}[call]

    def die(*_: object, **__: object) -> None:
        raise Killed

    def work() -> object:
        folders.path("x").parent.mkdir()
        with monkeypatch.context() as dying:
            dying.setattr(JobFolders, "_ensure_root", lambda _: None)
            dying.setattr(owner, call, die)
            with pytest.raises(Killed):
                folders.ensure("12.pbs", "nobody", FILES)
        folder = folders.ensure("12.pbs", "nobody", FILES)
        seen = sorted(one.name for one in folder.iterdir()), folder.stat().st_uid
        folders.ensure_none("12.pbs")
        return seen, left(folders)

    assert with_mounts(work) == ((["hosts", "known_hosts"], NOBODY), [])


def test_a_link_in_the_place_of_a_folder_is_refused(folders: JobFolders, with_mounts: Run, tmp_path: Path) -> None:
    def work() -> object:
        folders.path("12.pbs").parent.mkdir()
        folders.path("12.pbs").symlink_to(tmp_path)
        with pytest.raises(Refused, match="cannot create the job's folder"):
            folders.ensure("12.pbs", "nobody", FILES)
        return tmp_path.is_dir()

    assert with_mounts(work)
