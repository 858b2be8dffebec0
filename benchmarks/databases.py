"""The kinds of database to measure on: SQLite, and PostgreSQL where its programs are."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Database = Callable[[], AbstractContextManager[str | None]]


def databases() -> Iterator[tuple[str, Database]]:
    """Give each kind's name, and how to have one: an address, or None for a file in the service's folder."""
    yield "SQLite", lambda: nullcontext(None)
    try:
        from postgres import NoPostgresError, programs  # noqa: PLC0415 - it needs a driver that may be absent
    except ImportError as error:
        print(f"SKIPPED: PostgreSQL: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return
    try:
        programs()
    except NoPostgresError as error:
        print(f"SKIPPED: PostgreSQL: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return
    yield "PostgreSQL", _postgresql


@contextmanager
def _postgresql() -> Iterator[str]:
    from postgres import running  # noqa: PLC0415 - see above

    with running(fsync="on", full_page_writes="on") as server:
        yield server.url(server.new_database())
