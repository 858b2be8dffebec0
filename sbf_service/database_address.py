"""Parses and formats the address of the database. Messages and errors never contain a part of the password."""

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from virtcloud.model.errors import BadInput

BACKENDS = frozenset({"sqlite", "postgresql"})


def parse_address(address: str) -> URL:
    """Parse a database's address. Raise BadInput for an invalid address.

    This error has no cause: SQLAlchemy's messages can contain parts of the password.
    """
    try:
        url = make_url(address)
    except ArgumentError:
        raise _fault("a text that is no address") from None
    except ValueError:
        raise _fault(
            "a port that is no number: correct the port, or write %40 for each '@' and %3A for each ':' in the password"
        ) from None
    if url.get_backend_name() not in BACKENDS:
        raise _fault("an address of neither SQLite nor PostgreSQL")
    if "password" in url.query:
        raise _fault(
            "a password after '?', which would appear in logs: put the password into a file, and write ?passfile=FILE"
        )
    parts = [(url.host or "")[1:]]  # libpq: '@' at the beginning of a host means a socket in the abstract namespace
    if url.get_backend_name() == "postgresql":  # the path of an SQLite file may contain '@'
        parts.append(url.database or "")
    if any("@" in part for part in parts):
        raise _fault(
            "a host or database that contains '@': write %40 for each '@' and %2F for each '/' in the password"
        )
    return url


def check_address(address: str) -> str:
    """Return ``address``. Raise BadInput for an invalid address."""
    parse_address(address)
    return address


def hide_password(address: str) -> str:
    """Return a valid address for the log, with ``***`` for the password."""
    return format_address(parse_address(address))


def format_address(address: URL) -> str:
    """Return an address for messages, with ``***`` for the password, and with '/' instead of %2F in its options."""
    base, mark, options = address.render_as_string(hide_password=True).partition("?")
    return base + mark + options.replace("%2F", "/")


def _fault(found: str) -> BadInput:
    return BadInput(
        f"expected an address such as sqlite:////var/lib/virtcloud/sbf.db or postgresql://user@host/name, found {found}"
    )
