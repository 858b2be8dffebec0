"""Bodies with a topology of many megabytes: a separate thread parses and writes them in pieces.

Parsing 20 MB at once would block all threads for half a second, even in a separate thread. Other threads can run
between two pieces, which are single sites and links.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from fastapi import Request, Response
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from sbf_service.bootstrap import SbfService
from sbf_service.http.large_bodies import (
    LargeBodyOperation,
    ParseBody,
    make_request_error,
    make_syntax_error,
    parse_document,
)
from sbf_service.large_documents import collect_later, give_way
from virtcloud.model.document import Document, share_given_keys
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Link, Site
from virtcloud.model.yield_points import with_yield_points, yield_point

ParsePiece = Callable[[Any], Document]
SENT_PIECE: Final = 64 * 1024
_BLANKS = re.compile(r"[ \t\n\r]*")
_AFTER_ITEM = re.compile(r"[ \t\n\r]*([],])[ \t\n\r]*")
_DECODER = json.JSONDecoder()
_LINK_DEFAULTS: Final[dict[str, Any]] = {
    name: field.default for name, field in Link.model_fields.items() if not field.is_required()
}
"""The values of the keys that a body may omit: clients omit keys that have their default value."""


class TopologyOperation(LargeBodyOperation):
    """A route that parses a large topology in pieces."""

    def find_parser(self) -> ParseBody | None:
        """Return the parser of the route's body, or None."""
        is_topology = self.body_field is not None and self.body_field.field_info.annotation is Topology
        return _parse_new_topology if is_topology else super().find_parser()


def _parse_new_topology(body: bytes, request: Request) -> Document:
    service: SbfService = request.app.state.service
    return parse_topology(body, service.store.cached_topology)


def parse_topology(body: bytes, former: Topology | None = None) -> Document:
    """Parse a topology. Raise the errors of :func:`.parse_document`.

    A link that equals a link of ``former`` becomes the same object.
    """
    with collect_later(len(body)), give_way():
        try:
            known: dict[str, Link] = {} if former is None else {link.a: link for link in former.links}
            pieces: dict[str, ParsePiece] = {"sites": _parse_site, "links": partial(_parse_link, known)}
            return Topology.model_validate(dict(_parse_members(body.decode(), pieces)))
        except ValidationError as error:
            raise make_request_error(error) from error
        except json.JSONDecodeError as error:
            raise make_syntax_error(error) from error
        except (ValueError, RecursionError, _UnexpectedText):
            return parse_document(Topology, body)  # finds the position of the text that is no JSON


class _UnexpectedText(Exception):
    """The text is not a JSON object."""


def _parse_members(text: str, pieces: Mapping[str, ParsePiece]) -> Iterator[tuple[str, object]]:
    """Yield the keys and values of a JSON object.

    ``pieces`` has, by key, the parsers of lists whose items are parsed one by one.
    """
    position = _skip(text, 0, "{")
    while True:
        if not text.startswith('"', _blanks_end(text, position)):
            raise _UnexpectedText
        key, position = _decode(text, position)
        position = _skip(text, position, ":")
        if key in pieces and text.startswith("[", _blanks_end(text, position)):
            items, position = _parse_items(text, _skip(text, position, "["), pieces[key])
            yield key, items
        else:
            value, position = _decode(text, position)
            yield key, value
        if text.startswith("}", _blanks_end(text, position)):
            break
        position = _skip(text, position, ",")
    if _blanks_end(text, _skip(text, position, "}")) != len(text):
        raise _UnexpectedText


def _parse_items(text: str, position: int, parse: ParsePiece) -> tuple[tuple[object, ...], int]:
    """Return the documents of a list, and the position after the list. An item with faults remains unparsed.

    ``position`` is the position after the opening bracket of the list.
    """
    found: list[object] = []
    position = _blanks_end(text, position)
    if text.startswith("]", position):
        return (), position + 1
    while True:
        yield_point()
        value, position = _DECODER.raw_decode(text, position)
        try:
            found.append(parse(value))
        except ValidationError:
            found.append(value)  # the validation of the whole topology finds all faults, with their positions
        end = _AFTER_ITEM.match(text, position)
        if end is None:
            raise _UnexpectedText
        position = end.end()
        if end[1] == "]":
            return tuple(found), position


def _parse_site(value: object) -> Site:
    site = Site.model_validate(value)
    share_given_keys(site.elements)
    return site


def _parse_link(known: Mapping[str, Link], value: Any) -> Link:  # noqa: ANN401 - JSON
    """Return the document of a link. ``known`` has the former topology's links by their first port."""
    former = known.get(value["a"]) if isinstance(value, dict) and isinstance(value.get("a"), str) else None
    if former is not None and vars(former) == _LINK_DEFAULTS | value:
        return former
    link = Link.model_validate(value)
    share_given_keys([link])
    return link


def _decode(text: str, position: int) -> tuple[Any, int]:
    return _DECODER.raw_decode(text, _blanks_end(text, position))


def _blanks_end(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return position if found is None else found.end()


def _skip(text: str, position: int, expected: str) -> int:
    position = _blanks_end(text, position)
    if not text.startswith(expected, position):
        raise _UnexpectedText
    return position + 1


class LargeAnswer(Response):
    """An answer that is sent in parts of at most ``SENT_PIECE`` bytes.

    asyncio would move the unsent rest of megabytes in memory after each write.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send the answer at the speed of the client."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for position in range(0, len(self.body), SENT_PIECE):
            piece = self.body[position : position + SENT_PIECE]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def answer_topology(topology: Topology, response: Response) -> Response:
    """Return the answer with a topology, and with the headers of ``response``."""
    with give_way():
        body = b"".join(_dump_topology(topology))
    return LargeAnswer(body, headers=dict(response.headers), media_type="application/json")


def _dump_topology(topology: Topology) -> Iterator[bytes]:
    common = topology.model_dump_json(exclude={"sites", "links"}).encode()
    yield common.removesuffix(b"}")
    for key, items in (("sites", topology.sites), ("links", topology.links)):
        yield b',"%s":[' % key.encode()
        for number, item in enumerate(with_yield_points(items)):
            yield (b"," if number else b"") + item.model_dump_json().encode()
        yield b"]"
    yield b"}"
