"""The replica lock: one service per replica name on PostgreSQL, and one service per database on SQLite.

Two services with the same name would release each other's leases. On PostgreSQL, a service holds an advisory lock for
its name on a separate connection, and acquires it again after a loss of the connection. On SQLite, a service locks a
file next to the database. Both locks end with the process; PostgreSQL releases the lock of an unreachable host after
half a minute.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import IO

from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.exc import SQLAlchemyError

from sbf_service.local_files import open_lock_file, try_file_lock
from sbf_service.log import get_log
from sbf_service.store.connections.database import show_address
from sbf_service.store.connections.database_errors import translate_errors
from sbf_service.store.connections.postgresql_connections import make_separate_engine
from virtcloud.model.errors import BadInput
from virtcloud.model.message_text import count_of

log = get_log(__name__)

LOCK_CLASS = 0x7265706C
"""The first key of a replica's advisory lock (the letters "repl"). The second key is a hash of the replica's name."""
TASK_LOCK_CLASS = 0x7461736B
"""The first key of a task's advisory lock (the letters "task"). The second key is a hash of the task's name."""
LOCK_TIMEOUT_S = 40.0
"""The maximum wait of a starting service for the lock, longer than PostgreSQL needs to detect an unreachable host."""
LOCK_POLL_S = 0.5
GROUP_MODE = 0o660
LOCK_CHECK_S = 5.0
KEEPALIVE_SETTINGS = ("tcp_keepalives_idle = 10", "tcp_keepalives_interval = 5", "tcp_keepalives_count = 3")


@contextmanager
def hold_replica_name(engine: Engine, name: str, patience: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold a replica's name until the context ends.

    Raise BadInput if another service still holds the name after ``patience`` seconds.
    """
    lock = _lock_in_postgresql if engine.dialect.name == "postgresql" else _lock_file_of_sqlite
    with lock(engine, name, patience):
        yield


@contextmanager
def _lock_in_postgresql(engine: Engine, name: str, patience: float) -> Iterator[None]:
    with ExitStack() as stack:
        with translate_errors():
            connection = stack.enter_context(make_separate_engine(engine).connect())
            is_locked = _retry_for(patience, lambda: _try_advisory_lock(connection, name))
        if not is_locked:
            raise BadInput(
                f"replica = {name!r}: another service on this database uses this name: "
                f"set different names, or stop the other service"
            )
        stopped = Event()
        keeper = Thread(target=_keep_advisory_lock, args=(connection, name, stopped), name="replica lock", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            stopped.set()
            keeper.join(LOCK_CHECK_S)


def _keep_advisory_lock(connection: Connection, name: str, stopped: Event) -> None:
    """Request the lock again every :data:`LOCK_CHECK_S` seconds until ``stopped`` is set.

    PostgreSQL releases the lock when the connection is lost. SQLAlchemy replaces a lost connection at the first
    statement after a rollback.
    """
    while not stopped.wait(LOCK_CHECK_S):
        try:
            if not _try_advisory_lock(connection, name):
                log.warning("replica_name_taken", replica=name)
        except SQLAlchemyError:
            connection.rollback()


def _try_advisory_lock(connection: Connection, name: str) -> bool:
    for setting in KEEPALIVE_SETTINGS:
        connection.execute(text(f"SET {setting}"))
    return bool(connection.scalar(select(func.pg_try_advisory_lock(LOCK_CLASS, func.hashtext(name)))))


@contextmanager
def hold_task(engine: Engine, task: str) -> Iterator[bool]:
    """Yield whether this process holds the lock of a task, so that one process at a time performs the task.

    The lock is held until the context ends.
    """
    if engine.dialect.name == "postgresql":
        with translate_errors(), make_separate_engine(engine).connect() as connection:
            yield bool(connection.scalar(select(func.pg_try_advisory_lock(TASK_LOCK_CLASS, func.hashtext(task)))))
        return
    with _open_lock_file(Path(f"{engine.url.database}.{task}.lock")) as file:
        yield try_file_lock(file)


@contextmanager
def hold_whole_database(engine: Engine) -> Iterator[None]:
    """Raise BadInput if a service uses a database now. On SQLite, no service can start before the context ends.

    On PostgreSQL, services can start. The caller must therefore first acquire the lock of migrations, for which
    services wait at their start, and then call :func:`check_unused`.
    """
    if engine.dialect.name != "postgresql":
        with _lock_file_of_sqlite(engine, "", 0):
            yield
        return
    with translate_errors(), engine.connect() as connection:
        check_unused(connection)
    yield


def check_unused(connection: Connection) -> None:
    """Raise BadInput if a service uses a PostgreSQL database now. Do nothing on SQLite.

    On SQLite, :func:`hold_whole_database` suffices.
    """
    if connection.dialect.name != "postgresql":
        return
    used = connection.execute(_COUNT_SERVICES, {"lock_class": LOCK_CLASS}).scalar_one()
    if used:
        database = show_address(connection.engine)
        raise BadInput(
            f"database {database}: expected a database that no service uses, "
            f"found {count_of(used, 'running replica')}: stop SBF on every machine (systemctl stop virtcloud-sbf)"
        )


_COUNT_SERVICES = text(
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = :lock_class AND objsubid = 2 AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


@contextmanager
def _lock_file_of_sqlite(engine: Engine, _name: str, patience: float) -> Iterator[None]:
    with _open_lock_file(Path(f"{engine.url.database}.lock")) as file:
        if not _retry_for(patience, lambda: try_file_lock(file)):
            raise BadInput(
                f"database {engine.url.database}: another service uses this file: stop that service, "
                f"or set another database; only on PostgreSQL can several services share a database"
            )
        yield


def _open_lock_file(path: Path) -> IO[bytes]:
    try:
        return open_lock_file(path, GROUP_MODE)
    except OSError as error:
        raise BadInput(
            f"lock file {path}: expected a file that this user can write, found: {error.strerror}; run this command as "
            f"the service's user, or give the service's user the folder {path.parent} and this file"
        ) from error


def _retry_for(seconds: float, done: Callable[[], bool]) -> bool:
    if (is_done := done()) or not seconds:
        return is_done
    log.warning("waiting_for_replica_lock", seconds=seconds)
    ends = time.monotonic() + seconds
    while not (is_done := done()) and time.monotonic() < ends:
        time.sleep(LOCK_POLL_S)
    return is_done
