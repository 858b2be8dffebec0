"""Tests of the files of uploaded images."""

import errno
import fcntl
import os
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from sbf_service.domain.image_rules import ImageLimits
from sbf_service.image_files import HIDDEN, ImageFolder, Upload

LOCK = fcntl.flock


class NearlyFullDisk(BytesIO):
    """A file that writes at most three bytes at a time, as an unbuffered file can do on a nearly full disk."""

    def write(self, data: Any) -> int:
        return super().write(memoryview(data)[:3])


def test_an_upload_continues_after_an_incomplete_write(tmp_path: Path) -> None:
    file = NearlyFullDisk()
    Upload(file, tmp_path / "hidden", ImageLimits()).write(b"0123456789")
    assert file.getvalue() == b"0123456789"


def lock_as_on_nfs(file: BinaryIO, operation: int) -> None:
    """Lock a file as NFS does: an exclusive lock needs a file that is open for writing (flock(2))."""
    if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    LOCK(file, operation)


def test_a_folder_on_nfs_is_cleaned_of_killed_uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lock_as_on_nfs)
    left = tmp_path / f"{HIDDEN}killed"
    left.write_bytes(b"0123")
    os.utime(left, (0, 0))
    ImageFolder(tmp_path, ImageLimits()).remove_unknown(frozenset())
    assert not left.exists()
