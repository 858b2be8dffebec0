import errno
import fcntl
import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from sbf_service.image_files import HIDDEN, Upload, UploadFolder
from virtcloud.model.errors import StorageFull
from virtcloud.model.image import Sha256

LOCK = fcntl.flock


class NearlyFullDisk(BytesIO):
    """A file that writes at most three bytes at a time, as an unbuffered file can do on a nearly full disk."""

    def write(self, data: Any) -> int:
        return super().write(memoryview(data)[:3])


def test_an_upload_continues_after_an_incomplete_write(tmp_path: Path) -> None:
    file = NearlyFullDisk()
    Upload(file, tmp_path / "hidden", 10).write(b"0123456789")
    assert file.getvalue() == b"0123456789"


class ReadOnlyFile(BytesIO):
    """A file that systemd shows as read-only (ProtectSystem=strict)."""

    def write(self, _: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_the_error_about_a_read_only_folder_contains_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(StorageFull, match=f"Read-only file system; add the lines .* 'ReadWritePaths={tmp_path}'"):
        Upload(ReadOnlyFile(), tmp_path / "hidden", 10).write(b"0123")


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
    UploadFolder(tmp_path).remove_unknown(frozenset())
    assert not left.exists()


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[Path]:
    """The hidden file of an upload of alice."""
    with UploadFolder(tmp_path).open_upload(4, "alice"):
        (path,) = tmp_path.iterdir()
        yield path


def test_an_upload_that_ends_during_the_count_is_not_counted(hidden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS reports ESTALE for the lock of a file that another computer has removed."""

    def lock(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    os.utime(hidden, (0, 0))
    monkeypatch.setattr(fcntl, "flock", lock)
    folder = UploadFolder(hidden.parent)
    folder.remove_unknown(frozenset())
    assert folder.count_uploading("alice") == 0


def test_an_unreadable_upload_is_named_with_the_remedy(hidden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_file(*_: object) -> BinaryIO:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", open_file)
    with pytest.raises(StorageFull, match=f"cannot read {hidden}.*: Permission denied; all replicas must"):
        UploadFolder(hidden.parent).count_uploading("alice")


@pytest.fixture
def unneeded(tmp_path: Path) -> list[Path]:
    """Two files of images that SBF does not know, and a hidden file of a killed upload."""
    files = [tmp_path / ("a" * 64), tmp_path / f"{HIDDEN}killed", tmp_path / ("b" * 64)]
    for file in files:
        file.write_bytes(b"0123")
        os.utime(file, (0, 0))
    return files


@pytest.mark.parametrize("number", [0, 1])
def test_a_file_that_cannot_be_removed_is_named_with_the_remedy(
    unneeded: list[Path], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse(monkeypatch, unneeded[number], errno.EACCES)
    with pytest.raises(StorageFull, match=f"cannot remove {unneeded[number]}.*: Permission denied; all replicas must"):
        UploadFolder(unneeded[0].parent).remove_unknown(frozenset())


def test_the_other_files_are_removed_nevertheless(unneeded: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, unneeded[0], errno.EIO)
    with pytest.raises(StorageFull, match="Input/output error; check the file system"):
        UploadFolder(unneeded[0].parent).remove_unknown(frozenset())
    assert [file.exists() for file in unneeded] == [True, False, False]


def refuse(monkeypatch: pytest.MonkeyPatch, refused: Path, number: int) -> None:
    """Make the removal of the file ``refused`` fail with an error number."""
    unlink = Path.unlink

    def fail(path: Path, *, missing_ok: bool = False) -> None:
        if path == refused:
            raise OSError(number, os.strerror(number))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", fail)


def test_an_unreadable_image_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(_: Path, **__: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "stat", find)
    folder, checksum = UploadFolder(tmp_path), Sha256("a" * 64)
    for read in (folder.find, folder.compute_checksum, lambda sha256: folder.contains(sha256, 4)):
        with pytest.raises(
            StorageFull, match=f"cannot read {tmp_path / checksum}: Permission denied; all replicas must"
        ):
            read(checksum)
