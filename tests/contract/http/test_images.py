"""Tests of the catalogue of images over HTTP: uploads, URLs, sharing, certification, use by clusters, and removal."""

import asyncio
import errno
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import httpx
import pytest
from sbf_fakes.http_calls import ask, client, problem
from sbf_fakes.world import World, spec

from sbf_service.bootstrap import SbfService
from sbf_service.domain.image_rules import ImageLimits
from sbf_service.image_files import Upload
from virtcloud.model.access import QuotaLimits, Role
from virtcloud.model.image import CatalogueImage

QCOW2 = b"QFI\xfb" + (3).to_bytes(4) + bytes(504) + b"disk" * 100
BACKED = QCOW2[:8] + (512).to_bytes(8) + QCOW2[16:]
URL = {"url": "https://example.org/a.qcow2"}


@pytest.fixture
def database(sqlite_database: str) -> str:
    """SQLite suffices: these tests do not depend on the kind of database."""
    return sqlite_database


@pytest.fixture
def folder(world: World, tmp_path: Path) -> Path:
    """Set the folder and the size limit (1 MiB) of the service's uploaded images. Return the folder."""
    limits = ImageLimits(folder=str(tmp_path / "catalogue"), size=1 << 20)
    settings = world.service.settings.model_copy(update={"images": limits})
    world.service = SbfService(**(vars(world.service) | {"settings": settings}))
    return tmp_path / "catalogue"


@pytest.fixture
def alice(world: World) -> str:
    return world.token(Role.USER, "alice")


@pytest.fixture
def bob(world: World) -> str:
    return world.token(Role.USER, "bob")


def content(data: bytes, **changes: object) -> dict[str, Any]:
    keys = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "format": "qcow2", "architecture": "x86_64"}
    return keys | changes


def upload(
    world: World, token: str, data: bytes = QCOW2, *, name: str = "disk", sent: bytes | None = None, **changes: object
) -> httpx.Response:
    """Announce the file ``data`` and upload it in three parts. If ``sent`` is given, upload ``sent`` instead."""
    body = data if sent is None else sent

    async def parts() -> AsyncIterator[bytes]:
        for part in (body[:7], body[7:300], body[300:]):
            yield part

    async def call() -> httpx.Response:
        async with client(world.service, token) as http:
            return await http.put(f"/v1/images/{name}/content", params=content(data, **changes), content=parts())

    return asyncio.run(call())


def add_url(world: World, token: str, name: str = "disk", **changes: object) -> httpx.Response:
    return ask(world, "PUT", f"/v1/images/{name}", content(QCOW2, **URL) | changes, token=token)


def with_image(*hosts: str, owner: str = "alice", image: str = "disk", **changes: object) -> Any:  # noqa: ANN401 - a spec
    guests = [{"name": f"g{n}", "host": host, "image": image} for n, host in enumerate(hosts)]
    return spec(owner=owner, guests=guests, **changes)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


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
        ({"sent": QCOW2[:-1] + b"x"}, "nothing was stored: send the file again"),
        ({"data": BACKED}, "expected a qcow2 file without a backing file"),
        ({"data": b"x" * 600}, "expected a file in format qcow2, got a file in format raw"),
        ({"data": b""}, "size: expected"),
    ],
    ids=["short", "other", "backing-file", "format", "empty"],
)
def test_a_bad_file_is_refused_and_leaves_nothing(
    world: World, folder: Path, alice: str, changes: dict[str, Any], message: str
) -> None:
    status, kind, detail = problem(upload(world, alice, **changes))
    assert (status, kind, message in detail) == (422, "bad-input", True), detail
    assert files(folder) == []
    assert ask(world, "GET", "/v1/images").json() == []


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


def test_a_full_disk_is_named_and_leaves_nothing(
    world: World, folder: Path, alice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Upload.__init__
    monkeypatch.setattr(
        Upload, "__init__", lambda self, _, path, limits: create(self, cast("BinaryIO", FullFile()), path, limits)
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


def test_a_damaged_file_is_found(world: World, folder: Path, alice: str) -> None:
    upload(world, alice)
    assert ask(world, "POST", "/v1/images/disk/verify", token=alice).json()["intact"] is True
    (folder / content(QCOW2)["sha256"]).write_bytes(b"x")
    assert ask(world, "POST", "/v1/images/disk/verify", token=alice).json()["intact"] is False


def test_an_image_of_another_user_starts_no_guest(world: World, alice: str, bob: str) -> None:
    add_url(world, alice)
    request = {"spec": with_image("brno-h1", owner="bob").model_dump(mode="json")}
    status, kind, detail = problem(ask(world, "PUT", "/v1/clusters/c", request, token=bob))
    assert (status, kind) == (403, "not-admitted")
    assert detail == (
        "image disk belongs to alice, who has not shared it with bob: choose another image (virtcloud image list), or "
        "ask alice for: virtcloud image share disk bob"
    )
    assert ask(world, "GET", "/v1/clusters").json() == []


@pytest.mark.parametrize("change", [{"add": ["bob"]}, {"everybody": True}])
def test_a_shared_image_may_be_used(world: World, alice: str, bob: str, change: dict[str, Any]) -> None:
    add_url(world, alice)
    assert problem(ask(world, "GET", "/v1/images/disk", token=bob))[0] == 404
    ask(world, "POST", "/v1/images/disk/shares", change, token=alice)
    assert [image["name"] for image in ask(world, "GET", "/v1/images", token=bob).json()] == ["disk"]
    assert world.put("c", with_image("brno-h1", owner="bob")).created
    withdrawn = {"remove": ["bob"], "everybody": False}
    ask(world, "POST", "/v1/images/disk/shares", withdrawn, token=alice)
    assert ask(world, "GET", "/v1/images", token=bob).json() == []


def test_agents_receive_the_source_and_must_understand_it(world: World, alice: str) -> None:
    add_url(world, alice)
    world.put("c", with_image("brno-h1"))
    (segment,) = world.wanted_of_host("brno-h1").segments
    assert segment.guests[0].image_source is not None
    assert segment.guests[0].image_source.sha256 == content(QCOW2)["sha256"]
    assert segment.requires == ("images",)


def test_a_local_image_has_no_source(world: World) -> None:
    world.put("c", spec("brno-h1"))
    (segment,) = world.wanted_of_host("brno-h1").segments
    assert (segment.guests[0].image_source, "images" in segment.requires) == (None, False)


def test_a_later_image_does_not_change_running_guests(world: World) -> None:
    world.put("c", with_image("brno-h1"))
    before = world.wanted_of_host("brno-h1")
    add_url(world, world.token(Role.OPERATOR, "eva"))
    assert world.wanted_of_host("brno-h1") == before


def test_only_agents_of_a_clusters_hosts_read_its_image(world: World, folder: Path, alice: str) -> None:
    upload(world, alice)
    world.put("c", with_image("brno-h1"))
    answers = [
        ask(world, "GET", "/v1/images/disk/content", token=world.token(Role.AGENT, host)).status_code
        for host in ("brno-h1", "brno-h2")
    ]
    assert answers == [200, 404]


def test_a_used_image_cannot_be_removed(world: World, folder: Path, alice: str) -> None:
    upload(world, alice)
    world.put("c", with_image("brno-h1"))
    status, kind, detail = problem(ask(world, "DELETE", "/v1/images/disk", token=alice))
    assert (status, kind, "image disk is used by c" in detail) == (409, "conflict", True)
    world.delete("c")
    world.settle()
    assert ask(world, "DELETE", "/v1/images/disk", token=alice).status_code == 200
    assert files(folder) == []


def test_a_file_remains_while_another_image_has_it(world: World, folder: Path, alice: str, bob: str) -> None:
    upload(world, alice)
    upload(world, bob, name="copy")
    ask(world, "DELETE", "/v1/images/disk", token=alice)
    assert len(files(folder)) == 1


def test_a_certification_names_the_administrator_and_the_site(world: World, alice: str) -> None:
    add_url(world, alice)
    ivo = world.token(Role.SITE_ADMINISTRATOR, "ivo", "brno")
    ask(world, "PUT", "/v1/images/disk/certifications/brno", token=ivo)
    (certification,) = ask(world, "GET", "/v1/images/disk", token=alice).json()["certified"]
    assert (certification["site"], certification["by"], "at" in certification) == ("brno", "ivo", True)
    assert problem(ask(world, "PUT", "/v1/images/disk/certifications/praha", token=ivo))[0] == 403
    ask(world, "DELETE", "/v1/images/disk/certifications/brno", token=ivo)
    assert ask(world, "GET", "/v1/images/disk", token=alice).json()["certified"] == []


def test_a_user_cannot_replace_a_local_image_of_others(world: World, alice: str, bob: str) -> None:
    world.put("c", with_image("brno-h1", image="debian12"))
    assert problem(add_url(world, bob, "debian12"))[:2] == (403, "not-admitted")
    assert add_url(world, world.token(Role.OPERATOR, "eva"), "debian12").status_code == 201


def test_a_user_cannot_take_a_name_that_a_site_lists(world: World, alice: str) -> None:
    topology = ask(world, "GET", "/v1/topology").json()
    topology["sites"][0]["images"] = ["debian12"]
    ask(world, "PUT", "/v1/topology", topology, headers={"if-match": "*"})
    assert problem(add_url(world, alice, "debian12"))[:2] == (403, "not-admitted")


def test_a_user_cannot_take_the_name_of_a_hosts_image(world: World, alice: str) -> None:
    """No cluster uses the host's image yet, and no site lists the image in its topology."""
    capacity = {"cpus": 2, "memory_mb": 1024, "images": ["busybox", "debian12"]}
    assert ask(world, "PUT", "/v1/elements/brno-h1/capacity", capacity).status_code == 204
    refused = add_url(world, alice, "debian12")
    assert problem(refused)[:2] == (403, "not-admitted")
    assert "host brno-h1 has an image of this name in its folder" in refused.text
    assert add_url(world, alice, "debian").status_code == 201
    assert add_url(world, world.token(Role.OPERATOR, "eva"), "debian12").status_code == 201


def test_every_change_of_an_image_is_audited(world: World, alice: str) -> None:
    add_url(world, alice)
    ask(world, "POST", "/v1/images/disk/shares", {"add": ["bob"]}, token=alice)
    ask(world, "PUT", "/v1/images/disk/certifications/brno")
    ask(world, "DELETE", "/v1/images/disk/certifications/brno")
    ask(world, "DELETE", "/v1/images/disk", token=alice)
    rows = [row for row in ask(world, "GET", "/v1/audit").json() if str(row["why"]).startswith("disk ")]
    assert [(row["who"], row["what"]) for row in rows] == [
        ("alice", "image_added"),
        ("alice", "image_shared"),
        ("root", "image_certified"),
        ("root", "certification_revoked"),
        ("alice", "image_removed"),
    ]


@pytest.mark.parametrize("url", ["ftp://example.org/a", "https://user:secret@example.org/a", "file:///etc/shadow"])
def test_an_unsuitable_url_is_refused(world: World, alice: str, url: str) -> None:
    assert problem(add_url(world, alice, url=url))[:2] == (422, "bad-input")


@pytest.mark.parametrize("path", ["../shadow", "/etc/shadow", "a/../../b"])
def test_a_path_outside_the_folder_of_images_is_refused(world: World, alice: str, path: str) -> None:
    assert problem(add_url(world, alice, url=None, file=path))[:2] == (422, "bad-input")


def test_other_clusters_are_confirmed_while_one_waits_for_its_image(world: World, alice: str) -> None:
    add_url(world, alice)
    world.put("c", with_image("brno-h1"))
    world.put("d", spec("brno-h1", owner="bob"))
    world.dead_hosts = {"brno-h1"}
    world.settle()
    waiting = {world.view("c").id: "fetching image disk: 40 %"}
    revision = ask(world, "GET", "/v1/elements/brno-h1").json()["wanted_revision"]
    confirmation = {"revision": revision, "incomplete": waiting}
    assert ask(world, "POST", "/v1/elements/brno-h1/confirmed", confirmation).status_code == 204
    (trouble,) = [part.trouble for part in world.view("c").placements if part.element == "brno-h1"]
    assert (world.view("c").state, trouble, world.view("d").state) == (
        "configuring",
        "fetching image disk: 40 %",
        "active",
    )
    document = ask(world, "GET", "/v1/elements/brno-h1/wanted").json()
    assert document["incomplete"] == [world.view("c").id]
    ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": revision})
    assert world.view("c").state == "active"
