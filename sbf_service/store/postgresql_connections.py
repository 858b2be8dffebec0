"""Connections to PostgreSQL: settings, and separate connections outside the pool of a replica.

A separate connection holds a lock (of a replica's name or of a task), or it subscribes to notices.
"""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.pool import NullPool

POSTGRESQL_SETTINGS: Final[Mapping[str, Any]] = {
    "client_encoding": "UTF8",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "options": "-c idle_in_transaction_session_timeout=15s -c lock_timeout=30s -c datestyle=ISO",
}
"""Settings of libpq and of the PostgreSQL server. The database's URL can override these settings.

SBF detects an unreachable database server within half a minute. PostgreSQL ends the transaction of a suspended replica
after 15 s. psycopg reads times with a time zone in the format ISO only.
"""


def choose_settings(address: URL) -> dict[str, Any]:
    """Return the settings that a database's address does not override.

    If the address has ``options``, append them to SBF's options. PostgreSQL uses the last value of each setting.
    """
    settings = {name: value for name, value in POSTGRESQL_SETTINGS.items() if name not in address.query}
    options = address.query.get("options", ())
    own = (options,) if isinstance(options, str) else options
    return settings | {"options": " ".join((POSTGRESQL_SETTINGS["options"], *own))}


def make_separate_engine(engine: Engine) -> Engine:
    """Return an engine for separate connections to the same database. Each statement is a transaction."""
    settings = choose_settings(engine.url)
    return create_engine(engine.url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=settings)
