"""A service that dies at a statement of its database, and stays dead."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from sbf_fakes.world import World


class Crash(BaseException):
    """The process died here: nothing catches it."""


@contextmanager
def crash_at(world: World, statement: int) -> Iterator[list[str]]:
    """Die at the n-th statement from now, and stay dead; gives the statements that were reached."""
    engine = world.store.engine
    seen: list[str] = []

    def count(connection: Any, _cursor: Any, sql: str, *_rest: Any) -> None:  # noqa: ANN401 - SQLAlchemy's event
        seen.append(sql)
        if len(seen) >= statement:
            connection.connection.dbapi_connection.rollback()  # the database does this for a process that died
            raise Crash(sql)

    event.listen(engine, "before_cursor_execute", count)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", count)
