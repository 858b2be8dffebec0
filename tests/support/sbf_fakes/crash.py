from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from support.sbf_fakes.world import World


class Crash(BaseException):
    """The crash of the process: a BaseException, which the service's code does not catch."""


@contextmanager
def crash_at(world: World, statement: int) -> Iterator[list[str]]:
    """Raise Crash at database statement number ``statement`` (the first has number 1), and at every later statement.

    Yield the list of the statements that the service has begun.
    """
    engine = world.store.engine
    seen: list[str] = []

    def count(connection: Any, _cursor: Any, sql: str, *_rest: Any) -> None:
        seen.append(sql)
        if len(seen) >= statement:
            connection.connection.dbapi_connection.rollback()  # a database rolls back when a process ends
            raise Crash(sql)

    event.listen(engine, "before_cursor_execute", count)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", count)
