"""Column types, SQL expressions and the database's clock, for both SQLite and PostgreSQL."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    DateTime,
    Dialect,
    Integer,
    Select,
    String,
    Text,
    TypeDecorator,
    literal_column,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import QueryableAttribute, Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from virtcloud.model.vlans import VlanSet

MAX_PARAMETERS = 1000
Id = TypeVar("Id", str, int)

NAME_TYPE = String(63).with_variant(String(63, collation="C"), "postgresql")
"""The type of names of sites and elements, of IDs, and of words such as roles and kinds.

Texts of this type are sorted without regard to the database's locale.
"""


KEY_TYPE = String(275).with_variant(String(275, collation="C"), "postgresql")
"""The type of cluster keys, with the maximum length of ``ClusterKey``."""


USER_TYPE = String(64).with_variant(String(64, collation="C"), "postgresql")
"""The type of user names, sorted without regard to the database's locale."""


ROW_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
"""The type of numbers that the database assigns to rows. SQLite's INTEGER PRIMARY KEY always has 64 bits."""


def equals_any(column: QueryableAttribute[str], values: Iterable[StrEnum]) -> ColumnElement[bool]:
    """Return the condition that a column has one of these values.

    The values are literals: SQLAlchemy's expansion of bound parameters takes as long as a small query.
    """
    return column.in_([literal_column(f"'{value}'") for value in sorted(values)])


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a time to UTC, because SQLite stores no time zone."""
        if value is None:
            return None
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Return the time with the time zone UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class VlanSetText(TypeDecorator[VlanSet]):
    """A set of VLAN IDs, stored as a text of ranges."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: VlanSet | None, _dialect: Dialect) -> str | None:
        """Format a set as ranges, such as ``"100-199,300"``."""
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, _dialect: Dialect) -> VlanSet | None:
        """Parse ranges into a set."""
        return None if value is None else VlanSet.parse(value)


class database_now(FunctionElement[datetime]):  # noqa: N801 - named like an SQL function
    """An SQL expression: the database's time, with fractions of a second, for leases and deadlines."""

    type = UtcDateTime()
    inherit_cache = True


@compiles(database_now)
def _now(_element: database_now, _compiler: SQLCompiler, **_options: Any) -> str:  # noqa: ANN401
    return "clock_timestamp()"


@compiles(database_now, "sqlite")
def _now_sqlite(_element: database_now, _compiler: SQLCompiler, **_options: Any) -> str:  # noqa: ANN401
    return "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')"


_READ_CLOCK = select(database_now())


def read_database_clock(session: Session) -> datetime:
    """Return the time of the database's clock.

    SQLite's clock is this computer's clock, which is read without a statement. The time is then truncated to
    milliseconds, because ``database_now`` also returns milliseconds on SQLite.
    """
    connection = session.connection()  # a writer on SQLite gets its lock before it reads the time
    if connection.dialect.name != "sqlite":
        return connection.execute(_READ_CLOCK).scalar_one()
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


class json_texts(FunctionElement[str]):  # noqa: N801 - named like an SQL function
    """An SQL table with the texts of a JSON list. The whole list is one parameter."""

    inherit_cache = True


@compiles(json_texts)
def _texts(element: json_texts, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401
    return f"json_array_elements_text(CAST({compiler.process(element.clauses, **options)} AS json))"


@compiles(json_texts, "sqlite")
def _texts_sqlite(element: json_texts, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401
    return f"json_each({compiler.process(element.clauses, **options)})"


def select_texts(texts: BindParameter[str]) -> Select[tuple[str]]:
    """Return a subquery with the texts of a JSON list.

    For thousands of texts, this subquery is faster than a parameter for each text.
    """
    return select(json_texts(texts).table_valued("value").c.value)


class json_pairs(FunctionElement[str]):  # noqa: N801 - named like an SQL function
    """An SQL table with the pairs of texts of a JSON list of lists. The whole list is one parameter."""

    inherit_cache = True


@compiles(json_pairs)
def _pairs(element: json_pairs, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401
    table = f"json_array_elements(CAST({compiler.process(element.clauses, **options)} AS json))"
    return f"(SELECT value ->> 0 AS left_text, value ->> 1 AS right_text FROM {table})"  # noqa: S608 - no text of users


@compiles(json_pairs, "sqlite")
def _pairs_sqlite(element: json_pairs, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401
    values = "json_extract(value, '$[0]') AS left_text, json_extract(value, '$[1]') AS right_text"
    return f"(SELECT {values} FROM json_each({compiler.process(element.clauses, **options)}))"  # noqa: S608


def select_pairs(pairs: BindParameter[str]) -> Select[tuple[str, str]]:
    """Return a subquery with the pairs of texts of a JSON list, as :func:`select_texts` does for single texts."""
    table = json_pairs(pairs).table_valued("left_text", "right_text")
    return select(table.c.left_text, table.c.right_text)


def split_ids(ids: Iterable[Id]) -> Iterator[list[Id]]:
    """Yield groups of at most `MAX_PARAMETERS` IDs, so that one statement can have a parameter for each ID of a group.

    SQLite permits 32,766 parameters in a statement, and PostgreSQL 65,535.
    """
    left = iter(ids)
    while group := list(islice(left, MAX_PARAMETERS)):
        yield group
