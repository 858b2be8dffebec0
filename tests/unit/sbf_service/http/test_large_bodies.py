"""Tests of large bodies. A separate thread parses them, with the same results and errors as FastAPI's parser."""

import asyncio
import json
import threading
from typing import Any, Self

import httpx
import pytest
from fastapi import FastAPI
from pydantic import model_validator

from sbf_service.http.large_bodies import LARGE_BODY, LargeBodyOperation
from virtcloud.model.document import Document


class Text(Document):
    """A text that records the threads that validate it."""

    text: str

    @model_validator(mode="after")
    def _record_thread(self) -> Self:
        parsers.append(threading.current_thread())
        return self


class Note(Document):
    """A body with a text."""

    content: Text
    copies: int = 1


parsers: list[threading.Thread] = []


def make_body(length: int, **change: object) -> str:
    return json.dumps({"content": {"text": "x" * length}, **change})


def put(body: str) -> tuple[int, Any]:
    """Send a body to an application in this thread. Return the status and the answer."""
    app = FastAPI()
    app.router.route_class = LargeBodyOperation

    @app.put("/note", operation_id="put", tags=["notes"])
    async def put_note(note: Note) -> int:
        return len(note.content.text)

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sbf") as http:
            return await http.put("/note", content=body, headers={"content-type": "application/json"})

    parsers.clear()
    answer = asyncio.run(send())
    return answer.status_code, answer.json()


@pytest.mark.parametrize(("length", "is_parsed_here"), [(10, True), (LARGE_BODY, False)], ids=["small", "large"])
def test_only_large_bodies_are_parsed_in_another_thread(length: int, is_parsed_here: bool) -> None:
    assert put(make_body(length)) == (200, length)
    assert [thread is threading.current_thread() for thread in parsers] == [is_parsed_here]


@pytest.mark.parametrize("change", [{"copies": "many"}, {"unknown": 1}], ids=["value", "key"])
def test_large_bodies_have_the_usual_faults(change: dict[str, object]) -> None:
    (status, usual), large = (put(make_body(length, **change)) for length in (1, LARGE_BODY))
    faults = [{key: value for key, value in fault.items() if key != "input"} for fault in usual["detail"]]
    found = [{key: value for key, value in fault.items() if key != "input"} for fault in large[1]["detail"]]
    assert (large[0], found) == (status, faults) == (422, faults)


def test_a_large_body_that_is_no_json_is_refused() -> None:
    assert put("x" * LARGE_BODY)[0] == 422
