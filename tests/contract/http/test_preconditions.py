"""Tests that no change is lost when two administrators change one topology or one pool concurrently."""

from pathlib import Path

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, make_world, three_sites


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


def renamed(name: str) -> dict[str, object]:
    return three_sites(name=name).model_dump(mode="json")


def put(world: World, name: str, if_match: str | None = None) -> httpx.Response:
    headers = {} if if_match is None else {"if-match": if_match}
    return ask(world, "PUT", "/v1/topology", renamed(name), headers=headers)


def test_a_topology_is_read_with_its_version(world: World) -> None:
    assert ask(world, "GET", "/v1/topology").headers["etag"] == '"1"'


def test_a_change_to_the_read_version_is_accepted(world: World) -> None:
    answer = put(world, "mine", '"1"')
    assert (answer.status_code, answer.headers["etag"]) == (200, '"2"')
    assert ask(world, "GET", "/v1/topology").json()["name"] == "mine"


def test_a_change_without_a_version_is_status_428(world: World) -> None:
    status, kind, detail = problem(put(world, "mine"))
    assert (status, kind) == (428, "precondition-required")
    assert detail.startswith("the topology would be replaced: expected If-Match with the version that was read")
    assert ask(world, "GET", "/v1/topology").json()["name"] == "paper"


def test_a_change_to_an_older_version_is_status_412(world: World) -> None:
    put(world, "mine", '"1"')
    status, kind, detail = problem(put(world, "yours", '"1"'))
    assert (status, kind) == (412, "precondition-failed")
    assert detail.startswith(
        "the topology is at version 2, but the change was made to version 1: another call changed the topology"
    )
    assert ask(world, "GET", "/v1/topology").json()["name"] == "mine"


def test_any_version_is_replaced_on_request(world: World) -> None:
    assert put(world, "mine", "*").status_code == 200


def test_the_same_topology_again_needs_no_version(world: World) -> None:
    assert put(world, "paper").status_code == 200


def test_a_pool_that_changed_in_between_is_not_replaced(world: World) -> None:
    path = "/v1/sites/brno/pool"
    read = ask(world, "GET", path).headers["etag"]
    first = ask(world, "PUT", path, {"vlans": "100-149"}, headers={"if-match": read})
    status, kind, detail = problem(ask(world, "PUT", path, {"vlans": "100-159"}, headers={"if-match": read}))
    assert (first.status_code, status, kind) == (200, 412, "precondition-failed")
    assert detail.startswith("the pool of site brno is at version ")
    assert ask(world, "GET", path).headers["etag"] == first.headers["etag"] != read
    assert ask(world, "PUT", path, {"vlans": "100-139"}).status_code == 200


def test_the_first_topology_needs_no_version(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    empty = make_world(tmp_path / "empty")
    assert put(empty, "first").status_code == 200
    empty.close()
