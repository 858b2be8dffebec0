"""Calls made from the OpenAPI document, right and wrong ones: none is answered with 500, and all as the document says.

No worker runs; switches are fakes, as everywhere. The seed is fixed, so that a failure can be had again.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from sbf_fakes.http_calls import ROOT, from_peer
from sbf_fakes.world import World, make_world, spec
from schemathesis import BaseSchema, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.types import ASGIApp, Receive, Scope, Send

from sbf_service.bootstrap import build_service
from sbf_service.http.app import create_app
from sbf_service.settings import ServiceSettings

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
FAULT = 500
EXAMPLES = 8
LONGEST_WAIT_S = 0.01


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """The paper's installation with a cluster in it."""
    with TemporaryDirectory() as folder:
        made = make_world(Path(folder))
        made.furnish()
        made.put("demo", spec("brno-h1"))
        made.settle()
        yield made
        made.close()


@pytest.fixture(scope="module")
def schema(world: World) -> BaseSchema:
    """The document, and the application that is called as an operator."""
    return schemathesis.openapi.from_asgi("/openapi.json", idle(from_peer(create_app(world.service), ROOT)))


def as_operator(case: schemathesis.Case) -> schemathesis.Case:
    """Show no made-up token, with which nothing past the gate would be called; keep long polls short."""
    if case.headers:
        case.headers.pop("Authorization", None)
    query = case.query or {}
    wait = query.get("wait")
    if isinstance(wait, int | float) and wait > LONGEST_WAIT_S:
        query["wait"] = LONGEST_WAIT_S
    return case


def there(path: str, name: str) -> str:
    """Give the name of something that is there."""
    if name == "name":
        return "brno" if path.startswith("/v1/sites/") else "brno-h1"
    return {"key": "demo", "vlan": "100", "user": "alice", "id": "aaaaaaaa"}[name]


def idle(app: ASGIApp) -> ASGIApp:
    """Answer for the application when it is to start and stop: schemathesis would have its workers run."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for asked in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{asked}.complete"})

    return call


def calls() -> Iterator[tuple[str, GenerationMode]]:
    """Every call, with what is right, and with what is wrong where there is something to be wrong."""
    for path, methods in create_app(build_service(ServiceSettings())).openapi()["paths"].items():
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
    @given(case=operation.as_strategy(generation_mode=mode), real=st.booleans())
    def answered(case: schemathesis.Case, real: bool) -> None:
        case = as_operator(case)
        if real and mode is GenerationMode.POSITIVE:
            case.path_parameters = {name: there(path, name) for name in case.path_parameters}
        answer = case.call()
        assert answer.status_code != FAULT, case.as_curl_command()
        case.validate_response(answer, checks=CHECKS)

    answered()
