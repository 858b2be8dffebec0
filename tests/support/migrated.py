"""Databases with the tables of the present version of SBF.

Each test process migrates one template database, and copies this database for its tests.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import make_url

from sbf_service.store.connections.database import make_engine
from sbf_service.store.maintenance.database_migration import migrate


def create_sqlite(database: str) -> None:
    """Create the file of an SQLite database with all tables. ``database`` is the address of the database.

    Do nothing if the file exists, or if ``database`` is the address of a PostgreSQL database.
    """
    address = make_url(database)
    if address.get_backend_name() == "sqlite" and address.database and not Path(address.database).exists():
        file = Path(address.database)
        file.touch(mode=0o600)
        file.write_bytes(_sqlite_template())


def migrate_once(database: str) -> None:
    engine = make_engine(database)
    try:
        migrate(engine)
    finally:
        engine.dispose()


@cache
def _sqlite_template() -> bytes:
    with TemporaryDirectory(prefix="sbf") as folder:
        file = Path(folder) / "sbf.db"
        migrate_once(f"sqlite:///{file}")
        return file.read_bytes()
