"""Tests of the agent's access to a root file system that a guest controls.

Each attack tries to make the agent read or write a file of the host.
"""

import ctypes
import errno
import os
import signal
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from virtcloud.agent.guests import rooted_files
from virtcloud.agent.guests.rooted_files import GuestRoot, RootedFiles

SHIFT = 0x10000000

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can change the owner of a file")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "host").mkdir()
    (tmp_path / "host/passwd").write_text("of the host")
    return tmp_path / "root"


@pytest.fixture
def files(root: Path) -> RootedFiles:
    return RootedFiles(GuestRoot(root, SHIFT))


def test_a_file_belongs_to_its_owner_in_the_guest(files: RootedFiles, root: Path) -> None:
    files.write("home/alice/.ssh/id", "secret", 0o600, 1000)
    status = (root / "home/alice/.ssh/id").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (SHIFT + 1000, SHIFT + 1000, 0o600)
    assert (root / "home").stat().st_uid == SHIFT


def test_renamed_files_elsewhere_do_not_disturb_the_access(
    files: RootedFiles, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooted_files, "RENAMES_S", 60.0)
    (root / "etc/link").symlink_to("../" * 1000 + "etc/file")
    (root / "etc/file").write_text("content")
    process = os.fork()
    while process == 0:
        (tmp_path / "host").rename(tmp_path / "other")
        (tmp_path / "other").rename(tmp_path / "host")
    try:
        assert {files.read("etc/link") for _ in range(1000)} == {"content"}
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_endless_renames_elsewhere_do_not_stop_the_agent(
    files: RootedFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses each attempt to open the file (EAGAIN).

    The kernel can do so if the guest renames files all the time and the image has links with many ``..``.
    """
    (root / "etc/file").touch()

    def refuse(*_: object) -> int:
        ctypes.set_errno(errno.EAGAIN)
        return -1

    monkeypatch.setattr(rooted_files, "RENAMES_S", 0.1)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(syscall=refuse))
    with pytest.raises(BlockingIOError):
        files.read("etc/file")


def test_a_folder_never_has_a_wrong_owner(files: RootedFiles, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(os, "fchown", kill)
    process = os.fork()
    if process == 0:
        files.ensure_folder("home/alice", owner=1000)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    monkeypatch.undo()
    files.ensure_folder("home/alice", owner=1000)
    assert [(root / path).stat().st_uid for path in ("home", "home/alice")] == [SHIFT, SHIFT + 1000]


def test_a_folder_that_cannot_be_created_leaves_nothing(
    files: RootedFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchmod", refuse)
    with pytest.raises(PermissionError):
        files.ensure_folder("srv")
    assert [path.name for path in root.iterdir()] == ["etc"]


@pytest.mark.parametrize("target", ["/../../host", "../../host", "{host}", "/proc/self/root/{host}"])
def test_a_link_in_place_of_a_folder_leads_nowhere_outside(files: RootedFiles, root: Path, target: str) -> None:
    host = root.parent / "host"
    (root / "etc").rmdir()
    (root / "etc").symlink_to(target.format(host=host))
    for write in (lambda: files.write("etc/passwd", "evil"), lambda: files.write_link("etc/passwd", "evil")):
        try:
            write()
        except OSError:
            continue
    assert ([path.name for path in host.iterdir()], (host / "passwd").read_text()) == (["passwd"], "of the host")
    assert files.read("etc/passwd") in {None, "evil"}


def test_a_link_in_place_of_a_file_is_replaced(files: RootedFiles, root: Path) -> None:
    (root / "etc/passwd").symlink_to(root.parent / "host/passwd")
    assert files.read("etc/passwd") is None
    files.write("etc/passwd", "of the guest")
    assert (root.parent / "host/passwd").read_text() == "of the host"
    assert (root / "etc/passwd").read_text() == "of the guest"


def test_a_hard_link_to_a_host_file_is_not_written(files: RootedFiles, root: Path) -> None:
    (root / "etc/passwd").hardlink_to(root.parent / "host/passwd")
    files.write("etc/passwd", "of the guest")
    status = (root.parent / "host/passwd").stat()
    assert ((root.parent / "host/passwd").read_text(), status.st_uid) == ("of the host", 0)


@pytest.mark.timeout(20)
def test_a_fifo_does_not_block_the_agent(files: RootedFiles, root: Path) -> None:
    os.mkfifo(root / "etc/passwd")
    with pytest.raises(OSError, match="expected a file"):
        files.read("etc/passwd")
    files.write("etc/passwd", "of the guest")
    assert files.read("etc/passwd") == "of the guest"


def test_a_huge_file_is_not_read(files: RootedFiles, root: Path) -> None:
    with (root / "etc/passwd").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="expected a file of at most"):
        files.read("etc/passwd")


@pytest.mark.parametrize("owner", [65536, -1, 2**32 - SHIFT])
def test_no_owner_is_outside_the_guests_range(files: RootedFiles, root: Path, owner: int) -> None:
    """The agent adds SHIFT to each ID. With 2**32 - SHIFT, the owner would be the host's root."""
    with pytest.raises(ValueError, match="expected a user ID"):
        files.write("etc/passwd", "x", 0o644, owner)
    assert list((root / "etc").iterdir()) == []


def test_removal_follows_no_link_and_leaves_folders(files: RootedFiles, root: Path) -> None:
    (root / "etc/key1").symlink_to(root.parent / "host/passwd")
    (root / "etc/key2").mkdir()
    (root / "etc/other").touch()
    files.remove("etc", "key*")
    assert {path.name for path in (root / "etc").iterdir()} == {"key2", "other"}
    assert (root.parent / "host/passwd").exists()
