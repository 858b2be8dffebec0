"""Tests of copies of furnished databases (:mod:`sbf_fakes.furnished`)."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from postgres import PostgresServer
from sbf_fakes import furnished
from sbf_fakes.world import World, make_world, spec, three_edges
from sqlalchemy import make_url

from virtcloud.model.access import Role
from virtcloud.model.topology import Topology


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[list[World]]:
    """Four worlds on new databases. No copies are kept at the start."""
    furnished.forget()
    made = []
    for number in range(4):
        (folder := tmp_path / str(number)).mkdir()
        made.append(make_world(folder))
    yield made
    for world in made:
        world.close()


def rows(world: World) -> list[str]:
    with closing(sqlite3.connect(world.database.removeprefix("sqlite:///"))) as connection:
        return list(connection.iterdump())


def test_a_copy_has_the_rows_of_a_furnished_database(worlds: list[World], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = worlds
    first.furnish()
    monkeypatch.setattr(World, "put_topology", None)
    second.furnish()
    assert rows(first) == rows(second)
    second.put("demo", spec("brno-h1"))
    second.settle()
    assert second.view("demo").state == "active"


def test_another_topology_or_pool_or_time_is_not_copied(worlds: list[World]) -> None:
    worlds[0].furnish()
    worlds[1].furnish(topology=three_edges())
    worlds[2].furnish("7")
    worlds[3].clock.advance(60)
    worlds[3].furnish()
    assert [world.topology().transports[0].name for world in worlds] == ["core", "evpn", "core", "core"]
    assert [str(world.site("brno").pool) for world in worlds] == ["100-139", "100-139", "7", "100-139"]
    assert {row.at for row in worlds[3].audit()} == {worlds[0].clock.now + timedelta(seconds=60)}


def test_a_changed_database_is_not_replaced(worlds: list[World]) -> None:
    first, changed, copy, *_ = worlds
    changed.token(Role.OPERATOR, "alice")
    for world in (first, changed, copy):
        world.furnish()
    assert [len(world.audit("token_created")) for world in (first, changed, copy)] == [0, 1, 0]


def test_the_last_copies_are_kept(worlds: list[World], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(furnished, "KEPT", 1)
    for world, pool in zip(worlds, ("7", "8", "7", "7"), strict=True):
        world.furnish(pool)
    assert [str(world.site("brno").pool) for world in worlds] == ["7", "8", "7", "7"]


@pytest.mark.postgresql
def test_postgresql_rows_are_copied_unless_the_database_was_changed(
    postgres_server: PostgresServer, postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = []
    put_topology = World.put_topology

    def counted(world: World, topology: Topology) -> None:
        stored.append(topology)
        put_topology(world, topology)

    monkeypatch.setattr(World, "put_topology", counted)
    found = []
    for is_changed in (False, False, True):
        postgres_server.restore_rows(str(make_url(postgresql).database))
        world = World(postgresql)
        if is_changed:
            world.token(Role.OPERATOR, "alice")
        world.furnish("7-9")
        world.put("demo", spec("brno-h1"))
        world.settle()
        found.append((len(stored), world.view("demo").state, [(row.id, row.what) for row in world.audit()]))
        world.close()
    first, copied, changed = found
    assert copied == first
    assert (changed[0], changed[2][0]) == (2, (1, "token_created"))
