"""The application: all routes and the problem answers on one FastAPI app."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib import metadata
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from sbf_service.bootstrap import SbfService
from sbf_service.http import problems
from sbf_service.http.auth.authentication import STATIC_DOCS, AuthenticationMiddleware
from sbf_service.http.middleware import RequestTimingMiddleware
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes import (
    audit,
    cables,
    clusters,
    differences,
    dry_runs,
    elements,
    health,
    jobs,
    metrics,
    ports,
    preparation,
    quotas,
    shares,
    site_parts,
    sites,
    tokens,
    topology,
)
from sbf_service.http.version_0_1 import Version01Middleware

DESCRIPTION = """
Virtual clusters: private layer-2 networks across sites, with virtual machines on them.

Every call needs a token (`Authorization: Bearer vc_…`), but `/healthz`, `/readyz`, this page, and `/metrics` on the
loopback. What a caller may do depends on its role.

Every call but making a token may be repeated: the same key and body again changes nothing. Every error is a problem
document (`application/problem+json`, RFC 9457) whose `type` is `urn:virtcloud:problem:<name>` and whose `detail` says
what was wanted, what was found, and what to do. Long polls take `after` and `wait`: they answer as soon as there is
something newer than `after`, or after `wait` seconds with what there is.

Programs ignore keys of answers that they do not know: later versions have more. An unknown key of a request is 422. A
caller whose `User-Agent` is `python-httpx/…` is taken for the client of version 0.1 and gets that version's keys only.

A body longer than the service's `limits.body` is 413 `beyond-limit`, before it is read.
"""

DENIED = problem_responses(HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)


def create_app(service: SbfService) -> FastAPI:
    """Make the application for a service; it starts and stops the service with itself."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            service.stop()

    app = FastAPIOffline(
        title="SBF", version=_version(), description=DESCRIPTION, lifespan=lifespan, static_url=STATIC_DOCS
    )
    _describe_problems(app)
    problems.install_error_handlers(app)
    app.add_middleware(AuthenticationMiddleware, service=service)
    app.add_middleware(Version01Middleware)
    app.add_middleware(RequestTimingMiddleware, metrics=service.metrics)
    for resource in (
        clusters,
        shares,
        topology,
        sites,
        site_parts,
        cables,
        preparation,
        elements,
        differences,
        dry_runs,
        ports,
        audit,
        tokens,
        quotas,
        jobs,
        metrics,
    ):
        app.include_router(resource.routes(service), responses=DENIED)
    app.include_router(health.routes(service))
    return app


def _describe_problems(app: FastAPI) -> None:
    """Add the problem document to the OpenAPI document; FastAPI adds only what a route returns."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            problems.add_problem_schema(made())
        return made()

    app.openapi = openapi  # type: ignore[method-assign] # FastAPI's documented way to change the document


def _version() -> str:
    try:
        return metadata.version("virtcloud")
    except metadata.PackageNotFoundError:
        return "0"
