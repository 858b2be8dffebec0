from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.domain.admission import RequestLimits
from virtcloud.model.access import Role
from virtcloud.model.ssh_keys import UserKey

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIP//8ANYbUBqMGVNVPvdqVfmROgPr8Vr/PQXIb6nsYWr"
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
PATH = "/v1/users/alice/keys"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    installation = make_world(tmp_path)
    yield installation
    installation.close()


@pytest.fixture
def alice(world: World) -> str:
    return world.token(Role.USER, "alice")


def add(world: World, token: str, key: str = KEY) -> httpx.Response:
    return ask(world, "POST", PATH, {"key": key}, token=token)


def path_of(key: str) -> str:
    return f"{PATH}/{quote(UserKey(key).fingerprint, safe=':')}"


def test_an_added_key_is_listed_until_it_is_removed(world: World, alice: str) -> None:
    added = add(world, alice, f"{OTHER} alice@laptop")
    assert (added.status_code, added.json()["fingerprint"]) == (201, UserKey(OTHER).fingerprint)
    assert ask(world, "GET", PATH, token=alice).json() == [added.json()]
    assert ask(world, "DELETE", path_of(OTHER), token=alice).json() == added.json()
    assert ask(world, "GET", PATH, token=alice).json() == []


def test_adding_a_key_again_changes_nothing(world: World, alice: str) -> None:
    first = add(world, alice, f"{KEY} first")
    again = add(world, alice, f"{KEY} second")
    assert (again.status_code, again.json()) == (200, first.json())
    assert len(world.audit("key_added")) == 1


def test_users_change_only_their_own_keys(world: World, alice: str) -> None:
    bob = world.token(Role.USER, "bob")
    add(world, alice)
    assert problem(add(world, bob))[:2] == (403, "forbidden")
    assert problem(ask(world, "GET", PATH, token=bob))[:2] == (403, "forbidden")
    assert problem(ask(world, "DELETE", path_of(KEY), token=bob))[:2] == (403, "forbidden")
    assert len(ask(world, "GET", PATH, token=world.token(Role.OPERATOR, "eva")).json()) == 1


def test_removing_an_unknown_key_is_not_found(world: World, alice: str) -> None:
    detail = f"alice has no SSH key {UserKey(KEY).fingerprint}; 'virtcloud key list' shows all keys"
    assert problem(ask(world, "DELETE", path_of(KEY), token=alice)) == (404, "not-found", detail)


def test_a_private_key_is_refused_and_never_shown(world: World, alice: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, kind, detail = problem(add(world, alice, PRIVATE))
    assert (status, kind) == (422, "bad-input")
    assert detail.startswith("key: expected a public SSH key")
    assert detail.endswith("got a private key, which was not stored: use the file that ends in .pub")
    captured = capsys.readouterr()
    assert "b3BlbnNz" not in detail + captured.out + captured.err + str([row.why for row in world.audit()])


def test_a_refusal_does_not_show_a_specs_private_key(world: World, alice: str) -> None:
    wanted = spec("brno-h1").model_dump(mode="json") | {"authorized_keys": [PRIVATE]}
    status, kind, detail = problem(ask(world, "PUT", "/v1/clusters/demo", {"spec": wanted}, token=alice))
    assert (status, kind) == (422, "bad-input")
    assert detail.startswith("spec.authorized_keys.0: expected a public SSH key")
    assert "b3BlbnNz" not in detail


def test_the_number_of_keys_is_limited(world: World, alice: str) -> None:
    settings = world.service.settings.model_copy(update={"limits": RequestLimits(keys=1)})
    world.service = replace(world.service, settings=settings)
    add(world, alice)
    status, kind, detail = problem(add(world, alice, OTHER))
    assert (status, kind) == (422, "beyond-limit")
    assert detail.startswith("alice already has 1 SSH key (limit 1): remove a key with 'virtcloud key remove'")
    assert add(world, alice).status_code == 200


def test_changes_of_keys_have_audit_rows(world: World, alice: str) -> None:
    add(world, alice)
    ask(world, "DELETE", path_of(KEY), token=alice)
    fingerprint = UserKey(KEY).fingerprint
    assert [(row.what, row.who, row.why) for row in world.audit()[-2:]] == [
        ("key_added", "alice", f"alice: ssh-ed25519 {fingerprint}"),
        ("key_removed", "alice", f"alice: {fingerprint}"),
    ]
