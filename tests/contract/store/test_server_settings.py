from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from sqlalchemy import Engine, inspect, make_url, select, text

from sbf_service.store.connections.database import explain_error, make_engine
from sbf_service.store.connections.database_errors import translate_errors
from sbf_service.store.maintenance import database_migration
from sbf_service.store.maintenance.database_migration import migrate
from sbf_service.store.maintenance.upgrade_check import plan_upgrade
from sbf_service.store.store import Store
from sbf_service.store.tables.columns import database_now
from sbf_service.store.topology.current_topology import read_topology_version
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.errors import BadInput, DatabaseUnavailable

pytestmark = pytest.mark.postgresql


@pytest.mark.parametrize("style", ["German", "SQL, DMY", "Postgres, MDY"])
def test_times_are_read_with_any_default_date_style(empty_postgresql: str, style: str) -> None:
    """The library psycopg can read a time with a time zone only if the time has PostgreSQL's ISO format."""
    engine = make_engine(empty_postgresql)
    with engine.connect() as connection:
        connection.execute(text(f"ALTER DATABASE {make_url(empty_postgresql).database} SET datestyle = '{style}'"))
        connection.commit()
        expected = connection.execute(select(database_now())).scalar_one()
    engine.dispose()
    with engine.connect() as connection:
        assert connection.execute(select(database_now())).scalar_one() >= expected
    engine.dispose()


def test_reads_preserve_the_prepared_statements_of_a_connection(postgresql: str) -> None:
    store = Store(make_engine(postgresql))
    for _ in range(6):  # psycopg prepares the sixth execution of a statement
        with store.read() as unit:
            read_topology_version(unit)
    with store.read() as unit:
        count = text("SELECT count(*) FROM pg_prepared_statements")
        assert unit.connection.execute(count).scalar_one() == 1
    store.close()


@pytest.fixture
def make_encoded(empty_postgresql: str) -> Iterator[Callable[[str], Engine]]:
    """A function that creates an empty database with an encoding, and returns its engine."""
    server = make_engine(empty_postgresql).execution_options(isolation_level="AUTOCOMMIT")
    created: dict[str, Engine] = {}

    def make(encoding: str) -> Engine:
        name = f"{make_url(empty_postgresql).database}_{encoding.lower()}"
        options = f"TEMPLATE template0 ENCODING '{encoding}' LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C'"
        with server.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} {options}"))
        address = make_url(empty_postgresql).set(database=name)
        created[name] = make_engine(address.render_as_string(hide_password=False))
        return created[name]

    yield make
    for name, engine in created.items():
        engine.dispose()
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name}"))
    server.dispose()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_texts_are_read_as_strings_in_any_database_encoding(
    make_encoded: Callable[[str], Engine], encoding: str
) -> None:
    """Without an encoding of the client, psycopg would return bytes from a database with the encoding SQL_ASCII."""
    with make_encoded(encoding).connect() as connection:
        assert connection.execute(text("SELECT CAST('caf\u00e9' AS text)")).scalar_one() == "caf\u00e9"


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
@pytest.mark.parametrize("check", [migrate, plan_upgrade])
def test_tables_are_not_created_in_another_encoding_than_utf8(
    make_encoded: Callable[[str], Engine], encoding: str, check: Callable[[Engine], object]
) -> None:
    engine = make_encoded(encoding)
    with pytest.raises(BadInput, match=rf"expected the encoding UTF8, found {encoding}, which cannot store all texts"):
        check(engine)
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == []


def test_an_existing_database_in_another_encoding_causes_a_warning(
    make_encoded: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Earlier versions created tables in databases of any encoding. An upgrade must not stop these installations."""
    engine = make_encoded("LATIN1")
    with monkeypatch.context() as patch:
        patch.setattr(database_migration, "check_encoding", lambda _connection: None)
        migrate(engine)
    migrate(engine)
    (warning,) = [line for line in caplog.messages if line.startswith("database_encoding ")]
    assert "why='expected the encoding UTF8, found LATIN1, which cannot store all texts' remedy=\"stop SBF, " in warning


def test_options_in_the_address_keep_the_other_options(empty_postgresql: str) -> None:
    """An administrator may add options to the database's address, for example to set a ``search_path``.

    If these options replaced all of SBF's options, a suspended replica would hold its locks for ever.
    """
    engine = make_engine(f"{empty_postgresql}&options=-c%20search_path%3Dpublic%20-c%20lock_timeout%3D7s")
    names = ("search_path", "lock_timeout", "idle_in_transaction_session_timeout")
    with engine.connect() as connection:
        values = [connection.execute(text(f"SHOW {name}")).scalar_one() for name in names]
    engine.dispose()
    assert values == ["public", "7s", "15s"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("where", ["database", "address"])
def test_changes_read_what_others_committed_at_any_default_isolation(
    empty_postgresql: str, where: str, level: str
) -> None:
    """At another isolation level, a change that waited for a lock would not see the former holder's change."""
    query = (
        f"&options=-c%20default_transaction_isolation%3D{level.replace(' ', '%5C%20')}" if where == "address" else ""
    )
    migrate(made := make_engine(empty_postgresql))
    if where == "database":
        with made.connect() as connection:
            name = make_url(empty_postgresql).database
            connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'"))
            connection.commit()
    made.dispose()
    store = Store(make_engine(f"{empty_postgresql}{query}"))
    assert [read_isolation(store.change), read_isolation(store.read), read_isolation(store.change)] == [
        "read committed",
        "repeatable read",
        "read committed",
    ]
    store.close()


def read_isolation(begin: Callable[[], AbstractContextManager[Unit]]) -> str:
    with begin() as unit:
        return str(unit.connection.execute(text("SHOW transaction_isolation")).scalar_one())


@pytest.mark.parametrize(
    ("statement", "remedy"),
    [
        ("SET LOCAL ROLE pg_monitor; SELECT 1 FROM pg_authid", "give SBF's role all rights on its tables"),
        ("SET LOCAL search_path = pg_catalog; SELECT 1 FROM audit", "set search_path of SBF's role to the schema"),
        ("VALUES (1) FOR UPDATE", "check the address and the rights"),  # the error code of a standby
        (
            "SET TRANSACTION READ ONLY; CREATE TABLE t ()",
            "change the setting 'database' to the address of the primary server",
        ),
        ("SET LOCAL statement_timeout = 1; SELECT pg_sleep(9)", "raise statement_timeout of SBF's role"),
    ],
    ids=["no right", "another schema", "standby", "read only", "statement timeout"],
)
def test_a_server_that_refuses_statements_is_unavailable(
    empty_postgresql: str, caplog: pytest.LogCaptureFixture, statement: str, remedy: str
) -> None:
    """The caller gets status 503, and SBF logs one line: an administrator's setting is not a fault in SBF."""
    engine = make_engine(empty_postgresql)
    with pytest.raises(DatabaseUnavailable) as raised, translate_errors(), engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()
    assert [line.split(" ")[0] for line in caplog.messages] == ["database_unavailable"]
    assert raised.value.__cause__ is not None
    assert remedy in explain_error(raised.value.__cause__)
