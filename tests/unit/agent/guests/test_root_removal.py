"""Tests of the removal of roots with very many files: progress is reported, and the time is limited."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from virtcloud.agent import tree_removal
from virtcloud.agent.guests.guest_roots import GuestRoots
from virtcloud.agent.job_access import job_folder
from virtcloud.agent.tree_removal import read_work


@pytest.fixture
def slow_rm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a guest with files, and an empty program that replaces rm(1)."""
    (tmp_path / "guests/g1/layers/upper").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/rm").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "bin/rm"


def test_a_long_removal_reports_progress(slow_rm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without progress, systemd kills an agent that removes a root with many files (WatchdogSec)."""
    slow_rm.write_text('#!/bin/sh\nsleep 2\nexec /bin/rm "$@"\n')
    monkeypatch.setattr(tree_removal, "PROGRESS_S", 0.5)
    progress: list[str] = []
    GuestRoots(tmp_path / "guests", progress=lambda: progress.append("made")).ensure_none("g1")
    assert (list((tmp_path / "guests/g1").iterdir()), progress[:2]) == ([], ["made", "made"])


def test_an_endless_removal_is_ended(slow_rm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_rm.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(tree_removal, "PROGRESS_S", 0.1)
    monkeypatch.setattr(tree_removal, "TIMEOUT_S", 0.2)
    with pytest.raises(OSError, match=r"rm took longer than 0.2 s.*layers"):
        GuestRoots(tmp_path / "guests").ensure_none("g1")


def test_the_removal_of_a_jobs_folder_has_a_shorter_limit(
    slow_rm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent ends if the thread that removes jobs makes no progress for 600 s."""
    slow_rm.write_text("#!/bin/sh\nwhile :; do :; done\n")
    monkeypatch.setattr(tree_removal, "PROGRESS_S", 0.1)
    monkeypatch.setattr(job_folder, "REMOVE_TIMEOUT_S", 0.2)
    with pytest.raises(OSError, match=r"rm took longer than 0.2 s"):
        job_folder._remove_tree(tmp_path / "guests/g1/layers")


def test_a_removal_without_progress_is_ended_early(
    slow_rm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that does not answer blocks rm(1). Until its end, the agent works on no other guest."""
    slow_rm.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(tree_removal, "PROGRESS_S", 0.1)
    monkeypatch.setattr(tree_removal, "STALL_S", 0.5)
    with pytest.raises(OSError, match=r"rm made no progress for 0.5 s: check the file system of this folder.*layers"):
        GuestRoots(tmp_path / "guests").ensure_none("g1")


def test_only_rm_calls_a_file_system_that_may_not_answer(
    slow_rm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of the agent with the path of the tree could block the agent for ever."""
    slow_rm.write_text('#!/bin/sh\nexec /bin/rm "$@"\n')
    called = list[str]()
    with monkeypatch.context() as patch:
        for name in ("stat", "lstat", "rmdir", "unlink", "open", "scandir", "listdir"):
            patch.setattr(os, name, _recording(getattr(os, name), called))
        GuestRoots(tmp_path / "guests").ensure_none("g1")
    assert [path for path in called if path.endswith(("/layers", "/root", "/image"))] == []
    assert list((tmp_path / "guests/g1").iterdir()) == []


def _recording(call: Callable[..., object], called: list[str]) -> Callable[..., object]:
    def record(path: object, *arguments: object, **options: object) -> object:
        called.append(str(path))
        return call(path, *arguments, **options)

    return record


def test_a_blocked_removal_is_not_repeated(slow_rm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed rm(1) can wait for the file system forever. The agent must neither wait nor start another one."""
    starts = tmp_path / "starts"
    slow_rm.write_text(f"#!/bin/sh\necho $$ >> {starts}\nexec sleep 60\n")
    for name in ("PROGRESS_S", "STALL_S", "KILLED_S"):
        monkeypatch.setattr(tree_removal, name, 0.1)
    kill = subprocess.Popen.kill
    roots, blocked = GuestRoots(tmp_path / "guests"), tmp_path / "guests/g1/layers"
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda _: None)  # like a process that waits for a broken disk
        with pytest.raises(OSError, match="rm made no progress"):
            roots.ensure_none("g1")
    (tmp_path / "guests/g1/root.json").touch()
    with pytest.raises(OSError, match=r"rm was killed, but its process \d+ has not ended.*layers"):
        roots.ensure_none("g1")
    assert (len(starts.read_text().split()), (tmp_path / "guests/g1/root.json").exists()) == (1, True)
    process = tree_removal._BLOCKED[blocked]
    kill(process)
    process.wait()
    slow_rm.write_text('#!/bin/sh\nexec /bin/rm "$@"\n')
    roots.ensure_none("g1")
    assert list((tmp_path / "guests/g1").iterdir()) == []


@pytest.mark.parametrize("command", ["while :; do :; done", "while :; do sleep 0.01; done"])
def test_work_and_waits_count_as_progress(command: str) -> None:
    with subprocess.Popen(["/bin/sh", "-c", command]) as process:  # noqa: S603 - no input of users
        try:
            first, deadline = read_work(process.pid), time.monotonic() + 10
            while read_work(process.pid) == first and time.monotonic() < deadline:
                time.sleep(0.05)
            assert read_work(process.pid) != first
        finally:
            process.kill()
