"""``sbf backup``: writes the database into a file while SBF runs, except the rows of `OMITTED_TABLES`.

The rows come from one snapshot, which blocks no writer: a read transaction on SQLite, a transaction with the isolation
level REPEATABLE READ on PostgreSQL.
"""

import gzip
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, Engine, select, text

from sbf_service.local_files import synchronize_folder
from sbf_service.store.connections.database_errors import translate_errors
from sbf_service.store.maintenance.backup_format import (
    BackupHeader,
    BackupWriter,
    ColumnKind,
    find_column_kind,
    make_table,
)
from sbf_service.store.maintenance.database_migration import is_migrated_to_newest, newest_migration
from sbf_service.store.tables import (  # noqa: F401 - their tables join the metadata of Base
    cluster_tables,
    gateway_tables,
    guest_tables,
    service_tables,
    ssh_tables,
    user_tables,
    vlan_tables,
    vpn_tables,
)
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import database_now
from sbf_service.store.tables.gateway_tables import TrafficRow
from sbf_service.store.tables.guest_tables import GuestSessionRow
from sbf_service.store.tables.service_tables import JobQuestionRow, ReplicaRow
from sbf_service.store.tables.tables import Base
from sbf_service.store.tables.user_tables import ConsoleSessionRow
from virtcloud import __version__
from virtcloud.model.errors import BadInput

OMITTED_TABLES = frozenset(
    row.__tablename__ for row in (ConsoleSessionRow, GuestSessionRow, JobQuestionRow, ReplicaRow, TrafficRow)
)
"""Tables that are not in a backup, because their rows are valid for minutes or hours only."""
COUNTED_TABLE = GuestSessionRow.__tablename__
"""A table that is not in a backup, but whose row numbers must not be reused: agents remember the highest number."""
BATCH = 1000
_LAST_SESSION = {
    "sqlite": "SELECT seq FROM sqlite_sequence WHERE name = 'guest_sessions'",
    "postgresql": "SELECT last_value FROM guest_sessions_number_seq",
}


def write_backup(engine: Engine, path: Path) -> tuple[datetime, Mapping[str, int]]:
    """Write a backup of the database to a new file.

    Return the time of the snapshot, and the number of rows of each table. Raise BadInput if the database belongs to
    another version of SBF, or if the file exists or cannot be written. A partly written file is deleted.
    """
    with translate_errors(), _read_snapshot(engine) as connection, _create_file(path) as file:
        header = _make_header(connection)
        writer = BackupWriter(file)
        writer.write_header(header)
        for name, columns in header.tables.items():
            writer.write_table(name, _read_rows(connection, name, columns))
        writer.write_trailer()
    return header.taken_at, writer.rows


def list_columns() -> dict[str, dict[str, ColumnKind]]:
    """Return the kinds of the columns, by table and column. A table follows the tables to which it refers."""
    return {
        table.name: {column.name: find_column_kind(column.type) for column in table.columns}
        for table in Base.metadata.sorted_tables
        if table.name not in OMITTED_TABLES
    }


@contextmanager
def _read_snapshot(engine: Engine) -> Iterator[Connection]:
    is_postgresql = engine.dialect.name == "postgresql"
    options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True} if is_postgresql else {}
    with engine.connect().execution_options(**options) as connection, connection.begin():
        if is_postgresql:  # the session is idle while a slow disk writes the file
            connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        yield connection


def _make_header(connection: Connection) -> BackupHeader:
    if not is_migrated_to_newest(connection):
        raise BadInput(
            f"database: expected the tables of this version (migration {newest_migration()}), found another version: "
            "back up with the program of the version that uses the database, or start this version's SBF first"
        )
    last = connection.execute(text(_LAST_SESSION[connection.dialect.name])).scalar()
    return BackupHeader(
        virtcloud=__version__,
        migration=newest_migration(),
        database=connection.dialect.name,
        taken_at=connection.execute(select(database_now())).scalar_one(),
        counters={COUNTED_TABLE: last or 0},
        tables=list_columns(),
    )


def _read_rows(connection: Connection, name: str, columns: Mapping[str, ColumnKind]) -> Iterator[tuple[object, ...]]:
    reading = select(table := make_table(name, columns))
    if name == ClusterRow.__tablename__:
        # A cluster that joined a network refers to the cluster that created the network. Therefore, the joining cluster
        # must come later.
        reading = reading.order_by(table.c.network.is_not(None))
    streaming = {"stream_results": True, "yield_per": BATCH}
    return (tuple(row) for row in connection.execute(reading, execution_options=streaming))


@contextmanager
def _create_file(path: Path) -> Iterator[gzip.GzipFile]:
    """Create a file that only its owner can read. The complete file gets its name when it is on the disk.

    An incomplete file has a random name (``.NAME.….new``), because another backup to ``path`` may run. A killed process
    leaves the incomplete file behind.
    """
    new: Path | None = None
    try:
        _require_missing(path)
        descriptor, name = tempfile.mkstemp(".new", f".{path.name}.", path.parent)
        new = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            with gzip.GzipFile(path.name, "wb", 6, file) as compressed:
                yield compressed
            file.flush()
            os.fsync(file.fileno())
        _require_missing(path)
        new.rename(path)
        synchronize_folder(path.parent)
    except OSError as error:
        raise BadInput(
            f"backup {path}: cannot be written: {error.strerror or error}: free space, or choose another folder"
        ) from error
    finally:
        if new is not None:
            with suppress(OSError):
                new.unlink(missing_ok=True)


def _require_missing(path: Path) -> None:
    if path.exists():
        raise BadInput(f"backup {path}: expected no file, found one: choose another name")
