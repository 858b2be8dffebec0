"""Tests of commands about images."""

import sys
from io import StringIO
from pathlib import Path

import pytest
from cli_calls import RunCommand
from image_host import serve_file

from virtcloud.cli.image_content import describe_content
from virtcloud.client.sbf import SbfClient
from virtcloud.model.errors import Unreachable
from virtcloud.model.image import CatalogueImage


def test_unshare_names_the_command_for_an_image_that_everybody_uses(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"sha256": "0" * 64, "size": 3 << 20, "format": "qcow2", "architecture": "x86_64"}
    keys = {"name": "mine", "owner": "eva", "kind": "qemu", "added_at": "2026-11-23T08:00:00Z", "everybody": True}
    found = CatalogueImage.model_validate({**keys, "source": source})
    monkeypatch.setattr(SbfClient, "share_image", lambda *_arguments, **_options: found)
    result = run("image", "unshare", "mine", "bob")
    assert result.stderr == "virtcloud: to exclude bob: virtcloud image unshare mine --everybody\n"


class ClosedPipe(StringIO):
    """A stream whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_an_error_of_the_progress_bar_is_raised_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "image").write_bytes(b"content")
    monkeypatch.setattr(sys, "stderr", ClosedPipe())
    with pytest.raises(BrokenPipeError):
        describe_content(str(tmp_path / "image"), None, None, "x86_64")


def test_a_truncated_download_is_no_image() -> None:
    with serve_file() as server:
        server.cuts = [1000]
        with pytest.raises(Unreachable, match="expected 3512 bytes, got 1000: the connection was lost"):
            describe_content(server.url, None, None, "x86_64")
