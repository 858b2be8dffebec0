"""The FastAPI application: routers, middleware, and the OpenAPI document."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib import metadata
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.types import ASGIApp

from sbf_service.bootstrap import SbfService
from sbf_service.http.auth.authentication import STATIC_DOCS, AuthenticationMiddleware
from sbf_service.http.long_polls import PollAdmission
from sbf_service.http.middleware import RequestTimingMiddleware, StopMiddleware, Version01Middleware
from sbf_service.http.problems import add_problem_schema, install_error_handlers, problem_responses
from sbf_service.http.request_ids import RequestIdMiddleware
from sbf_service.http.routes import (
    access,
    audit,
    clones,
    clusters,
    elements,
    guests,
    images,
    jobs,
    keys,
    monitoring,
    network_shares,
    publications,
    sessions,
    sites,
    ssh_access,
    topology,
    traffic,
    verification,
    vpn,
)
from sbf_service.http.routes.monitoring import ReadinessProbe, probe_database
from sbf_service.http.session_relay import SessionRelay
from sbf_service.http.settled_polls import SettledPollMiddleware

DESCRIPTION = """
Virtual clusters: private layer-2 networks across sites, with virtual machines on them.

Every call over TCP needs a token (`Authorization: Bearer vc_…`), except `/healthz`, `/readyz`, this page, and
`/metrics` on the loopback. The caller's role determines which calls are allowed.

A call that creates a token, a VPN profile or an SSH certificate, or that renews the certificate authority, is not
idempotent. Every other call is idempotent: a repeated call with the same key and body changes nothing.

Every error is a problem document (`application/problem+json`, RFC 9457) whose `type` is `urn:virtcloud:problem:<name>`
and whose `detail` contains the expectation, the observation and the remedy. A call with `after` and `wait` is a long
poll: SBF answers when the resource is newer than `after`. If the resource is not newer than `after` within `wait`
seconds, SBF answers with the current version.

Clients must ignore unknown keys of answers, because later versions add keys. A request with an unknown key is answered
with 422. A caller whose `User-Agent` is `python-httpx/…` counts as a client of version 0.1. SBF's answers to such a
caller contain only the keys of version 0.1.

Every answer has the header `X-Request-ID`. A client may choose the ID (letters, digits, `.`, `_`, `-`, at most 64
characters). SBF's log lines and audit rows about the call contain the ID.

Long lists are read in pages: `limit` is the number of rows, and the header `Link` with `rel="next"` has the address of
the next page. Clusters and audit rows are read in pages only with `order`. Rows that are added or removed between two
calls do not shift the next page. Every JSON answer to GET has an `ETag`; with `If-None-Match`, an unchanged answer is
304.

A body longer than the setting `limits.body` (for the file of an image: `images.size`) is answered with 413
`beyond-limit` before SBF reads the body.
"""


def create_app(service: SbfService) -> FastAPI:
    """Create the application of a service. The service starts and stops with the application."""

    @asynccontextmanager
    async def run_service(_app: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            service.stop()

    app = FastAPIOffline(
        title="SBF", version=_version(), description=DESCRIPTION, lifespan=run_service, static_url=STATIC_DOCS
    )
    app.state.service = service
    app.state.sessions = SessionRelay(service.settings.relay.sessions_per_user, service.settings.relay.idle)
    app.state.polls = PollAdmission(service)
    app.state.readiness = ReadinessProbe(lambda: probe_database(service))
    _document_problems(app)
    install_error_handlers(app)
    app.add_middleware(AuthenticationMiddleware, service=service)
    app.add_middleware(StopMiddleware, change_feed=service.change_feed)
    app.add_middleware(Version01Middleware)
    app.add_middleware(RequestTimingMiddleware, metrics=service.metrics)
    app.add_middleware(RequestIdMiddleware)
    _include_routes(app)
    return app


def answer_settled_polls(app: FastAPI) -> ASGIApp:
    """Return an application that answers polls of settled agents itself, and passes all other calls to ``app``.

    An agent is settled if its element has confirmed the wanted revision and has no error report.
    """
    return SettledPollMiddleware(app, app.state.service, app.state.polls)


def _include_routes(app: FastAPI) -> None:
    denied = problem_responses(401, 403, 429)
    resources = (
        clusters,
        network_shares,
        verification,
        guests,
        sessions,
        clones,
        topology,
        sites,
        elements,
        audit,
        access,
        keys,
        jobs,
        images,
        vpn,
        ssh_access,
        publications,
        traffic,
    )
    for resource in resources:
        app.include_router(resource.router, responses=denied)
    app.include_router(vpn.gateway_router, responses=denied)
    app.include_router(vpn.authority_router, responses=denied)
    app.include_router(ssh_access.gateway_router, responses=denied)
    app.include_router(monitoring.metrics_router, responses=denied)
    app.include_router(monitoring.health_router)


def _document_problems(app: FastAPI) -> None:
    make_document = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            add_problem_schema(make_document())
        return make_document()

    app.openapi = openapi  # type: ignore[method-assign] # FastAPI's documented way to change the document


@cache
def _version() -> str:
    try:
        return metadata.version("virtcloud")
    except metadata.PackageNotFoundError:
        return "0"
