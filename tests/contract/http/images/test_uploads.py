import errno
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.image_calls import QCOW2, add_url, content, files, upload
from support.sbf_fakes.world import World

from sbf_service.bootstrap import SbfService
from sbf_service.image_files import Upload
from virtcloud.model.access import QuotaLimits
from virtcloud.model.image import CatalogueImage

BACKED = QCOW2[:8] + (512).to_bytes(8) + QCOW2[16:]


def test_an_uploaded_image_is_stored_under_its_checksum(world: World, folder: Path, alice: str) -> None:
    answer = upload(world, alice)
    image = CatalogueImage.model_validate_json(answer.content)
    assert (answer.status_code, image.owner, image.kind, image.certified) == (201, "alice", "qemu", ())
    assert (folder / image.source.sha256).read_bytes() == QCOW2


@pytest.mark.parametrize("architecture", ["z80", "amd64"])
def test_an_unknown_architecture_is_refused(world: World, alice: str, architecture: str) -> None:
    for answer in (upload(world, alice, architecture=architecture), add_url(world, alice, architecture=architecture)):
        status, _, detail = problem(answer)
        assert (status, f"architecture {architecture}: expected" in detail) == (422, True)


def test_the_same_upload_again_changes_nothing(world: World, folder: Path, alice: str) -> None:
    first, second = upload(world, alice), upload(world, alice)
    assert (first.status_code, second.status_code, first.json()) == (201, 200, second.json())
    assert len(files(folder)) == 1


@pytest.mark.parametrize("left", [None, QCOW2[:-1]], ids=["missing", "truncated"])
def test_a_repeated_upload_restores_a_lost_file(world: World, folder: Path, alice: str, left: bytes | None) -> None:
    """A file is lost, for example, if only the database was restored from a backup."""
    first = upload(world, alice)
    file = folder / content(QCOW2)["sha256"]
    file.unlink()
    if left is not None:
        file.write_bytes(left)
    query = "&".join(f"{key}={value}" for key, value in content(QCOW2).items())
    planned = ask(world, "PUT", f"/v1/images/disk/content?{query}&dry_run=true", token=alice)
    second = upload(world, alice)
    assert (planned.json(), second.status_code, second.json()) == (None, 200, first.json())
    assert file.read_bytes() == QCOW2


def test_another_content_needs_another_name(world: World, folder: Path, alice: str) -> None:
    upload(world, alice)
    status, kind, detail = problem(upload(world, alice, QCOW2 + b"x"))
    assert (status, kind) == (409, "name-taken")
    assert "choose another name, or remove the image first" in detail
    assert len(files(folder)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sent": QCOW2[:-1]}, "expected 912 bytes"),
        ({"sent": QCOW2 + b"x"}, "expected 912 bytes, as announced, got more"),
        ({"sent": QCOW2[:-1] + b"x"}, "nothing was stored: send the file again"),
        ({"data": BACKED}, "expected a qcow2 file without a backing file"),
        ({"data": b"x" * 600}, "expected a file in format qcow2, got a file in format raw"),
        ({"data": b""}, "size: expected"),
    ],
    ids=["short", "long", "other", "backing-file", "format", "empty"],
)
def test_a_bad_file_is_refused_and_not_stored(
    world: World, folder: Path, alice: str, changes: dict[str, Any], message: str
) -> None:
    status, kind, detail = problem(upload(world, alice, **changes))
    assert (status, kind, message in detail) == (422, "bad-input", True), detail
    assert files(folder) == []
    assert ask(world, "GET", "/v1/images").json() == []


def test_a_file_on_the_disk_never_exceeds_its_announced_size(
    world: World, folder: Path, alice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SBF compares only the announced size with the quota."""
    sizes = list[int]()
    write = Upload.write

    def record_size(uploading: Upload, data: bytes) -> None:
        try:
            write(uploading, data)
        finally:
            sizes.extend(path.stat().st_size for path in folder.iterdir())

    images = world.service.settings.images.model_copy(update={"size": 64 << 20})
    settings = world.service.settings.model_copy(update={"images": images})
    world.service = SbfService(**(vars(world.service) | {"settings": settings}))
    monkeypatch.setattr(Upload, "write", record_size)
    status, kind, detail = problem(upload(world, alice, sent=bytes(5 << 20), size=10))
    assert (status, kind) == (422, "bad-input")
    assert detail == (
        "image: expected 10 bytes, as announced, got more; nothing was stored: send the file again with its size"
    )
    assert (sizes, files(folder)) == ([0], [])


def test_an_image_beyond_the_largest_size_is_refused(world: World, folder: Path, alice: str) -> None:
    status, kind, detail = problem(upload(world, alice, QCOW2 + bytes(1 << 20)))
    assert (status, kind) == (422, "beyond-limit"), detail
    answer = problem(add_url(world, alice, size=(1 << 20) + 1))
    assert answer[:2] == (422, "beyond-limit")
    assert "the limit is 'images.size'" in answer[2]


def test_an_upload_beyond_the_body_limit_is_accepted(world: World, folder: Path, alice: str) -> None:
    limits = world.service.settings.limits.model_copy(update={"body": 1024})
    settings = world.service.settings.model_copy(update={"limits": limits})
    world.service = SbfService(**(vars(world.service) | {"settings": settings}))
    assert upload(world, alice, QCOW2 + bytes(4096)).status_code == 201


def test_a_full_disk_is_an_error_and_leaves_no_file(
    world: World, folder: Path, alice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Upload.__init__
    monkeypatch.setattr(
        Upload, "__init__", lambda self, _, path, size: create(self, cast("BinaryIO", FullFile()), path, size)
    )
    status, kind, detail = problem(upload(world, alice))
    assert (status, kind) == (507, "storage-full")
    assert f"the disk of SBF's folder of images {folder} is full: nothing was stored" in detail
    assert files(folder) == []


class FullFile:
    """A file on a full disk."""

    def write(self, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_the_quota_limits_the_size_of_stored_images(world: World, folder: Path, alice: str) -> None:
    quota = QuotaLimits(images_mb=0)
    settings = world.service.settings.model_copy(update={"quota": quota})
    world.service = SbfService(**(vars(world.service) | {"settings": settings}))
    assert problem(upload(world, alice))[:2] == (409, "quota-exceeded")
    assert add_url(world, alice).status_code == 201


def test_the_quota_counts_running_uploads_of_the_same_user(world: World, folder: Path, alice: str) -> None:
    settings = world.service.settings.model_copy(update={"quota": QuotaLimits(images_mb=1)})
    world.service = SbfService(**(vars(world.service) | {"settings": settings}))
    file, large = QCOW2 + bytes(600 << 10), 600 << 10
    with world.service.image_folder.open_upload(large, "alice"):
        (running,) = folder.iterdir()
        refused = problem(upload(world, alice, file))
    assert refused[:2] == (409, "quota-exceeded")
    assert "alice stores 0 MiB of images and is uploading 1 MiB, and the new image has 1 MiB" in refused[2]
    running.touch()  # a file without a lock, as a killed process leaves it
    with world.service.image_folder.open_upload(large, "bob"):
        assert upload(world, alice, file).status_code == 201


def test_a_lost_file_is_restored_although_the_quota_is_full(world: World, folder: Path, alice: str) -> None:
    settings = world.service.settings.model_copy(update={"quota": QuotaLimits(images_mb=1)})
    world.service = SbfService(**(vars(world.service) | {"settings": settings}))
    file = QCOW2 + bytes(600 << 10)
    upload(world, alice, file)
    (stored,) = folder.iterdir()
    stored.unlink()
    assert (upload(world, alice, file).status_code, stored.exists()) == (200, True)


def test_files_of_killed_uploads_are_removed_by_the_next(world: World, folder: Path, alice: str) -> None:
    folder.mkdir()
    (folder / ("a" * 64)).touch()
    upload(world, alice)
    assert files(folder) == [content(QCOW2)["sha256"]]


def test_a_download_resumes_with_the_etag_of_the_file(world: World, folder: Path, alice: str) -> None:
    upload(world, alice)
    etag = ask(world, "GET", "/v1/images/disk/content", token=alice).headers["etag"]
    headers = {"range": "bytes=100-", "if-range": etag}
    answer = ask(world, "GET", "/v1/images/disk/content", token=alice, headers=headers)
    assert (answer.status_code, answer.content) == (206, QCOW2[100:])
    answer = ask(world, "GET", "/v1/images/disk/content", token=alice, headers=headers | {"if-range": '"other"'})
    assert (answer.status_code, answer.content) == (200, QCOW2)


def test_the_verification_of_an_image_detects_a_damaged_file(world: World, folder: Path, alice: str) -> None:
    upload(world, alice)
    assert ask(world, "POST", "/v1/images/disk/verify", token=alice).json()["intact"] is True
    (folder / content(QCOW2)["sha256"]).write_bytes(b"x")
    assert ask(world, "POST", "/v1/images/disk/verify", token=alice).json()["intact"] is False
