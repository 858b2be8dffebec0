"""Tests of the documents and answers of the metadata service. No test opens a socket."""

import pytest
import yaml
from support.hosts.seed_documents import HOST_KEY, PUBLIC_KEY, seeded_guest, seeded_segment

from virtcloud.agent.guests.peer_files import render_peer_files
from virtcloud.agent.guests.seeds import render_nocloud
from virtcloud.agent.host_services.guest_identity import find_guests
from virtcloud.agent.host_services.metadata_documents import Documents, hash_metadata, render_metadata
from virtcloud.agent.host_services.metadata_program import HEAD_BYTES, make_answer
from virtcloud.model.wanted import GuestWanted, Segment

LINK_LOCAL = "fe80::1000:ff:fe00:1"


def served(*guests: GuestWanted, **changes: object) -> Segment:
    segment: Segment = seeded_segment(guests[0], **{"guests": guests, "host_services": ("dhcp", "metadata"), **changes})
    return segment


def documents(guest: GuestWanted) -> Documents:
    return render_metadata(served(guest)).guests[0]


def read(found: Documents, path: str) -> str:
    return make_answer(f"GET {path} HTTP/1.1\r\n\r\n".encode(), found).partition(b"\r\n\r\n")[2].decode()


def test_nocloud_documents_are_those_of_the_seeds_disk() -> None:
    guest = seeded_guest()
    segment = served(guest)
    assert guest.seed
    expected = render_nocloud(segment, guest, guest.seed, render_peer_files(segment, guest))
    found = documents(guest)
    assert {name: found[f"/{name}"] for name in expected} == expected
    assert found["/vendor-data"] == ""


def test_ec2_documents_have_the_guests_name_addresses_and_keys() -> None:
    found = documents(seeded_guest())
    listing = ["hostname", "instance-id", "ipv6", "local-hostname", "local-ipv4", "mac", "public-keys/"]
    assert found["/latest/meta-data"].split("\n") == listing
    paths = ("hostname", "local-ipv4", "ipv6", "public-keys", "public-keys/0", "public-keys/0/openssh-key")
    assert [found[f"/latest/meta-data/{path}"] for path in paths] == [
        *("n1.demo.internal", "10.0.0.1", "fd00::1", "0=key-0", "openssh-key", f"{PUBLIC_KEY} alice@home"),
    ]


def test_both_data_sources_have_the_same_instance_and_user_data() -> None:
    found = documents(seeded_guest())
    assert yaml.safe_load(found["/meta-data"])["instance-id"] == found["/latest/meta-data/instance-id"]
    answers = [read(found, path) for path in ("/user-data", "/latest/user-data", "/2009-04-04/user-data/")]
    assert yaml.safe_load(answers[0])["ssh_keys"]["ed25519_private"] == HOST_KEY
    assert len(set(answers)) == 1


def test_both_versions_of_ec2_have_the_same_documents() -> None:
    found = documents(seeded_guest())
    assert read(found, "/") == "2009-04-04\nlatest"
    assert read(found, "/2009-04-04/") == "meta-data/\nuser-data"
    assert read(found, "/2009-04-04/meta-data/mac") == read(found, "/latest/meta-data/mac") == "12:00:00:00:00:01"


def test_a_guest_without_a_seed_receives_its_name() -> None:
    found = documents(seeded_guest(seed=None))
    assert (found["/user-data"], found["/latest/meta-data/local-hostname"]) == ("", "n1")
    assert yaml.safe_load(found["/meta-data"]) == {"instance-id": "c1-n1", "local-hostname": "n1"}


def test_a_cloud_config_that_cannot_be_merged_affects_one_guest() -> None:
    """A mistake in one guest's cloud-config must not stop the services of other guests."""
    seed = seeded_guest().seed
    assert seed
    broken = seeded_guest(name="n2", mac="02:00:00:00:00:02", seed=seed.model_copy(update={"user_data": "users: 1"}))
    found = render_metadata(served(seeded_guest(), broken))
    assert (bool(found.guests[0]), found.guests[1]) == (True, {})


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, {"10.0.0.1", "fd00::1", LINK_LOCAL, "10.0.0.2", "fe80::ff:fe00:2"}),
        ({"addresses": ["10.0.0.1/24"]}, {"fd00::1", LINK_LOCAL, "fe80::ff:fe00:2"}),
        ({"mac": "12:00:00:00:00:01"}, set()),
        ({"addresses": [f"{LINK_LOCAL}/64"]}, {"10.0.0.1", "fd00::1", "fe80::ff:fe00:2"}),
    ],
)
def test_an_address_of_two_guests_identifies_neither_guest(changes: dict[str, object], found: set[str]) -> None:
    second = seeded_guest(**{"name": "n2", "mac": "02:00:00:00:00:02", "addresses": ["10.0.0.2/24"], **changes})
    assert set(find_guests(served(seeded_guest(), second))) == found


@pytest.mark.parametrize(
    "changes",
    [
        {"key": "other"},
        {"mtu": 1400},
        {"peers": []},
        {"router_addresses": ["fd00::9/64"]},
        {"services": {"nfs": ["10.0.0.9/24"]}},
    ],
)
def test_each_change_of_the_documents_changes_the_digest(changes: dict[str, object]) -> None:
    assert render_metadata(served(seeded_guest())) != render_metadata(served(seeded_guest(), **changes))
    assert hash_metadata(served(seeded_guest())) != hash_metadata(served(seeded_guest(), **changes))


def test_another_secret_changes_the_digest() -> None:
    seed = seeded_guest().seed
    assert seed
    other = seeded_guest(seed={**seed.model_dump(context={"secrets": True}), "host_key": "another"})
    assert hash_metadata(served(seeded_guest())) != hash_metadata(served(other))


def test_a_stop_of_a_guest_does_not_change_the_digest() -> None:
    assert hash_metadata(served(seeded_guest())) == hash_metadata(served(seeded_guest(power="off")))


@pytest.mark.parametrize(
    ("head", "status", "body"),
    [
        (b"GET /meta-data HTTP/1.1\r\nHost: x\r\n\r\n", 200, b"text"),
        (b"GET //meta-data/?a=b HTTP/1.0\r\n\r\n", 200, b"text"),
        (b"HEAD /meta-data HTTP/1.1\r\n\r\n", 200, b""),
        (b"GET /other HTTP/1.1\r\n\r\n", 404, b"Not Found\n"),
        (b"GET /../meta-data HTTP/1.1\r\n\r\n", 404, b"Not Found\n"),
        (b"PUT /latest/api/token HTTP/1.1\r\n\r\n", 405, b"Method Not Allowed\n"),
        (b"\xff\x00\r\n\r\n", 400, b"Bad Request\n"),
        (b"GET /" + b"a" * HEAD_BYTES, 431, b"Request Header Fields Too Large\n"),
    ],
)
def test_each_request_gets_its_http_status(head: bytes, status: int, body: bytes) -> None:
    answer, _, found = make_answer(head, {"/meta-data": "text"}).partition(b"\r\n\r\n")
    assert (int(answer.split(b" ")[1]), found) == (status, body)
