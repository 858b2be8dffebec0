"""Large bodies of calls: a separate thread parses and checks them.

FastAPI would parse a body on the event loop, so no other call would be answered meanwhile. PyYAML takes seconds to
check the cloud-configs of a cluster with many guests.
"""

import json
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final

from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from sbf_service.http.operations import Operation
from virtcloud.model.document import Document

LARGE_BODY: Final = 16 * 1024
"""A body of at least this size, in bytes, is parsed in a separate thread."""
MAX_FAULTS: Final = 10_000
ParseBody = Callable[[bytes, Request], Document]
"""Parses the body of a request; raises the errors of :func:`parse_document`."""


class LargeBodyOperation(Operation):
    """A route that parses large bodies in a separate thread, if the route expects a :class:`.Document` as the body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler."""
        handler, parse = super().get_route_handler(), self.find_parser()
        if parse is None:
            return handler

        async def answer(request: Request) -> Response:
            try:
                body = await request.body()
            except ClientDisconnect:
                # FastAPI reads the body again, detects the disconnect, and reports no fault in SBF.
                return await handler(request)
            document = await run_in_threadpool(parse, body, request) if len(body) >= LARGE_BODY else None
            return await handler(request if document is None else _ParsedRequest(request, body, document))

        return answer

    def find_parser(self) -> ParseBody | None:
        """Return the parser of the route's body, or None if the route expects no :class:`.Document` as the body."""
        model = None if self.body_field is None else self.body_field.field_info.annotation
        if not isinstance(model, type) or not issubclass(model, Document):
            return None
        return lambda body, _request: parse_document(model, body)


class _ParsedRequest(Request):
    def __init__(self, request: Request, body: bytes, document: Document) -> None:
        super().__init__(request.scope, request.receive)
        self._body, self._document = body, document

    async def json(self) -> Document:
        """Return the document.

        FastAPI then repeats the validators of the document's class, but not those of its parts.
        """
        return self._document


def parse_document(model: type[Document], body: bytes) -> Document:
    """Parse a body. Raise the same errors as FastAPI, so that FastAPI need not parse an invalid body on the event loop.

    Raise RequestValidationError with all faults of the body. Raise HTTPException with status 400 if the body is not
    UTF-8, is too deeply nested, or contains a number with thousands of digits.
    """
    try:
        return model.model_validate(json.loads(body))
    except ValidationError as error:
        raise make_request_error(error) from error
    except json.JSONDecodeError as error:
        raise make_syntax_error(error) from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "There was an error parsing the body") from error


def make_syntax_error(error: json.JSONDecodeError) -> RequestValidationError:
    """Return FastAPI's error for a body that is no JSON."""
    fault = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error"}
    return RequestValidationError([{**fault, "input": {}, "ctx": {"error": error.msg}}])


def make_request_error(error: ValidationError) -> RequestValidationError:
    """Return FastAPI's error for the faults of a body.

    Do not describe the single faults if there are more than ``MAX_FAULTS``: a body of 4 MiB can have two million
    faults.
    """
    count = error.error_count()
    if count > MAX_FAULTS:
        text = f"body: expected at most {MAX_FAULTS} faults, got {count}: correct the document"
        return RequestValidationError([{"type": "value_error", "loc": ("body",), "msg": text, "input": None}])
    faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors(include_url=False)]
    return RequestValidationError(faults)
