import json
import os
import sys
from hashlib import sha256
from io import StringIO
from pathlib import Path

import pytest
from support.cli_calls import RunCommand
from support.hosts.image_host import QCOW2, serve_file

from virtcloud.cli.image_content import describe_content, read_file
from virtcloud.client.sbf import SbfClient
from virtcloud.model.errors import BadInput, Unreachable
from virtcloud.model.image import CatalogueImage, ImageCheck, ImageUrl

SOURCE = {"sha256": "0" * 64, "size": 3 << 20, "format": "qcow2", "architecture": "x86_64"}
IMAGE = {"name": "mine", "owner": "eva", "kind": "qemu", "added_at": "2026-11-23T08:00:00Z", "source": SOURCE}


def test_unshare_names_the_command_for_an_image_that_everybody_uses(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = CatalogueImage.model_validate({**IMAGE, "everybody": True})
    monkeypatch.setattr(SbfClient, "share_image", lambda *_arguments, **_options: found)
    result = run("image", "unshare", "mine", "bob")
    assert result.stderr == "virtcloud: to exclude bob: virtcloud image unshare mine --everybody\n"


def test_an_invalid_user_is_named_without_a_json_path(run: RunCommand) -> None:
    result = run("image", "share", "mine", "bo b")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("virtcloud: expected a user name")


class ClosedPipe(StringIO):
    """A stream whose reader has closed the stream."""

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


def test_a_pipe_is_no_image_to_upload(run: RunCommand, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = run("image", "add", "mine", str(tmp_path / "pipe"))
    assert result.exit_code == 2
    assert "pipe: expected a file, got a pipe or a device: write the image to" in result.stderr


def test_a_host_files_data_may_come_from_a_pipe(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SbfClient, "add_image", lambda *_, **_options: CatalogueImage.model_validate(IMAGE))
    reader, writer = os.pipe()
    os.write(writer, b"a disk")
    os.close(writer)
    result = run("image", "add", "mine", f"/dev/fd/{reader}", "--format", "raw", "--host-file", "mine.raw")
    os.close(reader)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(("size", "got"), [(3, "got more"), (9, "got 7")])
def test_a_file_that_changed_before_the_upload_is_refused(tmp_path: Path, size: int, got: str) -> None:
    (tmp_path / "image").write_bytes(b"content")
    expected = f"image: expected {size} bytes, the size when virtcloud first read the file, {got}: another program"
    with pytest.raises(BadInput, match=expected):
        list(read_file(tmp_path / "image", "uploading mine", size))


def test_a_url_of_another_scheme_is_no_file(run: RunCommand) -> None:
    result = run("image", "add", "mine", "ftp://example.org/mine.qcow2")
    assert result.exit_code == 2
    assert "ftp://example.org/mine.qcow2: expected a file, or a URL that begins with https:// or" in result.stderr


@pytest.mark.parametrize(
    "url",
    [
        "https://user:hunter2@example.org/mine.qcow2",
        "https://hunter2@example.org/mine.qcow2",
        "https://user:hunt@er2@[2001:db8::1]:8443/mine.qcow2",
        "https://user:hunter/2@example.org/mine.qcow2",
        "https://user:hunter?2@example.org/mine.qcow2",
        "ftp://user:hunter2@example.org/mine.qcow2",
        "HTTPS://user:hunter2@example.org/mine.qcow2",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(run: RunCommand, url: str) -> None:
    result = run("image", "add", "mine", url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "virtcloud: expected a URL without a user name or password, because every agent and user of the image sees the "
        "URL; got a URL with them: download the file, and upload it (virtcloud image add NAME FILE)\n"
    )


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/@scope/mine.qcow2",
        "https://example.org:8443/@scope/mine.qcow2",
        "https://[2001:db8::1]:8443/a@b",
        "https://example.org/mine.qcow2?from=eva@example.org",
    ],
)
def test_an_at_sign_in_a_path_is_no_password(url: str) -> None:
    assert ImageUrl(url) == url


@pytest.mark.parametrize("data", [QCOW2, b"another format", b""])
def test_verify_finds_a_replaced_file_at_a_url(run: RunCommand, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    with serve_file() as server:
        server.data = data
        source = {**SOURCE, "url": server.url}
        check = ImageCheck.model_validate({"name": "mine", "sha256": "0" * 64, "found": None, "intact": None})
        monkeypatch.setattr(SbfClient, "verify_image", lambda *_: check)
        monkeypatch.setattr(SbfClient, "image", lambda *_: CatalogueImage.model_validate({**IMAGE, "source": source}))
        result = run("image", "verify", "mine", "--json")
        assert (result.exit_code, json.loads(result.stdout)["found"]) == (1, sha256(data).hexdigest())
        assert f"the file at {server.url} was replaced, and hosts refuse it" in result.stderr


def test_show_prints_the_size_of_a_small_image_once(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    found = CatalogueImage.model_validate({**IMAGE, "source": {**SOURCE, "size": 164}})
    monkeypatch.setattr(SbfClient, "image", lambda *_: found)
    assert "size:          164 bytes\n" in run("image", "show", "mine").stdout
