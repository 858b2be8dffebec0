"""Connections to PostgreSQL: their settings, and separate connections that are not in the pool of a replica.

A separate connection holds a session's state for a long time: the lock of a replica's name, the lock of a task, or the
subscription to notices.
"""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.pool import NullPool

POSTGRESQL_SETTINGS: Final[Mapping[str, Any]] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "options": "-c idle_in_transaction_session_timeout=15s -c lock_timeout=30s",
}
"""Settings of libpq and of the PostgreSQL server. The database's URL can override these settings.

SBF detects an unreachable database server within half a minute. If a replica is suspended during a transaction,
PostgreSQL ends the transaction and releases its locks after 15 s.
"""


def choose_settings(address: URL) -> dict[str, Any]:
    """Return the settings that the address of a database does not override."""
    return {name: value for name, value in POSTGRESQL_SETTINGS.items() if name not in address.query}


def make_separate_engine(engine: Engine) -> Engine:
    """Return an engine for separate connections to the same PostgreSQL database. Each statement is a transaction."""
    settings = choose_settings(engine.url)
    return create_engine(engine.url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=settings)
