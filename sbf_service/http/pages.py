"""Answers that contain a list, as a whole or in pages: parameters ``limit`` and ``cursor``, header ``Link`` (RFC 8288).

The body is an array. If there is a following page, the header ``Link`` with ``rel="next"`` has its address. SBF reads
even a whole list page by page. Each page has its own transaction, which ends before the conversion to JSON.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Query, Request, Response
from pydantic import TypeAdapter

from sbf_service.domain.page_cursors import DEFAULT_PAGE, MAX_CURSOR, MAX_PAGE
from sbf_service.store.pages import Page, PagePart, read_all_pages
from virtcloud.model.document import Document

D = TypeVar("D", bound=Document)

LimitQuery = Annotated[
    int | None,
    Query(ge=1, le=MAX_PAGE, description="The maximum number of rows in a page; if omitted, the whole list."),
]
CursorQuery = Annotated[
    str | None,
    Query(max_length=MAX_CURSOR, description="The position of a page, from the `Link` header of the previous page."),
]
OrderQuery = Annotated[
    Literal["oldest", "newest"] | None,
    Query(description="Return pages, and begin with the oldest or with the newest rows."),
]
PAGES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "headers": {
            "Link": {
                "description": 'The address of the next page, with `rel="next"`; absent after the last row.',
                "schema": {"type": "string"},
            }
        }
    }
}


@dataclass(frozen=True, slots=True)
class PageCall:
    """The parameters of a call that reads a list."""

    request: Request
    limit: int | None
    cursor: str | None

    @property
    def wants_page(self) -> bool:
        """Whether the caller asked for a page."""
        return self.limit is not None or self.cursor is not None

    @property
    def part(self) -> PagePart:
        """The part of the list that the caller asked for."""
        return PagePart(self.limit or DEFAULT_PAGE, self.cursor)

    def answer(self, kind: type[D], read: Callable[[PagePart], Page[D]]) -> Response:
        """Return a page if the caller asked for a page, otherwise the whole list.

        ``read`` opens a transaction for each page.
        """
        return self.answer_page(kind, read) if self.wants_page else answer_list(kind, read_all_pages(read))

    def answer_page(self, kind: type[D], read: Callable[[PagePart], Page[D]]) -> Response:
        """Return the answer with a page, and the address of the following page."""
        page = read(self.part)
        response = answer_list(kind, [page.rows])
        if page.cursor is not None:
            response.headers["link"] = f'<{self._next_address(page.cursor)}>; rel="next"'
        return response

    def _next_address(self, cursor: str) -> str:
        """Return the address of the following page without scheme and host, which a proxy may change."""
        kept = [(key, value) for key, value in self.request.query_params.multi_items() if key != "cursor"]
        return f"{self.request.url.path}?{urlencode([*kept, ('cursor', cursor)])}"


async def _page_call(request: Request, limit: LimitQuery = None, cursor: CursorQuery = None) -> PageCall:
    return PageCall(request, limit, cursor)


CurrentPage = Annotated[PageCall, Depends(_page_call)]


def answer_list(kind: type[D], parts: Iterable[Sequence[D]]) -> Response:
    """Return the answer with the documents of all parts, as one array.

    Each part becomes JSON before the next part is read, because JSON needs less memory.
    """
    adapter = _list_adapter(kind)
    texts = [adapter.dump_json(list(part), by_alias=True)[1:-1] for part in parts]
    return Response(b"[" + b",".join(filter(None, texts)) + b"]", media_type="application/json")


@cache
def _list_adapter(kind: type[D]) -> TypeAdapter[list[D]]:
    return TypeAdapter(list[kind])  # type: ignore[valid-type]
