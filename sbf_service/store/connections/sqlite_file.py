"""A database in a SQLite file: its engine, the rights of the file, and the check that the file was not replaced."""

import os
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from sbf_service.store.connections.database_errors import report_damaged_file

OWNER_ONLY, BY_OTHERS = 0o600, 0o007
SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")
BUSY_TIMEOUT_S, LOCK_POLL_S = 30.0, 0.01


def make_sqlite_engine(address: URL) -> Engine:
    """Create an engine for a database in a file or in memory.

    Only its owner can read a new file.
    """
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

    A connection writes to the file that it has opened, even if this file no longer has a name. Its rows would be lost
    at the end of the process.
    """

    path: str
    _opened: tuple[int, int] | None = None

    def require_reachable(self, *_arguments: object) -> None:
        """Raise OperationalError if a new connection would open a file other than the first transaction's file.

        Instead of a missing file, SQLite would create a new one, and delete the former file's write-ahead log with
        committed rows. If the former file came back, old and new connections would use two different logs.
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
    """Create a missing database file that only its owner can read (SQLite's default mode permits everybody).

    If users outside an existing file's group can access it or SQLite's files next to it, restrict the access to the
    owner. An administrator may have given access to the group. Ignore errors, which the later opening of the database
    reports, too.
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

    While the write-ahead log is not enabled, SQLite can report such a lock without waiting.
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
    """Begin a transaction. A writer locks the database first, so that two writers do not deadlock."""
    writes = connection.get_execution_options().get("virtcloud_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
