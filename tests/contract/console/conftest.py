"""Fixtures of the tests of the web console."""

import pytest


@pytest.fixture
def database(sqlite_database: str) -> str:
    """SQLite suffices, because the console reads only through the store."""
    return sqlite_database
