"""Cursors of paginated lists: a cursor is the position after the last row of a page, as an opaque text. Pure.

A cursor contains the name of the list's order, and the sort key of the last row. A cursor grants no right: for each
page, SBF selects the rows that the caller may read. Rows that are added or removed between two calls do not shift the
pages.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, StringConstraints, TypeAdapter, ValidationError

from virtcloud.model.errors import BadInput

MAX_PAGE: Final = 1000
"""The maximum number of rows in a page. SBF reads a page in one short transaction."""
DEFAULT_PAGE: Final = 100
"""The number of rows in a page if a call has a cursor or an order, but no limit."""
MAX_CURSOR: Final = 2000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
YEAR_9999: Final = 253_370_764_800_000_000
"""The start of the year 9999, in microseconds since 1970. Python cannot convert some later times between time zones."""


def _parse_moment(microseconds: int) -> datetime:
    return EPOCH + microseconds * MICROSECOND


Moment = Annotated[int, Field(ge=0, lt=YEAR_9999), AfterValidator(_parse_moment)]
"""A time. A cursor contains the time as microseconds since 1970."""
Number = Annotated[int, Field(ge=0, lt=2**31)]
"""A number for a column with 32 bits, which PostgreSQL does not compare with larger numbers."""
LongNumber = Annotated[int, Field(ge=0, lt=2**63)]
Word = Annotated[str, StringConstraints(max_length=300, pattern=r"^[^\x00]*$")]

KeyValue = str | int | datetime
KEY_OF_NAME: Final = TypeAdapter(tuple[Word])


@dataclass(frozen=True, slots=True)
class CursorFormat:
    """The format of the cursors of one list in one ``order``. ``key`` parses the sort key."""

    order: str
    key: TypeAdapter[Any]

    def format(self, key: Sequence[KeyValue]) -> str:
        """Return the cursor of the position after the row with this sort key."""
        values = [_format_value(value) for value in key]
        return urlsafe_b64encode(_DOCUMENT.dump_json([self.order, *values])).decode().rstrip("=")

    def parse(self, cursor: str) -> tuple[KeyValue, ...]:
        """Return the sort key in a cursor.

        Raise BadInput for a cursor of another list or order, and for any other text.
        """
        try:
            order, *values = _DOCUMENT.validate_json(_decode(cursor))
        except ValueError as error:
            raise self._unusable("a text that SBF did not create") from error
        if order != self.order:
            raise self._unusable(f"a cursor of the list '{order}'")
        try:
            key: tuple[KeyValue, ...] = self.key.validate_python(tuple(values), strict=True)
        except ValidationError as error:
            raise self._unusable("a cursor with an invalid sort key") from error
        return key

    def _unusable(self, found: str) -> BadInput:
        return BadInput(
            f"cursor: expected a cursor of the list '{self.order}', got {found}: use the cursor in the Link header of "
            "the page before, or omit the cursor to read from the beginning"
        )


_DOCUMENT: TypeAdapter[list[str | int]] = TypeAdapter(
    Annotated[list[Annotated[str | int, Field(union_mode="left_to_right")]], Field(min_length=1, max_length=8)]
)


def _format_value(value: KeyValue) -> str | int:
    return (value - EPOCH) // MICROSECOND if isinstance(value, datetime) else value


def _decode(cursor: str) -> bytes:
    """Decode a cursor. Raise ValueError for characters outside the alphabet, which the library would ignore."""
    if not cursor.isascii() or not set(cursor) <= _ALPHABET:
        raise ValueError(cursor)
    return urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))


_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
