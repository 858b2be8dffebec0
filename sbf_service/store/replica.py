"""One service for each replica's name, and one alone on SQLite: two would take each other's work for their own.

PostgreSQL keeps the name as an advisory lock of a connection of its own, SQLite's file as a lock beside it. Both end
with the process, however it ends; a machine that vanished is missed by PostgreSQL after half a minute.
"""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, func, select, text
from sqlalchemy.pool import NullPool

from sbf_service.log import get_log
from sbf_service.store.faults import translated
from virtcloud.model.errors import BadInput

log = get_log(__name__)

NAMES = 0x7265706C
"""The first of the two numbers of the advisory locks ("repl"); the second one is made of the name."""
PATIENCE_S = 40.0
"""Longer than PostgreSQL takes to miss a machine that vanished, with the settings below."""
LOOK_AGAIN_S = 0.5
MISSED = ("tcp_keepalives_idle = 10", "tcp_keepalives_interval = 5", "tcp_keepalives_count = 3")


@contextmanager
def held(engine: Engine, name: str, patience: float = PATIENCE_S) -> Iterator[None]:
    """Have a replica's name for as long as the context lasts.

    Raises BadInput when another service has it, and does not end within ``patience`` seconds.
    """
    holding = _in_postgresql if engine.dialect.name == "postgresql" else _beside_sqlite
    with holding(engine, name, patience):
        yield


@contextmanager
def _in_postgresql(engine: Engine, name: str, patience: float) -> Iterator[None]:
    own = create_engine(engine.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with ExitStack() as stack:
        with translated():
            connection = stack.enter_context(own.connect())
            for setting in MISSED:
                connection.execute(text(f"SET {setting}"))
            is_ours = _within(patience, lambda: _locked(connection, name))
        if not is_ours:
            raise BadInput(
                f"replica = {name!r}: another service on this database has this name: give each its own, "
                f"or end that one"
            )
        yield


def _locked(connection: Connection, name: str) -> bool:
    return bool(connection.scalar(select(func.pg_try_advisory_lock(NAMES, func.hashtext(name)))))


@contextmanager
def _beside_sqlite(engine: Engine, _name: str, patience: float) -> Iterator[None]:
    path = Path(f"{engine.url.database}.lock")
    with path.open("wb") as file:
        if not _within(patience, lambda: _flocked(file.fileno())):
            raise BadInput(
                f"database {engine.url.database}: another service uses it; several share one PostgreSQL, not one file: "
                f"end that one, or set another database"
            )
        yield


def _flocked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _within(seconds: float, done: Callable[[], bool]) -> bool:
    if (found := done()) or not seconds:
        return found
    log.warning("waiting_for_former_self", seconds=seconds)
    ends = time.monotonic() + seconds
    while not (found := done()) and time.monotonic() < ends:
        time.sleep(LOOK_AGAIN_S)
    return found
