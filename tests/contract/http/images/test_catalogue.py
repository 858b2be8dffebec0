import logging
from pathlib import Path
from typing import Any

import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.image_calls import QCOW2, add_url, content, files, upload
from support.sbf_fakes.world import World, spec

from sbf_service.store.tables.cluster_tables import ClusterRow
from virtcloud.model.access import Role
from virtcloud.model.image import Architecture, ImageFormat, ImageSource, ImageUrl, Sha256


@pytest.fixture
def bob(world: World) -> str:
    return world.token(Role.USER, "bob")


def with_image(*hosts: str, owner: str = "alice", image: str = "disk", **changes: object) -> Any:
    guests = [{"name": f"g{n}", "host": host, "image": image} for n, host in enumerate(hosts)]
    return spec(owner=owner, guests=guests, **changes)


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


def test_an_images_owner_sees_no_keys_of_other_users(world: World, alice: str) -> None:
    add_url(world, alice)
    ask(world, "POST", "/v1/images/disk/shares", {"add": ["bob"]}, token=alice)
    world.put("secret-of-bob", with_image("brno-h1", owner="bob"))
    end = "remove the image when these clusters have ended"
    answer = problem(ask(world, "DELETE", "/v1/images/disk", token=alice))
    assert answer == (409, "conflict", f"image disk is used by 1 cluster of other users: {end}")
    for number in range(5):
        world.put(f"c{number}", with_image("brno-h1"))
    used = "image disk is used by c0, c1, c2 and 2 more and 1 cluster of other users"
    assert problem(ask(world, "DELETE", "/v1/images/disk", token=alice))[2] == f"{used}: {end}"
    used = "image disk is used by c0, c1, c2 and 3 more"
    assert problem(ask(world, "DELETE", "/v1/images/disk"))[2] == f"{used}: {end}"


def test_agents_that_receive_an_images_source_must_support_images(world: World, alice: str) -> None:
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


def test_a_removal_names_a_file_that_cannot_be_removed(world: World, folder: Path, alice: str) -> None:
    upload(world, alice)
    (folder / ("b" * 64)).mkdir()  # unlink(2) refuses a folder
    status, kind, detail = problem(ask(world, "DELETE", "/v1/images/disk", token=alice))
    assert (status, kind) == (507, "storage-full")
    assert detail == (
        "image disk is removed from the catalogue, but its file may remain: SBF cannot remove "
        f"{folder / ('b' * 64)}: Is a directory; check the file system of this folder, its locks (flock), and the "
        "limit of open files; the next upload or removal of an image removes the file"
    )
    assert files(folder) == ["b" * 64]


def test_a_file_remains_while_another_image_uses_the_file(world: World, folder: Path, alice: str, bob: str) -> None:
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


def test_an_image_is_added_despite_an_unreadable_cluster(world: World, bob: str) -> None:
    world.put("c", with_image("brno-h1", image="debian12"))
    with world.store.change() as unit:
        unit.session.get_one(ClusterRow, world.view("c").id).resolved = "{"
    assert add_url(world, bob).status_code == 201


def test_a_user_cannot_take_a_name_that_a_site_lists(world: World, alice: str) -> None:
    topology = ask(world, "GET", "/v1/topology").json()
    topology["sites"][0]["images"] = ["debian12"]
    ask(world, "PUT", "/v1/topology", topology, headers={"if-match": "*"})
    assert problem(add_url(world, alice, "debian12"))[:2] == (403, "not-admitted")


def test_a_user_cannot_take_the_name_of_a_hosts_image(world: World, alice: str) -> None:
    """No cluster uses the host's image yet, and no site's ``images`` in the topology contain the image."""
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


def test_a_stored_url_with_a_password_stays_readable() -> None:
    """Earlier versions of SBF accepted a password with '/'."""
    url = "https://user:ab/cd@example.org/a"
    assert (
        ImageSource(
            format=ImageFormat.QCOW2,
            architecture=Architecture("x86_64"),
            sha256=Sha256("0" * 64),
            size=1,
            url=ImageUrl(url),
        ).url
        == url
    )


@pytest.mark.parametrize("url", ["ftp://example.org/a", "https://user:secret@example.org/a", "file:///etc/shadow"])
def test_an_unsuitable_url_is_refused(world: World, alice: str, url: str) -> None:
    assert problem(add_url(world, alice, url=url))[:2] == (422, "bad-input")


@pytest.mark.parametrize("password", ["hunter2", "ab/hunter2"])
def test_a_password_in_a_url_appears_nowhere(
    world: World, alice: str, caplog: pytest.LogCaptureFixture, password: str
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = add_url(world, alice, url=f"https://user:{password}@example.org/a")
    rows = ask(world, "GET", "/v1/audit").text
    assert "expected a URL without a user name or password" in problem(answer)[2]
    assert "hunter2" not in f"{answer.text} {rows} {caplog.text}"


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
