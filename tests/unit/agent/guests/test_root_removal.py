"""Tests of the removal of roots with very many files: progress is reported, and the time is limited."""

import os
from pathlib import Path

import pytest

from virtcloud.agent.guests import guest_roots
from virtcloud.agent.guests.guest_roots import GuestRoots


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
    monkeypatch.setattr(guest_roots, "PROGRESS_S", 0.5)
    progress: list[str] = []
    GuestRoots(tmp_path / "guests", progress=lambda: progress.append("made")).ensure_none("g1")
    assert (list((tmp_path / "guests/g1").iterdir()), progress[:2]) == ([], ["made", "made"])


def test_an_endless_removal_is_ended(slow_rm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_rm.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(guest_roots, "PROGRESS_S", 0.1)
    monkeypatch.setattr(guest_roots, "REMOVE_TIMEOUT_S", 0.2)
    with pytest.raises(OSError, match=r"rm took longer than 0.2 s.*layers"):
        GuestRoots(tmp_path / "guests").ensure_none("g1")
