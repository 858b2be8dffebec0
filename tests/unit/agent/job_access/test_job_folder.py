"""Tests of a job's folder on the real kernel. The folder has a limited size, and the agent can always remove it."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from support.kernel.network_namespaces import Run

from virtcloud.agent.job_access.job_folder import JobFolders, TmpfsMounts
from virtcloud.model.errors import Refused

FILES = {"hosts": "10.0.0.1 g1\n", "known_hosts": ""}
NOBODY = pwd.getpwnam("nobody").pw_uid
FILL_FOLDER = """
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
CREATE_DEEP_TREE = """
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
CREATE_AND_REMOVE_FOLDERS = """
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
    for path in (tmp_path, *tmp_path.parents[:3]):  # by default, only root may enter these folders
        path.chmod(path.stat().st_mode | 0o711)
    return JobFolders(tmp_path / "jobs", TmpfsMounts())


def start_as_nobody(folder: Path, program: str) -> subprocess.Popen[str]:
    argv = ["setpriv", "--reuid", str(NOBODY), "--clear-groups", sys.executable, "-I", "-S", "-c", program]
    return subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, text=True)  # noqa: S603


def output_of(folder: Path, program: str) -> list[str]:
    with start_as_nobody(folder, program) as process:
        assert process.stdout
        return process.stdout.read().split()


def list_names(folders: JobFolders) -> list[str]:
    return sorted(path.name for path in folders.path("x").parent.iterdir())


def test_a_user_can_fill_only_the_jobs_folder(folders: JobFolders, with_mounts: Run) -> None:
    def work() -> object:
        folder = folders.ensure("12.pbs", "nobody", FILES)
        errors, size = output_of(folder, FILL_FOLDER), os.statvfs(folder)
        other = folders.ensure("13.pbs", "nobody", FILES)
        return errors, size.f_blocks * size.f_frsize, size.f_files, (other / "hosts").read_text()

    assert with_mounts(work) == (["28", "28"], (1 << 18) + 8192, 34, "10.0.0.1 g1\n")


def test_a_tree_of_any_depth_is_removed_with_its_folder(folders: JobFolders, with_mounts: Run) -> None:
    def work() -> object:
        errors = output_of(folders.ensure("12.pbs", "nobody", FILES), CREATE_DEEP_TREE)
        folders.ensure_none("12.pbs")
        return errors, list_names(folders)

    assert with_mounts(work) == (["28"], [])


def test_a_folder_that_changes_during_the_removal_is_removed(folders: JobFolders, with_mounts: Run) -> None:
    def work() -> object:
        with start_as_nobody(folders.ensure("12.pbs", "nobody", FILES), CREATE_AND_REMOVE_FOLDERS) as process:
            assert process.stdout
            process.stdout.readline()
            folders.ensure_none("12.pbs")
            running = process.poll() is None
            process.kill()
        return running, list_names(folders)

    assert with_mounts(work) == (True, [])


def test_a_deep_folder_of_an_earlier_version_is_removed(folders: JobFolders, with_mounts: Run) -> None:
    """Earlier versions of the agent created a plain folder, whose tree may be too deep for shutil.rmtree."""

    def work() -> object:
        folder = folders.path("12.pbs")
        folder.mkdir(parents=True)
        os.chown(folder, NOBODY, -1)
        output_of(folder, CREATE_DEEP_TREE.replace("while True", "for _ in range(3000)"))
        folders.ensure_none("12.pbs")
        return list_names(folders)

    assert with_mounts(work) == []


def test_a_users_files_survive_a_restart_of_the_agent(folders: JobFolders, with_mounts: Run) -> None:
    def work() -> object:
        folder = folders.ensure("12.pbs", "nobody", FILES)
        (folder / "known_hosts").write_text("g1 ssh-ed25519 AAAA")
        reopened = JobFolders(folder.parent, TmpfsMounts()).ensure("12.pbs", "nobody", FILES)
        return (reopened / "known_hosts").read_text()

    assert with_mounts(work) == "g1 ssh-ed25519 AAAA"


def test_another_user_gets_a_new_folder(folders: JobFolders, with_mounts: Run) -> None:
    def work() -> object:
        folder = folders.ensure("12.pbs", "nobody", FILES)
        (folder / "mine").touch()
        folder = folders.ensure("12.pbs", "root", FILES)
        files = sorted(path.name for path in folder.iterdir())
        folders.ensure_none("12.pbs")
        return files, list_names(folders)

    assert with_mounts(work) == (["hosts", "known_hosts"], [])


class Killed(BaseException):
    """Simulates that the agent's process is killed."""


@pytest.mark.parametrize("function", ["mount", "write_text", "chmod", "chown"])
def test_an_incomplete_folder_is_created_again(
    folders: JobFolders, with_mounts: Run, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = {"mount": TmpfsMounts, "write_text": Path, "chmod": Path, "chown": os}[function]

    def raise_killed(*_: object, **__: object) -> None:
        raise Killed

    def work() -> object:
        folders.path("x").parent.mkdir()
        with monkeypatch.context() as context:
            context.setattr(JobFolders, "_ensure_root", lambda _: None)
            context.setattr(owner, function, raise_killed)
            with pytest.raises(Killed):
                folders.ensure("12.pbs", "nobody", FILES)
        folder = folders.ensure("12.pbs", "nobody", FILES)
        content = sorted(path.name for path in folder.iterdir()), folder.stat().st_uid
        folders.ensure_none("12.pbs")
        return content, list_names(folders)

    assert with_mounts(work) == ((["hosts", "known_hosts"], NOBODY), [])


def test_a_link_at_the_path_of_a_folder_is_refused(folders: JobFolders, with_mounts: Run, tmp_path: Path) -> None:
    def work() -> object:
        folders.path("12.pbs").parent.mkdir()
        folders.path("12.pbs").symlink_to(tmp_path)
        with pytest.raises(Refused, match="cannot create the job's folder"):
            folders.ensure("12.pbs", "nobody", FILES)
        return tmp_path.is_dir()

    assert with_mounts(work)
