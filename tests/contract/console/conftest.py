import pytest


@pytest.fixture
def database(sqlite_database: str) -> str:
    """The address of a SQLite database.

    No PostgreSQL is needed, because the console accesses the database only through the store.
    """
    return sqlite_database
