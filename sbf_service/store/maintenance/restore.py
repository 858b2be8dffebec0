"""``sbf restore``: replaces the database by a backup, in one transaction.

The transaction creates the tables of the backup's version, inserts the rows, and applies newer migrations, so that an
older backup can be restored. Finally, it marks all elements as unchecked, because they can have changed after the
backup (``restored_state.py``). If any step fails, the database is unchanged.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice

from sqlalchemy import Connection, Engine, MetaData, func, insert, inspect, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from sbf_service.store.connections.database import explain_error, show_address
from sbf_service.store.connections.replica_lock import check_unused, hold_whole_database
from sbf_service.store.maintenance.backup import BATCH, COUNTED_TABLE
from sbf_service.store.maintenance.backup_format import BackupFile, make_table
from sbf_service.store.maintenance.database_migration import begin_migration, newest_migration, upgrade_database
from sbf_service.store.maintenance.restored_state import REVISION_STEP, RestoreReport, record_restore
from sbf_service.store.tables.columns import read_database_clock
from sbf_service.store.tables.service_tables import ReplicaRow, ServiceSecretRow
from sbf_service.store.tables.tables import Base, TopologyRow
from sbf_service.store.topology.topology_cache import TopologyCache
from sbf_service.store.topology.topology_documents import read_stored_version
from sbf_service.store.unit_of_work import Clock, Unit
from virtcloud.model.errors import BadInput

VERSION_TABLE = "alembic_version"
MAX_ROWS = 50
"""The maximum number of rows in one INSERT. A row can contain megabytes, and PostgreSQL accepts at most 1 GiB."""
INITIAL_TABLES = frozenset({VERSION_TABLE, ServiceSecretRow.__tablename__, ReplicaRow.__tablename__})
"""Tables that may have rows although the database counts as empty."""


def restore_backup(  # noqa: PLR0913 - the options of the command, and the clock
    engine: Engine,
    backup: BackupFile,
    *,
    replace: bool,
    grace: timedelta,
    who: str,
    clock: Clock = read_database_clock,
) -> RestoreReport:
    """Restore a backup into a database that no SBF process uses, and return the report.

    The lease of each running cluster is extended to at least ``grace`` from now, because lease extensions after the
    backup are lost. Raise BadInput if a newer version made the backup, if the database is in use or, unless
    ``replace``, has rows, or if a step fails.
    """
    _check_version(backup)
    with hold_whole_database(engine), _transaction(engine) as connection:
        check_unused(connection)  # a replica may have started while this transaction waited for the lock of migrations
        former_version = _empty_database(connection, backup, replace=replace)
        _insert_rows(connection, backup)
        rows = _count_rows(connection, backup.rows)
        if rows != backup.rows:
            raise BadInput(f"expected {dict(backup.rows)} rows, found {rows}; the database was left unchanged")
        upgrade_database(connection)
        _set_counters(connection, backup.header.counters)
        with Session(connection) as session:
            unit = Unit(session, clock, TopologyCache(), who)
            report = record_restore(unit, backup.header, rows, grace, former_version)
            session.commit()
        _set_sequences(connection)
    return report


def _check_version(backup: BackupFile) -> None:
    header = backup.header
    if header.migration > newest_migration():
        raise BadInput(
            f"backup {backup.path}: expected tables of migration {newest_migration()} or older, found migration "
            f"{header.migration} of virtcloud {header.virtcloud}: upgrade virtcloud on this machine first; the "
            "database was left unchanged"
        )


@contextmanager
def _transaction(engine: Engine) -> Iterator[Connection]:
    shown = show_address(engine)
    try:
        with begin_migration(engine) as connection:
            yield connection
    except SQLAlchemyError as error:
        raise BadInput(
            f"database {shown} cannot be restored: {explain_error(error)}; the database was left unchanged"
        ) from error


def _empty_database(connection: Connection, backup: BackupFile, *, replace: bool) -> int:
    """Delete all rows of SBF's tables, and leave the database with the tables of the backup's version.

    Tables of other programs stay unchanged. Return the version of the deleted topology, or 0. Raise BadInput if the
    database has rows, unless ``replace``.
    """
    former_version = 0
    if inspect(connection).has_table(VERSION_TABLE):
        upgrade_database(connection)
        former_version = read_stored_version(connection)
        if not replace and (found := _list_used_tables(connection)):
            raise BadInput(
                f"database {show_address(connection.engine)}: expected an empty database, "
                f"found rows in {', '.join(found)}: set another database, or replace all rows with --replace; the "
                "database was left unchanged"
            )
        if backup.header.migration != newest_migration():
            Base.metadata.drop_all(connection)
            connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))
    upgrade_database(connection, backup.header.migration)
    own, tables = backup.header.tables.keys() | Base.metadata.tables.keys(), MetaData()
    tables.reflect(connection, only=lambda name, _: name in own)
    for table in reversed(tables.sorted_tables):  # migrations insert rows into new tables
        connection.execute(table.delete())
    return former_version


def _list_used_tables(connection: Connection) -> list[str]:
    counted = Base.metadata.tables.keys() - INITIAL_TABLES - {TopologyRow.__tablename__}
    used = [name for name, rows in _count_rows(connection, counted).items() if rows]
    if connection.execute(select(TopologyRow.common)).scalar() is not None:
        used.append(TopologyRow.__tablename__)
    return sorted(used)


def _count_rows(connection: Connection, names: Collection[str]) -> dict[str, int]:
    counting = {name: select(func.count()).select_from(make_table(name, {})) for name in sorted(names)}
    return {name: connection.execute(statement).scalar_one() for name, statement in counting.items()}


def _insert_rows(connection: Connection, backup: BackupFile) -> None:
    for name, rows in backup.read_tables():
        table = make_table(name, backup.header.tables[name])
        while batch := list(islice(rows, BATCH)):
            connection.execute(insert(table), batch, execution_options={"insertmanyvalues_page_size": MAX_ROWS})


def _set_counters(connection: Connection, counters: Mapping[str, int]) -> None:
    """Set the next row number of :data:`COUNTED_TABLE` far above all numbers that SBF can have assigned."""
    start = counters.get(COUNTED_TABLE, 0) + REVISION_STEP
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT setval('{COUNTED_TABLE}_number_seq', :start)"), {"start": start})
    else:  # delete the old row: of two rows with the same name, SQLite would use the first row
        connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": COUNTED_TABLE})
        connection.execute(
            text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :start)"),
            {"name": COUNTED_TABLE, "start": start},
        )


def _set_sequences(connection: Connection) -> None:
    """Set PostgreSQL's sequence of audit IDs to the highest ID, as SQLite does by itself."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT setval('audit_id_seq', (SELECT max(id) FROM audit))"))
