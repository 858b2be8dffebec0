"""Pages of lists: at most ``limit`` rows after a position, found with an index instead of an offset.

Each list has a total order (``PageOrder``), and a cursor contains the sort key of a page's last row. Therefore, a row
that exists during all calls appears exactly once, even if other rows are added or removed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Select, tuple_
from sqlalchemy.orm import QueryableAttribute

from sbf_service.domain.page_cursors import MAX_PAGE, CursorFormat, KeyValue
from sbf_service.store.tables.tables import ElementRow, SiteRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.errors import BadInput

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class PagePart:
    """The part of a list that a page contains: at most ``limit`` rows after the position of ``cursor``."""

    limit: int = MAX_PAGE
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Rows of a list, and the cursor of the next page, or None after the last row."""

    rows: Sequence[T]
    cursor: str | None = None

    def convert(self, make: Callable[[Sequence[T]], Sequence[U]]) -> "Page[U]":
        """Return a page with the documents that ``make`` returns for the rows."""
        return Page(make(self.rows), self.cursor)


@dataclass(frozen=True, slots=True)
class PageOrder:
    """The order of a list. The values of ``columns`` are different for each row, and never NULL."""

    cursors: CursorFormat
    columns: tuple[QueryableAttribute[Any], ...]
    newest_first: bool = False

    def select(self, rows: "Select[Any]", part: PagePart) -> "Select[Any]":
        """Return the statement that reads the rows of ``part``, and the following row if there is one."""
        columns = [column.desc() if self.newest_first else column for column in self.columns]
        return rows.where(*self._is_after(part.cursor)).order_by(None).order_by(*columns).limit(part.limit + 1)

    def _is_after(self, cursor: str | None) -> list[ColumnElement[bool]]:
        """Return the conditions of the rows after a cursor.

        The redundant condition on the first column lets SQLite use an index, instead of reading the rows of all earlier
        pages.
        """
        if cursor is None:
            return []
        key = self.cursors.parse(cursor)
        columns, first = tuple_(*self.columns), self.columns[0]
        if self.newest_first:
            return [columns < key, first <= key[0]]
        return [columns > key, first >= key[0]]

    def read_key(self, row: object) -> list[KeyValue]:
        """Return the sort key of a row."""
        return [getattr(row, column.key) for column in self.columns]


def read_page(unit: Unit, rows: "Select[T]", order: PageOrder, part: PagePart) -> Page[T]:
    """Return a page of the rows that a statement selects. Raise BadInput for an invalid cursor."""
    found = unit.session.scalars(order.select(rows, part)).all()
    return make_page(found, part.limit, lambda last: order.cursors.format(order.read_key(last)))


def make_page(found: Sequence[T], limit: int, format_cursor: Callable[[T], str]) -> Page[T]:
    """Return the first ``limit`` rows, with a cursor if there are more rows."""
    shown = found[:limit]
    return Page(shown, format_cursor(shown[-1]) if len(found) > limit else None)


def read_all_pages(read: Callable[[PagePart], Page[T]]) -> Iterator[Sequence[T]]:
    """Yield the rows of each page, for which ``read`` opens a separate transaction."""
    part = PagePart()
    while True:
        page = read(part)
        yield page.rows
        if page.cursor is None:
            return
        part = replace(part, cursor=page.cursor)


def require_filter_names(unit: Unit, site: str | None, element: str | None) -> None:
    """Raise BadInput if a filter of a list names an unknown site or element.

    A call with a misspelt name would otherwise return an empty list. The names of removed sites and elements are known.
    """
    for kind, table, name in (("site", SiteRow, site), ("element", ElementRow, element)):
        if name is not None and unit.session.get(table, name) is None:
            raise BadInput(
                f"{kind}: expected the name of a known {kind}, got {name}: list the names: virtcloud {kind} list"
            )
