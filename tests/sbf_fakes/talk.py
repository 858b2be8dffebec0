"""Calls of the HTTP API of a world's service, in this process."""

import asyncio
from typing import Any

import httpx

from sbf_fakes.world import World, spec
from sbf_service.http.app import create_app
from virtcloud.model.views import Problem


def ask(world: World, method: str, path: str, body: Any = None) -> httpx.Response:  # noqa: ANN401 - any JSON
    """Make one call; no worker runs."""

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(world.service), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://sbf") as client:
            return await client.request(method, path, json=body)

    return asyncio.run(call())


def problem(answer: httpx.Response) -> tuple[int, str, str]:
    """Give status, type and detail of an answer that must be a problem document."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    found = Problem.model_validate_json(answer.content)
    assert found.status == answer.status_code
    return found.status, found.type.removeprefix("urn:virtcloud:problem:"), found.detail


def body(*hosts: str, attempt: int | None = None) -> dict[str, Any]:
    """Ask for a cluster with one guest on each host."""
    return {"spec": spec(*hosts).model_dump(mode="json"), "attempt": attempt}
