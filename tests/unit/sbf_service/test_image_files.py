"""Tests of the files of uploaded images."""

from io import BytesIO
from pathlib import Path
from typing import Any

from sbf_service.domain.image_rules import ImageLimits
from sbf_service.image_files import Upload


class NearlyFullDisk(BytesIO):
    """A file that writes at most three bytes at a time, as an unbuffered file can do on a nearly full disk."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
        return super().write(memoryview(data)[:3])


def test_an_upload_continues_after_an_incomplete_write(tmp_path: Path) -> None:
    file = NearlyFullDisk()
    Upload(file, tmp_path / "hidden", ImageLimits()).write(b"0123456789")
    assert file.getvalue() == b"0123456789"
