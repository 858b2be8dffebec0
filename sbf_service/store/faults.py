"""A database's errors in our words: what is raised in a unit of work leaves it as one of ours (STYLE rule 11)."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from sbf_service.log import get_log
from virtcloud.model.errors import Conflict, DatabaseUnavailable

log = get_log(__name__)

OVERTAKEN = frozenset({"40001", "40P01"})
"""PostgreSQL's serialization failure and deadlock: another unit went first. The order of locks leaves no room for
them; who holds locks out of that order is not one of us."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise Conflict for a unit that was overtaken, DatabaseUnavailable for a database that cannot do it now."""
    try:
        yield
    except exc.IntegrityError as error:
        raise _overtaken() from error
    except (exc.OperationalError, exc.InternalError, exc.InterfaceError, exc.TimeoutError) as error:
        cause = error.orig if isinstance(error, exc.DBAPIError) else error
        if getattr(cause, "sqlstate", None) in OVERTAKEN:
            raise _overtaken() from error
        log.warning("database_unavailable", cause=" ".join(str(cause).split()))
        raise DatabaseUnavailable(
            "the database does not answer; nothing was changed by this call or it can be repeated: try again"
        ) from error


def _overtaken() -> Conflict:
    return Conflict("another call changed the same thing at the same time: ask again")
