"""The database: functions that create an engine, probe whether writing works, and explain errors with remedies."""

from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError

from sbf_service.database_address import format_address, parse_address
from sbf_service.store.connections.postgresql_connections import make_postgresql_engine
from sbf_service.store.connections.sqlite_file import make_sqlite_engine
from sbf_service.store.store import Store
from sbf_service.store.tables.service_tables import ReplicaRow
from virtcloud.model.errors import BadInput


def make_engine(url: str, *, create: bool = True) -> Engine:
    """Create an engine for SQLite or PostgreSQL without connecting. Raise BadInput for an invalid address.

    Without ``create``, a missing SQLite file also raises BadInput.
    """
    address = parse_address(url)
    is_sqlite = address.get_backend_name() == "sqlite"
    if not create and is_sqlite and not Path(str(address.database)).is_file():
        raise BadInput(f"database {address.database}: expected a file, found none: check the setting 'database'")
    try:
        return make_sqlite_engine(address) if is_sqlite else make_postgresql_engine(address)
    except (ArgumentError, ImportError) as error:
        raise BadInput(
            f"database {format_address(address)}: the address cannot be used: {error}; correct "
            "the setting 'database', or install the missing Python package"
        ) from error


REMEDIES = {
    ("no password supplied",): (
        "write a line for this host, port, database and role to the 'passfile' of the setting 'database'; the file "
        "needs mode 0600, and must belong to SBF's user"
    ),
    ("password authentication failed",): "correct the password in the setting 'database' or in its 'passfile'",
    ("root certificate file", "certificate verify failed"): (
        "copy the certificate of the server, or its authority, to the file 'sslrootcert' of the setting 'database', "
        "and let SBF's user read this file"
    ),
    ("does not match host name",): "use a name of the server's certificate as the host in the setting 'database'",
    ("pg_hba.conf",): "permit SBF's role to log in from this machine, in the server's file pg_hba.conf",
    ("is full", "No space left", "could not extend file"): "free space on the database's disk, and repeat the command",
    ("disk I/O error",): "free space on the database's disk, or replace the disk, and repeat the command",
    ("not a database", "malformed"): (
        "correct the setting 'database', or move the damaged file to another folder and restore a backup (sbf restore)"
    ),
    ("Connection refused", "timeout expired", "Network is unreachable", "No route to host", "did not answer"): (
        "start the database server, or correct the setting 'database'"
    ),
    ("database is locked", "lock timeout"): "wait until the other program that uses the database has ended",
    ("permission denied",): "give SBF's role all rights on its tables",
    ("read-only transaction", "during recovery"): (
        "change the setting 'database' to the address of the primary server, or let the server accept changes"
    ),
    ("readonly database", "unable to open database file"): "give the file and its folder to SBF's user",
    ("too many connections", "remaining connection slots"): "raise the server's limit of connections (max_connections)",
    ("statement timeout",): "raise statement_timeout of SBF's role",
    ("no schema has been selected", 'relation "'): "set search_path of SBF's role to the schema of SBF's tables",
    ("could not translate host name", "failed to resolve host"): "correct the host in the setting 'database'",
}
"""The remedies for errors of SQLite and PostgreSQL, by parts of the errors' texts.

Errors of a login come first: the message also contains errors of the host's other addresses, such as "Connection
refused".
"""


def show_address(engine: Engine) -> str:
    """Return a database's address without the driver's name, as in the settings, but with ``***`` for a password."""
    return format_address(engine.url.set(drivername=engine.url.get_backend_name()))


def explain_error(error: BaseException) -> str:
    """Return the text of an error of the database, with its remedy."""
    cause = " ".join(str(getattr(error, "orig", None) or error).split())
    remedies = (remedy for words, remedy in REMEDIES.items() if any(word in cause for word in words))
    return f"{cause}; {next(remedies, 'check the address and the rights of the database')}"


def probe_write(store: Store, replica: str) -> None:
    """Write the row of ``replica`` and commit. Raise DatabaseUnavailable if the database cannot be written.

    A database on a full disk still answers queries.
    """
    with store.change_row(who=replica) as unit:
        row = {"name": replica, "wrote_at": unit.now}
        new = (postgresql if store.has_scopes else sqlite).insert(ReplicaRow).values(row)
        unit.session.execute(new.on_conflict_do_update(index_elements=[ReplicaRow.name], set_=row))
