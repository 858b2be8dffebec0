"""Connections to PostgreSQL that limit the time for each answer of the server.

A suspended server, or a proxy that has lost its server, can hold a TCP connection open without answering. Neither
PostgreSQL's nor TCP's time limits end the client's wait for an answer.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from psycopg import Connection, OperationalError
from psycopg.abc import RV, PQGen
from sqlalchemy import Connection as PooledConnection

POLL_S: Final = 0.1


class LimitedConnection(Connection[Any]):
    """A connection that is closed if the server does not answer within :attr:`answer_limit_s` seconds."""

    answer_limit_s: float | None = 120.0
    """The limit, or None. The default is four times ``lock_timeout``, because statements may wait for locks."""

    def wait(self, gen: PQGen[RV], interval: float = POLL_S, timeout: float | None = None) -> RV:
        """Wait for the end of an operation. Raise OperationalError if the server does not answer in time."""
        started, limit = time.monotonic(), self.answer_limit_s
        if limit is None or timeout is not None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, limit)
        except OperationalError as error:
            if time.monotonic() - started < limit:
                raise
            self.pgconn.finish()
            raise OperationalError(f"the database server did not answer within {limit:g} s") from error


class SeparateConnection(LimitedConnection):
    """A connection outside the pool, with a shorter limit, because its statements do not wait for locks."""

    answer_limit_s: float | None = 15.0


@contextmanager
def unlimited_answers(connection: PooledConnection) -> Iterator[None]:
    """Disable the time limit for answers within the block, for example during a migration."""
    limited = connection.connection.driver_connection
    if not isinstance(limited, LimitedConnection):
        raise TypeError(f"expected a LimitedConnection, got {type(limited).__name__}")
    limited.answer_limit_s = None
    try:
        yield
    finally:
        limited.answer_limit_s = LimitedConnection.answer_limit_s
