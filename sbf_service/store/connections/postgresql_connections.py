"""Connections to PostgreSQL: a replica's pool of connections, and separate connections outside the pool.

A separate connection holds a lock (of a replica's name or of a task), or subscribes to notices.
"""

import select
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from sqlalchemy import URL, Dialect, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, PoolProxiedConnection

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

With these settings, SBF detects an unreachable database server within half a minute, and PostgreSQL ends the
transaction of a suspended replica after 15 s. The driver psycopg can read times with a time zone only in the format
ISO.
"""
POOL_SETTINGS = {"pool_size": 25, "max_overflow": 0, "pool_use_lifo": True}
"""The maximum number of connections in a replica's pool. Three replicas stay below PostgreSQL's default limit of 100.

Without ``max_overflow``, no connection is closed after a use: PostgreSQL starts a process for each new connection. With
``pool_use_lifo``, a few connections are used often: PostgreSQL plans a statement once for each connection that has
prepared it.
"""
MAX_IDLE_S = 5.0
"""The idle time, in seconds, after which SBF checks a connection with a query before the connection's next use."""
USED_AT = "used_at"


def make_postgresql_engine(address: URL) -> Engine:
    """Create an engine with a pool of connections.

    The engine sets the isolation level of each transaction, whatever the server's settings: after a wait for a lock, a
    transaction must read what the lock's former holder committed.
    """
    url = address.set(drivername="postgresql+psycopg")
    settings: dict[str, Any] = {"isolation_level": "READ COMMITTED", "hide_parameters": True, **POOL_SETTINGS}
    engine = create_engine(url, connect_args=choose_settings(address), **settings)
    # One INSERT for all rows: psycopg's executemany sends one message per row, and two further messages.
    engine.dialect.use_insertmanyvalues_wo_returning = True
    event.listen(engine, "do_connect", _connect)
    event.listen(engine, "checkin", _record_use)
    event.listen(engine, "checkout", partial(_check_before_use, engine.dialect))
    return engine


def _connect(_dialect: Dialect, _entry: ConnectionPoolEntry, arguments: Any, settings: dict[str, Any]) -> Any:  # noqa: ANN401 - a connection of psycopg
    from sbf_service.store.connections.limited_connection import LimitedConnection  # noqa: PLC0415 - psycopg is slow to load

    return LimitedConnection.connect(*arguments, **settings)


def _connect_separately(_dialect: Dialect, _entry: object, arguments: Any, settings: dict[str, Any]) -> Any:  # noqa: ANN401 - a connection of psycopg
    from sbf_service.store.connections.limited_connection import SeparateConnection  # noqa: PLC0415 - psycopg is slow to load

    return SeparateConnection.connect(*arguments, **settings)


def _record_use(_connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
    entry.info[USED_AT] = time.monotonic()


def _check_before_use(
    dialect: Dialect, connection: DBAPIConnection, entry: ConnectionPoolEntry, _proxy: PoolProxiedConnection
) -> None:
    """Raise InvalidatePoolError for a connection that the server has closed, so that the pool opens a new connection.

    The socket of a closed connection is readable. Only readable connections, and connections that were idle for more
    than :data:`MAX_IDLE_S`, are checked with a query, which takes as long as reading a row.
    """
    used_at = entry.info.get(USED_AT)
    if used_at is None:
        return
    try:
        if time.monotonic() - used_at >= MAX_IDLE_S or _is_readable(connection):
            dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError from error


def _is_readable(connection: Any) -> bool:  # noqa: ANN401 - a connection of psycopg
    """Return whether the connection's socket has data or the end of the stream.

    Raise OperationalError if psycopg has closed the connection.
    """
    waiting = select.poll()
    waiting.register(connection.pgconn.socket, select.POLLIN)
    return bool(waiting.poll(0))


def choose_settings(address: URL) -> dict[str, Any]:
    """Return the settings that a database's address does not override.

    ``options`` in the address are appended to SBF's options: PostgreSQL uses the last value of a setting.
    """
    settings = {name: value for name, value in POSTGRESQL_SETTINGS.items() if name not in address.query}
    options = address.query.get("options", ())
    own = (options,) if isinstance(options, str) else options
    return settings | {"options": " ".join((POSTGRESQL_SETTINGS["options"], *own))}


def make_separate_engine(engine: Engine) -> Engine:
    """Return an engine for separate connections to the same database, on which each statement is a transaction.

    The time limit for answers is shorter than in the pool.
    """
    settings: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "pool_reset_on_return": None}
    made = create_engine(engine.url, poolclass=NullPool, connect_args=choose_settings(engine.url), **settings)
    event.listen(made, "do_connect", _connect_separately)
    return made
