import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from sbf_service.bootstrap import SbfService
from sbf_service.http.app import answer_settled_polls, create_app
from sbf_service.http.auth import connections
from sbf_service.http.auth.connections import LocalPeer
from support.sbf_fakes.world import World, spec
from virtcloud.client.connection import USER_AGENT
from virtcloud.model.views import Problem

Calls = Callable[[httpx.AsyncClient], Awaitable[None]]
"""A coroutine that makes calls with a client."""
ROOT = LocalPeer(0, "root")
"""The local user root, as a caller over the service's socket. SBF treats root as an operator."""


ROUTERS: list[APIRouter] = []
"""The router that all applications share to save time.

FastAPI analyses all routes when an application is first called.
"""


def app_of(service: SbfService) -> FastAPI:
    """Create a service's application with the shared router. Callers must not run the application's lifespan."""
    app = create_app(service)
    if not ROUTERS:
        ROUTERS.append(app.router)
    app.router = ROUTERS[0]
    return app


def client(service: SbfService, token: str | None = None, local: LocalPeer | None = None) -> httpx.AsyncClient:
    """Return a client of the service.

    The caller is the holder of ``token`` (over TCP), the user ``local``, or by default root.
    """
    app = answer_settled_polls(app_of(service))
    target = app if token is not None else from_peer(app, local or ROOT)
    headers = {"user-agent": USER_AGENT} | ({"authorization": f"Bearer {token}"} if token else {})
    transport = httpx.ASGITransport(target, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://sbf", headers=headers)


def from_peer(app: ASGIApp, who: LocalPeer) -> ASGIApp:
    """Return an application that treats all calls as calls of a local user over the service's socket."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, connections.PEER_KEY: who}, receive, send)

    return call


def ask(  # noqa: PLR0913 - a call and its caller
    world: World,
    method: str,
    path: str,
    body: Any = None,
    *,
    token: str | None = None,
    local: LocalPeer | None = None,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """Make one call of the API. No worker runs, so a device changes only if the call itself reconciles the device."""

    async def call() -> httpx.Response:
        async with client(world.service, token, local) as http:
            return await http.request(method, path, json=body, headers=headers)

    return asyncio.run(call())


def problem(answer: httpx.Response) -> tuple[int, str, str]:
    """Return the status, type and detail of an answer, which must be a problem document."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    document = Problem.model_validate_json(answer.content)
    assert document.status == answer.status_code
    return document.status, document.type.removeprefix("urn:virtcloud:problem:"), document.detail


def body(*hosts: str, attempt: int | None = None) -> dict[str, Any]:
    return {"spec": spec(*hosts).model_dump(mode="json"), "attempt": attempt}


def run_with_client(world: World, calls: Calls) -> None:

    async def run() -> None:
        async with client(world.service) as http:
            await calls(http)

    asyncio.run(run())
