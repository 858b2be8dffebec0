"""Column types and the database's clock, the same on SQLite and PostgreSQL."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, String, Text, TypeDecorator
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from virtcloud.model.vlans import VlanSet

NAME_TYPE = String(63).with_variant(String(63, collation="C"), "postgresql")
"""Names of sites and elements: in the same order everywhere, whatever a server's language."""


KEY_TYPE = String(275).with_variant(String(275, collation="C"), "postgresql")
"""Keys of clusters, as long as a ``ClusterKey``."""


USER_TYPE = String(64).with_variant(String(64, collation="C"), "postgresql")
"""Names of users, in the same order everywhere."""


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC; a moment without a time zone is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the database UTC; SQLite keeps no zone."""
        if value is None:
            return None
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Say that it is UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class VlanSetText(TypeDecorator[VlanSet]):
    """A set of VLAN numbers, kept as its ranges."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: VlanSet | None, _dialect: Dialect) -> str | None:
        """Write ranges."""
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, _dialect: Dialect) -> VlanSet | None:
        """Read ranges."""
        return None if value is None else VlanSet.parse(value)


class database_now(FunctionElement[datetime]):  # noqa: N801 - it reads as an SQL function
    """The database's clock, with fractions of a second; all leases and deadlines run on it."""

    type = UtcDateTime()
    inherit_cache = True


@compiles(database_now)
def _now(_element: database_now, _compiler: SQLCompiler, **_options: Any) -> str:  # noqa: ANN401
    return "clock_timestamp()"


@compiles(database_now, "sqlite")
def _now_sqlite(_element: database_now, _compiler: SQLCompiler, **_options: Any) -> str:  # noqa: ANN401
    return "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')"
