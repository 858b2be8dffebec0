import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from threading import Barrier, Event

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool
from support.programs.postgres import PostgresServer
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.world import World, spec

from sbf_service.bootstrap import SbfService
from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.store.connections.database import make_engine, probe_write
from sbf_service.store.elements.leases import acquire_lease
from sbf_service.store.maintenance.database_migration import begin_migration, migrate
from sbf_service.store.store import Store
from sbf_service.store.tables.columns import read_database_clock
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import BadInput, Conflict, DatabaseUnavailable
from virtcloud.model.views import Problem

pytestmark = pytest.mark.postgresql


@pytest.fixture
def database(postgresql: str) -> str:
    return postgresql


def test_simultaneously_started_replicas_migrate_one_after_another(empty_postgresql: str) -> None:
    engines = [make_engine(empty_postgresql) for _ in range(4)]
    start = Barrier(4)

    def begin(number: int) -> None:
        start.wait()
        migrate(engines[number])

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(begin, range(4))) == [None] * 4
    with engines[0].connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM topology")).scalar_one() == 1
    for engine in engines:
        engine.dispose()


def count_idle_connections(service: SbfService) -> int:
    pool = service.store.engine.pool
    assert isinstance(pool, QueuePool)
    return pool.checkedin()


def test_a_world_closes_the_connections_of_its_services(postgresql: str) -> None:
    """Python warns when it deletes the object of an open connection, possibly during another test."""
    made = World(postgresql)
    made.furnish()
    former = made.service
    made.service = made.restarted()
    made.settle()
    assert count_idle_connections(former) > 0
    made.close()
    assert [count_idle_connections(one) for one in (former, made.service)] == [0, 0]


def test_names_sort_independently_of_the_servers_locale(world: World) -> None:
    """The locale of the tests' PostgreSQL server ignores hyphens when it sorts."""
    with world.store.engine.connect() as connection:
        query = "SELECT x FROM (VALUES ('brno-sw1'), ('brnoa')) AS t(x) ORDER BY x"
        assert connection.execute(text(query)).scalars().all() == ["brnoa", "brno-sw1"]
        elements = connection.execute(text("SELECT name FROM elements ORDER BY name")).scalars().all()
    assert elements == sorted(elements)


def test_a_suspended_replica_loses_its_locks(world: World) -> None:
    """PostgreSQL ends the transaction of the suspended replica, which gets an error at its next statement."""
    suspended = Store(make_engine(f"{world.database}&options=-c%20idle_in_transaction_session_timeout=300"))

    def continue_after_timeout() -> None:
        with suspended.change() as unit:
            unit.session.execute(text("UPDATE sites SET present = false"))
            world.put("demo", spec("brno-h1"))
            unit.session.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnavailable):
        continue_after_timeout()
    suspended.close()
    assert world.view("demo").state is ClusterState.CONFIGURING
    with world.store.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM sites WHERE present")).scalar_one() == 3


def test_the_sort_order_of_the_tests_ignores_hyphens(empty_postgresql: str) -> None:
    """A dependence on the order of bytes is therefore found."""
    engine = make_engine(empty_postgresql)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 'aa' < 'a-b' AND 'a-b' < 'B'")).scalar_one()
    engine.dispose()


def wait_for_waiting(world: World) -> None:
    ends = time.monotonic() + 10
    with world.store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one():
            assert time.monotonic() < ends, "no transaction waits for a lock"
            time.sleep(0.005)


def test_a_deadlock_is_reported_as_a_conflict(world: World) -> None:
    """Another connection locks the same rows in the opposite order. PostgreSQL ends the service's transaction."""
    other_connection = world.store.engine.connect()
    other_connection.execute(text("SELECT 1 FROM sites WHERE name = 'praha' FOR UPDATE"))
    waiting = Event()

    def deadlock() -> None:
        waiting.wait(10)
        other_connection.execute(text("SET deadlock_timeout = '10s'"))
        other_connection.execute(text("SELECT 1 FROM topology FOR UPDATE"))

    def change() -> None:
        with world.store.change_row() as unit:
            unit.session.execute(text("SET LOCAL deadlock_timeout = '50ms'"))
            unit.session.execute(text("SELECT 1 FROM topology FOR UPDATE"))
            waiting.set()
            # The service's connection searches once for a deadlock, 50 ms after its next statement begins to wait.
            # Therefore the other connection must already wait before this statement.
            wait_for_waiting(world)
            unit.session.execute(text("SELECT 1 FROM sites WHERE name = 'praha' FOR UPDATE"))

    with ThreadPoolExecutor(1) as threads:
        deadlocking = threads.submit(deadlock)
        with pytest.raises(Conflict, match="another call changed the same rows at the same time: try again"):
            change()
        deadlocking.result(10)
    other_connection.close()


def test_two_simultaneous_requests_get_one_lease(world: World) -> None:
    start = Barrier(8)

    def acquire(holder: str) -> int | None:
        start.wait()
        with world.store.change_row() as unit:
            return acquire_lease(unit, "brno-sw1", holder, world.service.settings.timing.lease)

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(acquire, (f"sbf@r{number}" for number in range(8))))
    assert sorted(answers, key=str) == [1, *[None] * 7]


def test_two_simultaneous_first_probes_of_a_replica_succeed(world: World) -> None:
    both_began = Barrier(2)

    def read_clock(session: Session) -> datetime:
        both_began.wait(10)
        return read_database_clock(session)

    store = replace(world.store, clock=read_clock)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: probe_write(store, "r1"), range(2))) == [None, None]


def test_a_database_restart_is_a_temporary_503(world: World, postgres_server: PostgresServer) -> None:
    world.put("demo", spec("brno-h1"))
    postgres_server.stop(signal.SIGQUIT)
    answer = ask(world, "GET", "/v1/clusters/demo")
    assert answer.headers["content-type"] == "application/problem+json"
    problem = Problem.model_validate_json(answer.content)
    assert (problem.status, problem.type) == (503, "urn:virtcloud:problem:database-unavailable")
    assert problem.detail == ("the database does not answer: try again later; it is safe to repeat the call")
    postgres_server.start()
    assert ask(world, "GET", "/v1/clusters/demo").json()["state"] == "configuring"


def test_a_lost_database_is_no_error_of_a_switch(world: World, postgres_server: PostgresServer) -> None:
    world.settle()
    world.put("demo", spec("brno-h1"))

    def restart() -> None:
        postgres_server.stop(signal.SIGQUIT)
        postgres_server.start()

    switch = world.switches["brno-sw1"]
    switch.before_apply = restart
    with world.store.engine.connect():
        pass
    assert world.converge("brno-sw1") is ReconcileOutcome.CONFIRMED
    assert world.element("brno-sw1").trouble is None


def test_a_replica_waits_for_a_long_migration(postgresql: str) -> None:
    migrating, starting = make_engine(postgresql), make_engine(f"{postgresql}&options=-c%20lock_timeout%3D100ms")
    with ThreadPoolExecutor(1) as pool:
        with begin_migration(migrating):
            started = pool.submit(migrate, starting)
            time.sleep(1)
        started.result()
    migrating.dispose()
    starting.dispose()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "postgresql://sbf@/sbf?host=/nowhere",
            "cannot be opened for writing: connection is bad: .*No such file or directory Is the server",
        ),
        ("postgresql://sbf@/sbf?password=hunter2", r"put the password into a file, and write \?passfile=FILE"),
        ("mysql://sbf@/sbf", "neither SQLite nor PostgreSQL"),
        ("postgresql://sbf:hunter2@127.0.0.1:1/sbf", r"database postgresql://sbf:\*\*\*@127.0.0.1:1/sbf cannot"),
    ],
)
def test_an_invalid_address_is_refused_without_its_password(address: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        migrate(make_engine(address))
    assert "hunter2" not in str(caught.value)
