"""Bringing a database to the tables of this version, at every start; nothing is done when it is there already."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.exc import SQLAlchemyError

from virtcloud.model.errors import BadInput

MIGRATING = 0x76697274
"""The number of PostgreSQL's advisory lock that is held while migrating ("virt")."""


def migrate(engine: Engine) -> None:
    """Apply what is missing, all in one transaction; may be repeated, and by several replicas at once.

    Raises BadInput when the database cannot be opened or written, or was made by a newer version.
    """
    shown = engine.url.render_as_string(hide_password=True)
    try:
        with engine.execution_options(virtcloud_write=True).connect() as connection, _tables_made_anew(connection):
            _upgrade(connection)
    except CommandError as error:
        raise BadInput(f"database {shown} was made by a newer version of virtcloud ({error}): upgrade sbf") from error
    except SQLAlchemyError as error:
        cause = " ".join(str(getattr(error, "orig", None) or error).split())
        raise BadInput(
            f"database {shown} cannot be opened for writing: {cause}; check its address and rights"
        ) from error


def config() -> Config:
    """Say where the migrations are."""
    found = Config()
    found.set_main_option("script_location", str(files("sbf_service.store").joinpath("migrations")))
    return found


@contextmanager
def _tables_made_anew(connection: Connection) -> Iterator[None]:
    """Begin a transaction in which a table of SQLite can be replaced by a changed copy, as it must be for constraints.

    To drop the old one looks like losing all that refers to it, so these references are held against the new one at
    the end. SQLite takes this setting between transactions only.
    """
    sqlite = connection.dialect.name == "sqlite"
    raw = connection.connection.cursor()
    if sqlite:
        raw.execute("PRAGMA foreign_keys=OFF")
    try:
        with connection.begin():
            yield
            if sqlite and (lost := connection.exec_driver_sql("PRAGMA foreign_key_check").all()):
                raise BadInput(f"the database could not be brought to this version: rows refer to none: {lost}")
    finally:
        if sqlite:
            raw.execute("PRAGMA foreign_keys=ON")
        raw.close()


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(MIGRATING)))
    settings = config()
    head = ScriptDirectory.from_config(settings).get_current_head()
    if MigrationContext.configure(connection).get_current_revision() == head:
        return
    settings.attributes["connection"] = connection
    command.upgrade(settings, "head")
