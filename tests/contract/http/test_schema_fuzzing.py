"""Tests with calls that are generated from the OpenAPI document, with a fixed seed.

No answer has status 500, and all answers conform to the document. No worker runs, and the switches are fakes.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from schemathesis import BaseSchema, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.types import ASGIApp, Receive, Scope, Send
from support.sbf_fakes.http_calls import ROOT, from_peer
from support.sbf_fakes.openapi_document import openapi_document
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.http.app import create_app

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
FAULT = 500
EXAMPLES = 8
LONGEST_WAIT_S = 0.01


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with TemporaryDirectory() as folder:
        installation = make_world(Path(folder))
        installation.furnish()
        installation.put("demo", spec("brno-h1"))
        installation.settle()
        yield installation
        installation.close()


@pytest.fixture(scope="module")
def schema(world: World) -> BaseSchema:
    app = create_app(world.service)
    app.openapi_schema = openapi_document()
    return schemathesis.openapi.from_asgi("/openapi.json", without_workers(from_peer(app, ROOT)))


Case = schemathesis.Case[Any]


def as_operator(case: Case) -> Case:
    """Remove a generated token from a call, and shorten a long poll. Return the call.

    SBF would refuse the token. Without a token, the caller is root, who is an operator.
    """
    if case.headers:
        case.headers.pop("Authorization", None)
    query = case.query or {}
    wait = query.get("wait")
    if isinstance(wait, int | float) and wait > LONGEST_WAIT_S:
        query["wait"] = LONGEST_WAIT_S
    return case


def existing_name(path: str, name: str) -> str:
    if name == "name":
        return "brno" if path.startswith("/v1/sites/") else "brno-h1"
    values = {
        "key": "demo",
        "vlan": "100",
        "user": "alice",
        "id": "aaaaaaaa",
        "guest": "g1",
        "port": "22",
        "session": "aaaaaaaa",
        "profile": "aaaaaaaa",
        "serial": "7",
        "site": "brno",
        "fingerprint": f"SHA256:{'a' * 43}",
    }
    return values[name]


def without_workers(app: ASGIApp) -> ASGIApp:
    """Return an application that answers start and stop events itself, so that ``app`` starts no workers."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    return call


def calls() -> Iterator[tuple[str, GenerationMode]]:
    """Yield each operation with the mode for valid arguments.

    If the operation has arguments, also yield the operation with the mode for invalid arguments.
    """
    for path, methods in openapi_document()["paths"].items():
        for method, call in methods.items():
            yield f"{method.upper()} {path}", GenerationMode.POSITIVE
            if "parameters" in call or "requestBody" in call:
                yield f"{method.upper()} {path}", GenerationMode.NEGATIVE


@pytest.mark.parametrize(("call", "mode"), list(calls()))
def test_every_answer_conforms_to_the_openapi_document(schema: BaseSchema, call: str, mode: GenerationMode) -> None:
    method, _, path = call.partition(" ")
    operation = schema[path][method]

    @seeded(0)
    @settings(max_examples=EXAMPLES, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode), existing=st.booleans())
    def check_answer(case: Case, existing: bool) -> None:
        case = as_operator(case)
        if existing and mode is GenerationMode.POSITIVE:
            case.path_parameters = {name: existing_name(path, name) for name in case.path_parameters}
        answer = case.call()
        assert answer.status_code != FAULT, case.as_curl_command()
        case.validate_response(answer, checks=CHECKS)

    check_answer()
