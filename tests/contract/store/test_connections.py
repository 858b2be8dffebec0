from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Barrier

import pytest
from psycopg import OperationalError as DriverError
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import OperationalError

from sbf_service.store.connections.database import make_engine
from sbf_service.store.connections.limited_connection import LimitedConnection, SeparateConnection
from sbf_service.store.connections.replica_lock import hold_replica_name, hold_task
from sbf_service.store.maintenance.database_migration import begin_migration
from sbf_service.store.transactions.change_notices import listen_for_notices
from virtcloud.model.errors import DatabaseUnavailable

SIMULTANEOUS = 20
CREATE_SLOW_LOCK = text(
    "CREATE FUNCTION public.pg_try_advisory_lock(integer, integer) RETURNS boolean LANGUAGE sql "
    "AS 'SELECT true FROM pg_sleep(60)'"
)


def count_connections(engine: Engine, rounds: int) -> int:
    opened = []
    event.listen(engine, "connect", lambda *_: opened.append(1))
    for _ in range(rounds):
        together = Barrier(SIMULTANEOUS)

        def read(together: Barrier = together) -> None:
            with engine.connect() as connection:
                connection.execute(text("SELECT 1"))
                together.wait(60)

        with ThreadPoolExecutor(SIMULTANEOUS) as threads:
            for done in [threads.submit(read) for _ in range(SIMULTANEOUS)]:
                done.result()
    engine.dispose()
    return len(opened)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    find: Callable[[], str] = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/sbf.db",
        "postgresql": lambda: request.getfixturevalue("empty_postgresql"),
    }[request.param]
    return make_engine(find())


@pytest.mark.postgresql
def test_a_connection_that_the_server_closed_is_not_used(empty_postgresql: str) -> None:
    engine, other = make_engine(empty_postgresql), make_engine(empty_postgresql)
    with engine.connect() as connection:
        process = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
    with other.connect() as connection:
        connection.execute(text(f"SELECT pg_terminate_backend({process}, 10000)"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT pg_backend_pid()")).scalar_one() != process
    for one in (engine, other):
        one.dispose()


@pytest.mark.postgresql
def test_a_pooled_connection_without_socket_is_not_used(empty_postgresql: str) -> None:
    engine = make_engine(empty_postgresql)
    with engine.connect() as connection:
        driver_connection = connection.connection.driver_connection
    assert driver_connection is not None
    driver_connection.close()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    engine.dispose()


@pytest.mark.postgresql
def test_a_server_that_does_not_answer_is_unavailable(empty_postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitedConnection, "answer_limit_s", 0.2)
    engine = make_engine(empty_postgresql)
    with pytest.raises(OperationalError, match=r"the database server did not answer within 0.2 s"):
        sleep(engine, seconds=60)
    monkeypatch.undo()
    sleep(engine, seconds=0)
    engine.dispose()


@pytest.mark.postgresql
def test_a_migration_can_take_longer_than_other_statements(
    empty_postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitedConnection, "answer_limit_s", 0.2)
    engine = make_engine(empty_postgresql)
    with begin_migration(engine) as connection:
        connection.execute(text("SELECT pg_sleep(0.5)"))
    with pytest.raises(OperationalError, match="did not answer"):
        sleep(engine, seconds=60)
    engine.dispose()


@pytest.mark.postgresql
def test_a_listener_fails_if_the_server_does_not_answer(empty_postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the change reader would wait for ever, and publish no changes of other replicas."""
    engine = make_engine(empty_postgresql)
    with listen_for_notices(engine, "one") as listener:
        listener.check()
        monkeypatch.setattr(SeparateConnection, "answer_limit_s", 0.2)
        with pytest.raises(DriverError, match=r"the database server did not answer within 0.2 s"):
            listener.connection.execute("SELECT pg_sleep(60)")
    engine.dispose()


@pytest.mark.postgresql
@pytest.mark.parametrize("hold", [hold_replica_name, hold_task])
def test_an_advisory_lock_without_an_answer_is_unavailable(
    slow_locks: Engine, monkeypatch: pytest.MonkeyPatch, hold: Callable[[Engine, str], AbstractContextManager[object]]
) -> None:
    monkeypatch.setattr(SeparateConnection, "answer_limit_s", 0.2)
    with pytest.raises(DatabaseUnavailable), hold(slow_locks, "one"):
        pass


@pytest.fixture
def slow_locks(empty_postgresql: str) -> Iterator[Engine]:
    """A database that answers requests for advisory locks after a minute."""
    engine = make_engine(f"{empty_postgresql}&options=-c%20search_path%3Dpublic,pg_catalog")
    with engine.begin() as connection:
        connection.execute(CREATE_SLOW_LOCK)
    yield engine
    engine.dispose()


def sleep(engine: Engine, seconds: float) -> None:
    with engine.connect() as connection:
        connection.execute(text(f"SELECT pg_sleep({seconds})"))


def test_a_connection_is_used_again_after_a_burst(engine: Engine) -> None:
    assert count_connections(engine, rounds=3) == SIMULTANEOUS


@pytest.mark.postgresql
@pytest.mark.parametrize(("query", "timeout"), [("", "20000"), ("&tcp_user_timeout=7000", "7000")])
def test_listeners_detect_an_unreachable_server_in_time(empty_postgresql: str, query: str, timeout: str) -> None:
    """Without ``tcp_user_timeout``, Linux would repeat the listener's query for a quarter of an hour."""
    engine = make_engine(f"{empty_postgresql}{query}")
    with listen_for_notices(engine, "one") as listener:
        assert listener.connection.info.get_parameters()["tcp_user_timeout"] == timeout
