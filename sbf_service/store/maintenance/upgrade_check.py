"""The checks of ``sbf upgrade``: the list of missing migrations, and a trial that leaves the database unchanged.

On SQLite, the trial migrates a copy. On PostgreSQL, it rolls its transaction back.
"""

import shutil
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from sbf_service.store.connections.database import explain_error, make_engine, show_address
from sbf_service.store.maintenance.database_migration import (
    begin_migration,
    check_encoding,
    list_migrations,
    newest_migration,
    upgrade_database,
)
from sbf_service.store.vlans.transport_vlans import VlanCollision, list_collisions
from virtcloud.model.errors import BadInput

TRIAL_LOCK_TIMEOUT_S = 10
SPACE_FACTOR = 2
"""The free space that a trial needs, as a multiple of the database's size.

SQLite's journal needs as much space as the copy if a migration rewrites every table.
"""


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """The last migration that was applied to a database, and the migrations that the database lacks.

    ``current`` is None for a database without tables. ``missing`` contains pairs of migration number and description.
    """

    current: str | None
    missing: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class UpgradeTrial:
    """The duration of a successful trial in seconds, and the VLAN collisions in the upgraded database."""

    seconds: float
    collisions: Sequence[VlanCollision]


class _RollBack(Exception):
    """Raised after a successful trial, to roll the trial's transaction back."""

    def __init__(self, collisions: Sequence[VlanCollision]) -> None:
        super().__init__()
        self.collisions = collisions


def plan_upgrade(engine: Engine) -> UpgradePlan:
    """Return the missing migrations.

    Raise BadInput if the database cannot be read, or if a newer version migrated the database. Raise the errors of
    :func:`check_encoding`.
    """
    try:
        with engine.connect() as connection:
            check_encoding(connection)
            current = _read_migration(connection)
    except SQLAlchemyError as error:
        raise BadInput(f"database {show_address(engine)}: cannot be read: {explain_error(error)}") from error
    migrations = list_migrations()
    if current is not None and current not in migrations:
        raise BadInput(
            f"database {show_address(engine)}: expected a migration up to {newest_migration()}, found {current} of a "
            "newer version: install that version, or restore a backup of the installed version (sbf restore)"
        )
    missing = [name for name in migrations if current is None or name > current]
    return UpgradePlan(current, tuple((name, _describe_migration(migrations[name])) for name in missing))


def try_upgrade(engine: Engine) -> UpgradeTrial:
    """Try all missing migrations, and change nothing.

    Raise BadInput if the migrations would fail, or if SQLite's disk has too little space.
    """
    trial = _try_in_transaction if engine.dialect.name == "postgresql" else _try_on_copy
    started = time.monotonic()
    try:
        collisions = trial(engine)
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise BadInput(
            f"database {show_address(engine)}: the upgrade would fail, and nothing was changed: {explain_error(error)}"
        ) from error
    return UpgradeTrial(time.monotonic() - started, collisions)


def read_collisions(engine: Engine) -> Sequence[VlanCollision]:
    """Return the VLAN collisions in a database of this version (:func:`list_collisions`)."""
    with engine.connect() as connection:
        return list_collisions(connection)


def _try_on_copy(engine: Engine) -> Sequence[VlanCollision]:
    file = Path(str(engine.url.database))
    needed, free = SPACE_FACTOR * file.stat().st_size, shutil.disk_usage(file.parent).free
    if free < needed:
        raise BadInput(
            f"folder {file.parent}: expected {_format_mib(needed)} of free space for the upgrade, found "
            f"{_format_mib(free)}: first delete files on this disk, or extend the disk"
        )
    with TemporaryDirectory(prefix=".sbf-upgrade-", dir=file.parent) as folder:
        copy = Path(folder) / "copy.db"
        address = f"{file.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        trial = make_engine(f"sqlite:///{copy}")
        try:
            with begin_migration(trial) as connection:
                upgrade_database(connection)
                return list_collisions(connection)
        finally:
            trial.dispose()


def _try_in_transaction(engine: Engine) -> Sequence[VlanCollision]:
    try:
        with begin_migration(engine) as connection:
            connection.execute(text(f"SET LOCAL lock_timeout = '{TRIAL_LOCK_TIMEOUT_S}s'"))
            upgrade_database(connection)
            raise _RollBack(list_collisions(connection))  # noqa: TRY301 - must leave the transaction's block
    except _RollBack as success:
        return success.collisions


def _read_migration(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _describe_migration(module: str) -> str:
    return (import_module(module).__doc__ or "").partition("\n")[0]


def _format_mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
