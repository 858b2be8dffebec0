"""Tests that a crash at any database statement leaves no partial change. Reconciliation continues afterwards."""

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, text
from support.sbf_fakes.crash import Crash, crash_at
from support.sbf_fakes.world import World, spec, three_sites

from sbf_service.store.elements.leases import release_leases_of
from sbf_service.store.tables.tables import Base, ElementRow
from sbf_service.store.topology.current_topology import read_topology
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Conflict
from virtcloud.model.topology import Topology
from virtcloud.model.topology_parts import arrange_links


def read_tables(world: World) -> dict[str, list[Any]]:
    with world.store.engine.connect() as connection:
        return {
            name: list(connection.execute(text(f"SELECT * FROM {name} ORDER BY 1, 2")))  # noqa: S608 - names of the schema
            for name in Base.metadata.tables
        }


def prepare_clusters(world: World) -> None:
    world.settle()
    world.put("old", spec("brno-h1", "praha-h1"))
    world.settle()
    world.put("young", spec("brno-h2", "plzen-h1"))


def with_third_host() -> Topology:
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["hosts"].append({"name": "brno-h3", "ports": ["eth0"]})
    document["sites"][0]["switches"][0]["ports"].append("p3")
    document["links"].append({"a": "brno-h3:eth0", "b": "brno-sw1:p3"})
    return Topology.model_validate(document)


def add_host(world: World) -> None:
    world.put_topology(with_third_host())


def confirm_host(world: World) -> None:
    world.confirm("brno-h2", world.element("brno-h2").wanted_revision)


CHANGES: dict[str, Callable[[World], object]] = {
    "a cluster is requested": lambda world: world.put("new", spec("brno-h1", "praha-h2")),
    "a cluster is ended": lambda world: world.delete("old"),
    "an attempt replaces another": lambda world: world.put("old", spec("brno-h2"), attempt=5),
    "an element confirms": confirm_host,
    "a pool is changed": lambda world: world.put_pool("brno", "90-150"),
    "the topology is changed": add_host,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_crash_at_any_statement_leaves_all_or_nothing(world: World, change: Callable[[World], object]) -> None:
    prepare_clusters(world)
    before, statement = read_tables(world), 0
    while not try_change(world, change, statement + 1):
        assert read_tables(world) == before
        statement += 1
    assert read_tables(world) != before
    assert statement > 5


KILLED_IN_THE_COMMIT = """
import os, signal, sys
from sqlalchemy import event
from sbf_service.store.connections.database import make_engine
from sbf_service.store.topology.topology import change_topology
from sbf_service.store.store import Store
from virtcloud.model.topology import Topology
from virtcloud.model.topology_parts import arrange_links

def kill(connection):
    if connection.dialect.name == "postgresql":
        connection.connection.dbapi_connection.pgconn.send_query(b"COMMIT")
    os.kill(os.getpid(), signal.SIGKILL)

event.listen(engine := make_engine(sys.argv[1]), "commit", kill)
topology = Topology.model_validate_json(sys.stdin.read())
change_topology(Store(engine), lambda former: former.share_parts(topology), who="eva")
"""
"""A program that sends COMMIT to PostgreSQL and ends before the answer. On SQLite, the program ends before COMMIT."""


def test_a_kill_in_the_commit_leaves_one_topology(world: World) -> None:
    world.settle()
    command = [sys.executable, "-c", KILLED_IN_THE_COMMIT, world.database]
    topology = with_third_host().model_dump_json()
    killed = subprocess.run(command, check=False, timeout=60, input=topology, text=True)  # noqa: S603 - our own
    assert killed.returncode == -signal.SIGKILL
    with world.store.read() as unit:
        elements = unit.session.scalars(select(ElementRow.name).where(ElementRow.present)).all()
        assert sorted(elements) == sorted(read_topology(unit).elements)
    add_host(world)
    assert world.topology() == arrange_links(with_third_host())
    assert world.element("brno-h3").wanted_revision == 1


def try_change(world: World, change: Callable[[World], object], statement: int) -> bool:
    is_completed = True
    with crash_at(world, statement):
        try:
            change(world)
        except Crash:
            is_completed = False
        except Conflict:
            assert change is CHANGES["an attempt replaces another"]
    return is_completed


def test_another_worker_continues_after_a_crash_anywhere(world: World) -> None:
    world.settle()
    statement, crashed = 0, True
    while crashed:
        statement += 1
        world.put("demo", spec("brno-h1"), attempt=statement)
        crashed = not try_change(world, lambda world: world.converge("brno-sw1"), statement)
        world.close()
        world.service = world.restarted()
        with world.store.change_row() as unit:
            release_leases_of(unit, "sbf@one")
        reconcile_brno(world)
        assert world.view("demo").state is ClusterState.ACTIVE
        assert world.switches["brno-sw1"].carried() == {"p1": str(world.view("demo").vlans["brno"])}
        world.delete("demo")
        reconcile_brno(world)
        assert world.switches["brno-sw1"].carried() == {}
        assert str(world.site("brno").claimed) == ""
    assert statement > 10


def reconcile_brno(world: World) -> None:
    world.converge("brno-sw1")
    world.confirm("brno-h1", world.element("brno-h1").wanted_revision)
