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
from sbf_fakes.talk import ROOT, from_peer
from sbf_fakes.world import World, make_world, spec
from schemathesis import BaseSchema, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.types import ASGIApp, Receive, Scope, Send

from sbf_service.http.app import create_app
from sbf_service.service import make_service
from sbf_service.settings import Settings
from virtcloud.model.access import Role

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
FAULT = 500
EXAMPLES = 10
LONGEST_WAIT_S = 0.01


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """The paper's installation with a cluster and a token in it: names of what is there are told to the generator."""
    with TemporaryDirectory() as folder:
        made = make_world(Path(folder))
        made.furnish()
        made.put("demo", spec("brno-h1"))
        made.token(Role.USER, "alice")
        made.settle()
        yield made
        made.close()


@pytest.fixture(scope="module")
def schema(world: World) -> BaseSchema:
    """The document, and the application that is called as an operator."""
    return schemathesis.openapi.from_asgi("/openapi.json", idle(from_peer(create_app(world.service), ROOT)))


def without_waiting(case: schemathesis.Case) -> schemathesis.Case:
    """Keep long polls short; what cannot be a number of seconds stays as it is."""
    query = case.query or {}
    wait = query.get("wait")
    if isinstance(wait, int | float) and wait > LONGEST_WAIT_S:
        query["wait"] = LONGEST_WAIT_S
    return case


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
    for path, methods in create_app(make_service(Settings())).openapi()["paths"].items():
        for method, call in methods.items():
            yield f"{method.upper()} {path}", GenerationMode.POSITIVE
            if "parameters" in call or "requestBody" in call:
                yield f"{method.upper()} {path}", GenerationMode.NEGATIVE


@pytest.mark.parametrize(("call", "mode"), list(calls()))
def test_no_call_is_answered_otherwise_than_the_document_says(
    schema: BaseSchema, call: str, mode: GenerationMode
) -> None:
    method, _, path = call.partition(" ")
    operation = schema[path][method]

    @seeded(0)
    @settings(max_examples=EXAMPLES, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def answered(case: schemathesis.Case) -> None:
        case = without_waiting(case)
        answer = case.call()
        assert answer.status_code != FAULT, case.as_curl_command()
        case.validate_response(answer, checks=CHECKS)

    answered()
