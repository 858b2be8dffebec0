from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, make_world, spec

LEASE = "/v1/clusters/demo/lease"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = make_world(tmp_path)
    world.furnish()
    world.put("demo", spec("brno-h1", lease_s=3600))
    world.settle()
    yield world
    world.close()


def test_a_lease_is_extended_from_now(world: World) -> None:
    world.clock.advance(1800)
    before = world.view("demo").version
    answer = ask(world, "POST", LEASE, {"seconds": 7200})
    assert (answer.status_code, answer.json()["lease_ends"]) == (200, "2026-01-01T02:30:00Z")
    assert answer.json()["version"] == before + 1


def test_a_lease_is_never_shortened(world: World) -> None:
    before = world.view("demo")
    assert ask(world, "POST", LEASE, {"seconds": 60}).status_code == 200
    assert world.view("demo") == before
    assert world.audit("lease_extended") == []


def test_a_cluster_ends_when_its_extended_lease_ends(world: World) -> None:
    ask(world, "POST", LEASE, {"seconds": 7200})
    world.clock.advance(7199)
    world.settle()
    assert world.view("demo").state == "active"
    world.clock.advance(1)
    world.settle()
    assert (world.view("demo").state, world.view("demo").reason) == (
        "released",
        "its lease ended at 2026-01-01 02:00:00 UTC",
    )


def test_an_extension_is_recorded_in_the_audit_log(world: World) -> None:
    ask(world, "POST", LEASE, {"seconds": 7200})
    (row,) = world.audit("lease_extended")
    assert (row.who, row.why) == ("root", "from 2026-01-01 01:00:00 UTC to 2026-01-01 02:00:00 UTC")


def test_the_creation_can_be_repeated_after_an_extension(world: World) -> None:
    ask(world, "POST", LEASE, {"seconds": 7200})
    assert not world.put("demo", spec("brno-h1", lease_s=3600)).created


def test_the_lease_of_an_ending_cluster_is_not_extended(world: World) -> None:
    world.delete("demo")
    assert problem(ask(world, "POST", LEASE, {"seconds": 7200})) == (
        409,
        "conflict",
        "cluster demo is draining, and its lease cannot be extended: create a new cluster",
    )


@pytest.mark.parametrize(("path", "status"), [(LEASE, 422), ("/v1/clusters/never/lease", 404)])
def test_an_invalid_extension_is_refused(world: World, path: str, status: int) -> None:
    seconds = 0 if status == 422 else 60
    assert problem(ask(world, "POST", path, {"seconds": seconds}))[0] == status
