"""Checks whether migrations of the database are missing, and applies the missing migrations."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files

from sqlalchemy import Connection, Engine, func, inspect, select, text
from sqlalchemy.exc import SQLAlchemyError

from sbf_service.log import get_log
from sbf_service.store.connections.database import explain_error, show_address
from sbf_service.store.store import Store
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlans.transport_vlans import repair_claims
from virtcloud.model.errors import BadInput

MIGRATION_LOCK = 0x76697274
"""The key of PostgreSQL's advisory lock during a migration (the letters "virt")."""
log = get_log(__name__)


def migrate(engine: Engine) -> bool:
    """Apply the missing migrations, and repair claims, in one transaction. Idempotent, also with simultaneous replicas.

    Return whether the database had no tables of SBF before. Raise BadInput if the database cannot be opened or written,
    if a newer version migrated the database, if the encoding of a new PostgreSQL database is not UTF8, or if rows refer
    to missing rows afterwards.
    """
    shown = show_address(engine)
    try:
        with begin_migration(engine) as connection:
            is_new = not inspect(connection).has_table("alembic_version")
            upgrade_database(connection)
            repair_claims(connection)
    except SQLAlchemyError as error:
        raise BadInput(
            f"database {shown} cannot be opened for writing: {explain_error(error)}; nothing was changed"
        ) from error
    return is_new


@contextmanager
def begin_migration(engine: Engine) -> Iterator[Connection]:
    """Begin a transaction that can change tables. Other starting replicas wait for the end of the transaction.

    On SQLite, if rows refer to missing rows at the end, roll the transaction back and raise BadInput.
    """
    with engine.execution_options(virtcloud_write=True).connect() as connection:
        begin = _begin_on_postgresql if connection.dialect.name == "postgresql" else _begin_on_sqlite
        with begin(connection):
            yield connection


@contextmanager
def _begin_on_postgresql(connection: Connection) -> Iterator[None]:
    """Begin a transaction that holds the migration lock, and whose statements have no time limit."""
    from sbf_service.store.connections.limited_connection import unlimited_answers  # noqa: PLC0415 - psycopg is slow to load

    with unlimited_answers(connection), connection.begin():
        connection.execute(text("SET LOCAL lock_timeout = 0"))  # a migration or a restore can hold the lock for minutes
        connection.execute(select(func.pg_advisory_xact_lock(MIGRATION_LOCK)))
        connection.execute(text("SET LOCAL lock_timeout TO DEFAULT"))
        yield


@contextmanager
def _begin_on_sqlite(connection: Connection) -> Iterator[None]:
    """Begin a transaction that can rebuild tables, to change constraints.

    A rebuild drops the old table, which would violate foreign keys. SQLite cannot disable foreign keys inside a
    transaction, so this is done before the transaction, and all foreign keys are checked before the commit.
    """
    raw = connection.connection.cursor()
    raw.execute("PRAGMA foreign_keys=OFF")
    try:
        with connection.begin():
            yield
            if lost := connection.exec_driver_sql("PRAGMA foreign_key_check").all():
                raise BadInput(
                    f"the database could not be migrated to this version: rows refer to missing rows: {lost}"
                )
    finally:
        raw.execute("PRAGMA foreign_keys=ON")
        raw.close()


def upgrade_database(connection: Connection, migration: str = "head") -> None:
    """Apply the missing migrations up to ``migration``.

    Raise BadInput if a newer version migrated the database. Raise the errors of :func:`check_encoding`.
    """
    check_encoding(connection)
    if migration != "head" or not is_migrated_to_newest(connection):
        from sbf_service.store.maintenance.alembic_upgrade import upgrade_to  # noqa: PLC0415 - slow to load, seldom needed

        upgrade_to(connection, migration)


def check_encoding(connection: Connection) -> None:
    """Check the encoding of a PostgreSQL database: raise BadInput for a new database whose encoding is not UTF8.

    Log a warning for an existing database with another encoding. With another encoding, a database cannot store all
    texts. With the encoding SQL_ASCII, PostgreSQL also counts bytes instead of characters, so that texts of a permitted
    length can be too long.
    """
    if connection.dialect.name != "postgresql":
        return
    encoding = connection.execute(text("SHOW server_encoding")).scalar()
    if encoding == "UTF8":
        return
    why = f"expected the encoding UTF8, found {encoding}, which cannot store all texts"
    create = "create a database with ENCODING 'UTF8' (createdb --encoding UTF8 --template template0)"
    if not inspect(connection).has_table("alembic_version"):
        raise BadInput(f"database {show_address(connection.engine)}: {why}: {create}")
    remedy = f"stop SBF, {create}, copy the tables (sbf backup, sbf restore), and set the address of the new database"
    log.warning("database_encoding", database=show_address(connection.engine), why=why, remedy=remedy)


def check_migrated(store: Store) -> None:
    """Raise BadInput unless the newest migration of this version is the database's newest migration."""
    with store.read() as unit:
        if not is_migrated(unit):
            raise BadInput(
                f"database: expected the tables of this version (migration {newest_migration()}), found another "
                "version: start this version's SBF first"
            )


def is_of_other_version(engine: Engine) -> bool:
    """Return whether the database can be opened and has tables of another version."""
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
