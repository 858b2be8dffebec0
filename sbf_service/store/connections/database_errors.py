"""The translation of database errors to errors of the API."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import ExceptionContext, exc

from sbf_service.domain.idempotency import SAFE_TO_REPEAT
from sbf_service.log import get_log
from virtcloud.model.errors import Conflict, DatabaseUnavailable

log = get_log(__name__)

CONCURRENCY_SQLSTATES = frozenset({"40001", "40P01"})
"""PostgreSQL's error codes for a serialization failure and for a deadlock.

SBF's own transactions cannot cause these errors: those that write have the isolation level READ COMMITTED, and acquire
locks in one order. Only transactions of other programs cause the errors.
"""
UNAVAILABLE_ERRORS = (exc.OperationalError, exc.InternalError, exc.InterfaceError, exc.TimeoutError)
"""SQLAlchemy's errors for a database that does not answer."""
UNAVAILABLE_SQLSTATES = frozenset({"0A000", "42501", "42P01"})
"""PostgreSQL's error codes for unsuitable settings of the server or of SBF's role.

A standby refuses a transaction that writes (0A000), the role lacks a right (42501), or the role's ``search_path`` lacks
the schema of the tables (42P01). SQLAlchemy's class of error cannot identify these faults, because faulty statements
cause errors of the same class.
"""

FULL: Final = ("is full",)
FILE_FAULTS: Final = (
    (
        ("malformed", "not a database"),
        "the file of the database is damaged",
        "an administrator must stop SBF and restore a backup (sbf restore)",
    ),
    (
        ("disk I/O error",),
        "the disk of the database reports an error",
        "an administrator must free space on the disk, or replace the disk and restore a backup (sbf restore)",
    ),
    (
        FULL,
        "the disk of the database is full",
        f"an administrator must free space on the disk; {SAFE_TO_REPEAT}",
    ),
)
"""Faults of a SQLite file that do not end by themselves: parts of SQLite's message, the fault, and the remedy."""
DISK_FULL_SQLSTATE: Final = "53100"


def report_damaged_file(context: ExceptionContext) -> None:
    """Raise OperationalError for a SQLite file that is damaged, or is no database.

    For such a file, sqlite3 raises DatabaseError, the base class of the errors of faulty statements.
    """
    if type(context.original_exception) is sqlite3.DatabaseError:
        raise exc.OperationalError(context.statement, None, context.original_exception) from context.original_exception


def is_unavailable(error: exc.SQLAlchemyError) -> bool:
    """Return whether the cause of ``error`` is outside SBF, for example a database that does not answer."""
    sqlstate = getattr(getattr(error, "orig", None), "sqlstate", None)
    return isinstance(error, UNAVAILABLE_ERRORS) or sqlstate in UNAVAILABLE_SQLSTATES


def make_unavailable(error: BaseException) -> DatabaseUnavailable:
    """Return the error for a database that does not answer, a damaged SQLite file, or a faulty or full disk.

    The error has only the first line of PostgreSQL's message: other lines can contain values of rows.
    """
    cause = getattr(error, "orig", None)
    text = " ".join(str(cause).partition("\n")[0].split())
    is_full = getattr(cause, "sqlstate", None) == DISK_FULL_SQLSTATE
    for words, fault, remedy in FILE_FAULTS:
        is_file_fault = isinstance(cause, sqlite3.Error) and any(word in text for word in words)
        if is_file_fault or (is_full and words == FULL):
            return DatabaseUnavailable(f"{fault} ({text}): {remedy}")
    return DatabaseUnavailable(f"the database does not answer: try again later; {SAFE_TO_REPEAT}")


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate the database errors of the block.

    Raise Conflict if a concurrent transaction changed the same rows first. Raise DatabaseUnavailable if the cause is
    outside SBF (:func:`is_unavailable`).
    """
    try:
        yield
    except exc.IntegrityError as error:
        raise _make_concurrency_error(error.orig) from error
    except exc.SQLAlchemyError as error:
        if not is_unavailable(error):
            raise
        cause = error.orig if isinstance(error, exc.DBAPIError) else error
        if getattr(cause, "sqlstate", None) in CONCURRENCY_SQLSTATES:
            raise _make_concurrency_error(cause) from error
        log.warning("database_unavailable", cause=" ".join(str(cause).split()))
        raise make_unavailable(error) from error


def _make_concurrency_error(cause: BaseException | None) -> Conflict:
    """Return the error for a concurrent change, and log its cause.

    A fault in SBF can also violate a constraint. Then only the log shows the fault, because the caller gets the same
    error. The log contains only the first line of PostgreSQL's message: other lines can contain values of the row.
    """
    lines = str(cause).splitlines()
    log.warning("rows_changed_concurrently", cause=lines[0] if lines else "unknown")
    return Conflict("another call changed the same rows at the same time: try again")
