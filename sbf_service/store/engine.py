"""Connections to SQLite and PostgreSQL: how long they wait, and how each begins a unit of work."""

from contextlib import suppress
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry

from virtcloud.model.errors import BadInput

OWNERS, EVERYBODYS = 0o600, 0o007
BESIDE = ("-wal", "-shm", "-journal")
BUSY_TIMEOUT_S = 30.0
CONNECTIONS = {"pool_size": 10, "max_overflow": 15}
"""At most, for each replica: three of them fit into PostgreSQL's own default of 100."""
PATIENCE = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "options": "-c idle_in_transaction_session_timeout=15s -c lock_timeout=30s",
}
"""libpq's and the server's settings: a database that vanished is noticed in half a minute, and a replica that was
stopped in the middle of a unit of work loses its locks, and nothing else, after 15 s. The address may say otherwise."""


def make_engine(url: str) -> Engine:
    """Make an engine for SQLite or PostgreSQL; nothing is connected yet. Raises BadInput for no such address."""
    try:
        address = make_url(url)
        makers = {"sqlite": _sqlite, "postgresql": _postgresql}
        if address.get_backend_name() not in makers:
            raise ArgumentError("neither SQLite nor PostgreSQL")  # noqa: TRY301 - said as of any other bad address
        return makers[address.get_backend_name()](address)
    except (ArgumentError, ImportError) as error:
        raise BadInput(
            f"database: expected an address such as sqlite:////var/lib/virtcloud/sbf.db or "
            f"postgresql://user@host/name, got one that cannot be used: {error}"
        ) from error


def _postgresql(address: URL) -> Engine:
    if "password" in address.query:
        raise ArgumentError("a password after '?' would be shown: put it into a file, and say ?passfile=FILE")
    ours = {name: value for name, value in PATIENCE.items() if name not in address.query}
    chosen = address.set(drivername="postgresql+psycopg")
    return create_engine(chosen, pool_pre_ping=True, connect_args=ours, **CONNECTIONS)


def _sqlite(address: URL) -> Engine:
    if address.database and address.database != ":memory:" and "uri" not in address.query:
        _keep_to_its_owner(Path(address.database))
    engine = create_engine(address, connect_args={"timeout": BUSY_TIMEOUT_S}, max_overflow=-1)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _keep_to_its_owner(file: Path) -> None:
    """Create a database's file for its owner alone: SQLite itself would let everybody read it.

    A file that everybody can read already, and what SQLite writes beside it, is taken from all but its owner; a group
    that an administrator chose stays. What cannot be created is reported when it is opened.
    """
    with suppress(OSError):
        file.touch(mode=OWNERS, exist_ok=False)
    for one in (file, *(file.with_name(f"{file.name}{suffix}") for suffix in BESIDE)):
        with suppress(OSError):
            if one.stat().st_mode & EVERYBODYS:
                one.chmod(OWNERS)


def _prepare_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    """Leave transactions to :func:`_begin_sqlite`; let readers go on while one writes; keep foreign keys."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Say at once that a unit will write, so that two never both read and then wait for each other."""
    writes = connection.get_execution_options().get("virtcloud_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
