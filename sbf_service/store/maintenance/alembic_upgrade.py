"""Applies migrations with Alembic.

The import of Alembic takes a quarter of a second, and is only needed for a database that lacks migrations.
"""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from sbf_service.store.connections.database import show_address
from virtcloud.model.errors import BadInput


def make_alembic_config() -> Config:
    """Return Alembic's configuration with the path of the migrations."""
    config = Config()
    config.set_main_option("script_location", str(files("sbf_service.store").joinpath("migrations")))
    return config


def upgrade_to(connection: Connection, migration: str) -> None:
    """Apply the missing migrations up to ``migration``.

    Raise BadInput if a newer version of virtcloud has migrated the database.
    """
    config = make_alembic_config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, migration)
    except CommandError as error:
        shown = show_address(connection.engine)
        raise BadInput(f"database {shown} belongs to a newer version of virtcloud ({error}): upgrade sbf") from error
