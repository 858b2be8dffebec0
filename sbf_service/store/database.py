"""The database: engines for SQLite and PostgreSQL, migrations when the service starts, and the readiness probe."""

import os
import select as selecting
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event, func, inspect, make_url, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import ArgumentError, InvalidatePoolError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from sbf_service.store.database_errors import report_damaged_file
from sbf_service.store.postgresql_connections import choose_settings
from sbf_service.store.service_tables import ReplicaRow
from sbf_service.store.unit_of_work import Store, Unit
from virtcloud.model.errors import BadInput

OWNER_ONLY, BY_OTHERS = 0o600, 0o007
SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")
BUSY_TIMEOUT_S, LOCK_POLL_S = 30.0, 0.01
POOL_SETTINGS = {"pool_size": 25, "max_overflow": 0}
"""The maximum number of connections of a replica. Three replicas stay below PostgreSQL's default limit of 100.

``max_overflow`` is 0, because SQLAlchemy closes connections above ``pool_size`` after each use, and PostgreSQL starts a
process for each new connection.
"""
MAX_IDLE_S = 5.0
"""The maximum idle time of a connection in seconds.

If a connection was idle for a longer time, SBF checks the connection with a query before the next use.
"""
USED_AT = "used_at"


def make_engine(url: str, *, create: bool = True) -> Engine:
    """Create an engine for SQLite or PostgreSQL without connecting. Raise BadInput for an invalid address.

    If ``create`` is false, also raise BadInput if the SQLite file does not exist.
    """
    try:
        address = make_url(url)
        if not create and address.get_backend_name() == "sqlite" and not Path(str(address.database)).is_file():
            raise BadInput(f"database {address.database}: expected a file, found none: check the setting database")
        makers = {"sqlite": _make_sqlite, "postgresql": _make_postgresql}
        if address.get_backend_name() not in makers:
            raise ArgumentError("neither SQLite nor PostgreSQL")  # noqa: TRY301 - reported like any other invalid address
        return makers[address.get_backend_name()](address)
    except (ArgumentError, ImportError) as error:
        raise BadInput(
            "database: expected an address such as sqlite:////var/lib/virtcloud/sbf.db or postgresql://user@host/name, "
            f"got an unusable address: {error}"
        ) from error


def _make_postgresql(address: URL) -> Engine:
    if "password" in address.query:
        raise ArgumentError(
            "a password after '?' would appear in logs: put the password into a file, and write ?passfile=FILE"
        )
    url = address.set(drivername="postgresql+psycopg")
    engine = create_engine(url, connect_args=choose_settings(address), hide_parameters=True, **POOL_SETTINGS)
    event.listen(engine, "checkin", _record_use)
    event.listen(engine, "checkout", partial(_check_before_use, engine.dialect))
    return engine


def _record_use(_connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
    entry.info[USED_AT] = time.monotonic()


def _check_before_use(
    dialect: Dialect, connection: DBAPIConnection, entry: ConnectionPoolEntry, _proxy: PoolProxiedConnection
) -> None:
    """Raise InvalidatePoolError for a connection that the server has closed, so that the pool opens a new connection.

    The socket of a closed connection is readable. Only two kinds of connections are checked with a query: readable
    connections, and connections that were idle for more than :data:`MAX_IDLE_S`. A query before each use would take as
    long as reading a row.
    """
    used_at = entry.info.get(USED_AT)
    if used_at is None:
        return
    try:
        if time.monotonic() - used_at >= MAX_IDLE_S or _is_readable(connection):
            dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError from error


def _is_readable(connection: Any) -> bool:  # noqa: ANN401 - a connection of psycopg
    """Return whether the connection's socket has data or the end of the stream.

    Raise OperationalError if psycopg has closed the connection.
    """
    waiting = selecting.poll()
    waiting.register(connection.pgconn.socket, selecting.POLLIN)
    return bool(waiting.poll(0))


def _make_sqlite(address: URL) -> Engine:
    is_file = address.database and address.database != ":memory:" and "uri" not in address.query
    if is_file:
        _restrict_to_owner(Path(str(address.database)))
    timeout = {"timeout": BUSY_TIMEOUT_S}
    engine = create_engine(address, connect_args=timeout, hide_parameters=True, pool_size=0)  # 0: no limit
    event.listen(engine, "connect", _prepare_sqlite)
    if is_file:
        file = _DatabaseFile(str(address.database))
        event.listen(engine, "do_connect", file.require_reachable)
        event.listen(engine, "begin", file.require_unchanged)
    event.listen(engine, "begin", _begin_sqlite)
    event.listen(engine, "handle_error", report_damaged_file)
    return engine


@dataclass
class _DatabaseFile:
    """A SQLite file, as the first transaction found it.

    A connection writes to the file that it has opened, even if this file no longer has a name. The rows in a file
    without a name would be lost at the end of the process, and a later connection would use another file.
    """

    path: str
    _opened: tuple[int, int] | None = None

    def require_reachable(self, *_arguments: object) -> None:
        """Raise OperationalError if a new connection would open another file than the first transaction used.

        SQLite would create a missing file, and delete the write-ahead log of the former file, which still contains
        confirmed rows. When the former file is back, the connections would use two different logs.
        """
        if self._opened is not None:
            self.require_unchanged()

    def require_unchanged(self, *_connection: Connection) -> None:
        """Raise OperationalError if the file was deleted or replaced."""
        try:
            status = os.stat(self.path)  # noqa: PTH116 - runs before each transaction, and is faster than Path.stat
        except OSError as error:
            raise self._fault(str(error.strerror)) from error
        found = status.st_dev, status.st_ino
        if found != (self._opened or found):
            raise self._fault("another file")
        self._opened = found

    def _fault(self, found: str) -> OperationalError:
        cause = sqlite3.OperationalError(
            f"{self.path}: expected the file that SBF opened at its start, found: {found}; put the former file back, "
            "or stop SBF and restore a backup (sbf restore)"
        )
        return OperationalError("BEGIN", None, cause)


def _restrict_to_owner(file: Path) -> None:
    """Create a database file that only its owner can read. SQLite would create a file that everybody can read.

    If users outside an existing file's group can access the file, restrict the access to the owner. Do the same for
    SQLite's files next to it. A file that only the owner and the group can access stays unchanged, because an
    administrator may have configured this access. Ignore errors: the later opening of the database reports them.
    """
    with suppress(OSError):
        file.touch(mode=OWNER_ONLY, exist_ok=False)
    for path in (file, *(file.with_name(f"{file.name}{suffix}") for suffix in SQLITE_SUFFIXES)):
        with suppress(OSError):
            if path.stat().st_mode & BY_OTHERS:
                path.chmod(OWNER_ONLY)


def _prepare_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    """Disable implicit transactions (see :func:`_begin_sqlite`), and enable the write-ahead log and foreign keys."""
    connection.isolation_level = None
    cursor = connection.cursor()
    _enable_write_ahead_log(cursor)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _enable_write_ahead_log(cursor: DBAPICursor) -> None:
    """Enable the write-ahead log. Retry while another program has locked the database.

    SQLite can report such a lock without waiting, because the write-ahead log is not yet enabled.
    """
    ends = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > ends:
                raise
            time.sleep(LOCK_POLL_S)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    """Begin a transaction. A writer locks the database before its first read, so that two writers do not deadlock."""
    writes = connection.get_execution_options().get("virtcloud_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


REMEDIES = {
    ("is full", "No space left", "could not extend file"): "free space on the database's disk, and repeat the command",
    ("disk I/O error",): "free space on the database's disk, or replace the disk, and repeat the command",
    ("not a database", "malformed"): (
        "correct the setting database, or move the damaged file to another folder and restore a backup (sbf restore)"
    ),
    ("Connection refused", "timeout expired", "Network is unreachable", "No route to host"): (
        "start the database server, or correct the setting database"
    ),
    ("database is locked", "lock timeout"): "wait until the other program that uses the database has ended",
    ("permission denied",): "give SBF's role all rights on its tables",
    ("read-only transaction", "during recovery"): (
        "set the setting database to the primary server, or let the server accept changes"
    ),
    ("readonly database", "unable to open database file"): "give the file and its folder to SBF's user",
    ("too many connections", "remaining connection slots"): "raise the server's limit of connections (max_connections)",
    ("statement timeout",): "raise statement_timeout of SBF's role",
    ("no schema has been selected", 'relation "'): "set search_path of SBF's role to the schema of SBF's tables",
    ("could not translate host name", "failed to resolve host"): "correct the host in the setting database",
}
"""The remedies for errors of SQLite and PostgreSQL. Each key contains error texts with the same remedy."""
MIGRATION_LOCK = 0x76697274
"""The key of PostgreSQL's advisory lock during a migration (the letters "virt")."""


def migrate(engine: Engine) -> bool:
    """Apply the missing migrations in one transaction. Idempotent, also with simultaneous replicas.

    Return whether the database had no tables of SBF before. Raise BadInput if the database cannot be opened or written,
    or if a newer version migrated the database. Also raise BadInput if rows refer to missing rows after the
    migrations.
    """
    shown = show_address(engine)
    try:
        with begin_migration(engine) as connection:
            is_new = not inspect(connection).has_table("alembic_version")
            upgrade_database(connection)
    except SQLAlchemyError as error:
        raise BadInput(
            f"database {shown} cannot be opened for writing: {explain_error(error)}; nothing was changed"
        ) from error
    return is_new


def show_address(engine: Engine) -> str:
    """Return a database's address as in the settings, without password and driver."""
    return engine.url.set(drivername=engine.url.get_backend_name()).render_as_string(hide_password=True)


def explain_error(error: BaseException) -> str:
    """Return the text of an error of the database, with its remedy."""
    cause = " ".join(str(getattr(error, "orig", None) or error).split())
    remedies = (remedy for words, remedy in REMEDIES.items() if any(word in cause for word in words))
    return f"{cause}; {next(remedies, 'check the address and the rights of the database')}"


@contextmanager
def begin_migration(engine: Engine) -> Iterator[Connection]:
    """Begin a transaction that can change tables. Other starting replicas wait for the end of the transaction.

    On SQLite, if rows refer to missing rows at the end, roll the transaction back and raise BadInput.
    """
    with engine.execution_options(virtcloud_write=True).connect() as connection, _allow_table_rebuilds(connection):
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL lock_timeout = 0"))  # a migration or a restore can take minutes
            connection.execute(select(func.pg_advisory_xact_lock(MIGRATION_LOCK)))
            connection.execute(text("SET LOCAL lock_timeout TO DEFAULT"))
        yield connection


@contextmanager
def _allow_table_rebuilds(connection: Connection) -> Iterator[None]:
    """Begin a transaction that can rebuild SQLite tables, to change constraints.

    A rebuild drops the old table, which would violate foreign keys to this table. SQLite cannot disable foreign keys
    inside a transaction. Therefore, disable foreign keys before the transaction, and check all of them before the
    commit.
    """
    sqlite = connection.dialect.name == "sqlite"
    raw = connection.connection.cursor()
    if sqlite:
        raw.execute("PRAGMA foreign_keys=OFF")
    try:
        with connection.begin():
            yield
            if sqlite and (lost := connection.exec_driver_sql("PRAGMA foreign_key_check").all()):
                raise BadInput(
                    f"the database could not be migrated to this version: rows refer to missing rows: {lost}"
                )
    finally:
        if sqlite:
            raw.execute("PRAGMA foreign_keys=ON")
        raw.close()


def upgrade_database(connection: Connection, migration: str = "head") -> None:
    """Apply the missing migrations up to ``migration``. Raise BadInput if a newer version migrated the database."""
    if migration != "head" or not is_migrated_to_newest(connection):
        from sbf_service.store.alembic_upgrade import upgrade_to  # noqa: PLC0415 - slow to load, seldom needed

        upgrade_to(connection, migration)


def check_migrated(store: Store) -> None:
    """Raise BadInput unless the newest migration of this version is the database's newest migration."""
    with store.read() as unit:
        if not is_migrated(unit):
            raise BadInput(
                f"database: expected the tables of this version (migration {newest_migration()}), found another "
                "version: start this version's SBF first"
            )


def is_of_other_version(engine: Engine) -> bool:
    """Return whether the database has tables of another version. Return False if the database cannot be opened."""
    with suppress(SQLAlchemyError), engine.connect() as connection:
        return inspect(connection).has_table("alembic_version") and not is_migrated_to_newest(connection)
    return False


def is_migrated(unit: Unit) -> bool:
    """Return whether the database has all tables of this version."""
    return is_migrated_to_newest(unit.session.connection())


def is_migrated_to_newest(connection: Connection) -> bool:
    """Return whether the newest migration of this version is the database's newest migration."""
    if not inspect(connection).has_table("alembic_version"):
        return False
    return connection.scalars(text("SELECT version_num FROM alembic_version")).all() == [newest_migration()]


@cache
def newest_migration() -> str:
    """Return the number of this version's newest migration, such as ``"0049"``."""
    return max(list_migrations())


def list_migrations() -> dict[str, str]:
    """Return the module name of each migration, by number and in ascending order."""
    names = (file.name for file in files("sbf_service.store").joinpath("migrations", "versions").iterdir())
    found = sorted(name.removesuffix(".py") for name in names if name[:4].isdecimal())
    return {name[:4]: f"sbf_service.store.migrations.versions.{name}" for name in found}


def probe_write(store: Store, replica: str) -> None:
    """Update this replica's row and commit. Raise DatabaseUnavailable if the database cannot be written.

    A query would not suffice: a database on a full disk still answers queries.
    """
    with store.change_row(who=replica) as unit:
        row = {"name": replica, "wrote_at": unit.now}
        new = (postgresql if store.has_scopes else sqlite).insert(ReplicaRow).values(row)
        unit.session.execute(new.on_conflict_do_update(index_elements=[ReplicaRow.name], set_=row))
