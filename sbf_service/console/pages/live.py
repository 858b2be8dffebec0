"""The streams of events for the start page, and for the pages of clusters.

A page sends the version of its content when it opens its stream. Thus the stream also reports changes that SBF made
after it rendered the page.
"""

from functools import partial
from hashlib import sha256
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from sbf_service.bootstrap import SbfService
from sbf_service.console.events import LivePage, StreamCounts, stream_events
from sbf_service.console.page import ConsoleRoute
from sbf_service.console.rendering import PREFIX
from sbf_service.console.sessions import CurrentBrowser
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentService, authorize_cluster
from sbf_service.http.routes.clusters import EarlierIdQuery, KeyPath
from sbf_service.store.access import vpn_users
from sbf_service.store.clusters import clusters
from sbf_service.store.maintenance.audit_log import find_newest_id
from sbf_service.store.networks import outside_uses, traffic
from sbf_service.store.unit_of_work import AUDIT_TOPIC, TRAFFIC_TOPIC
from virtcloud.model.values import ClusterKey

TRAFFIC_PERIOD_S: Final = 10
"""The minimum time in seconds between two events because of traffic reports."""
SeenQuery = Annotated[str | None, Query(max_length=64)]
router = APIRouter(prefix=PREFIX, route_class=ConsoleRoute, include_in_schema=False)


def read_overview_version(service: SbfService) -> str:
    """Return the version of the start page. The version changes with each change of any cluster or element."""
    with service.store.read() as unit:
        return _hash_version(find_newest_id(unit))


def read_cluster_version(service: SbfService, key: ClusterKey, cluster_id: str | None) -> str:
    """Return the version of a cluster's page. Raise NotFound for an unknown cluster.

    The caller must first check the user's right to read the cluster.
    """
    with service.store.read() as unit:
        row = clusters.require_cluster(unit, key, cluster_id)
        uses = [use.reported_at for use in outside_uses.list_uses(unit, key, row.id)]
        devices = [one.reported_at for one in vpn_users.list_connections(unit, key, None, row.id)]
        reported = traffic.find_last_report(unit, row.network or row.id)
        period = None if reported is None else reported.timestamp() // TRAFFIC_PERIOD_S
        used, connected = max(uses, default=None), max(devices, default=None)
        return _hash_version(row.id, row.version, period, used, connected, len(devices))


def _hash_version(*parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()[:16]


@router.get("/events")
async def follow_overview(
    request: Request, service: CurrentService, browser: CurrentBrowser, seen: SeenQuery = None
) -> Response:
    """Send an event after each change of any cluster or element.

    Every user may receive the events, because an event contains no data.
    """
    page = LivePage((AUDIT_TOPIC,), partial(read_overview_version, service), seen)
    return stream_events(service, browser, _counts(request), page)


@router.get("/clusters/{key}/events")
async def follow_cluster(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    key: KeyPath,
    request: Request,
    service: CurrentService,
    browser: CurrentBrowser,
    id: EarlierIdQuery = None,  # noqa: A002 - the word of the API
    seen: SeenQuery = None,
) -> Response:
    """Send an event after each change of a cluster, and after reports about its traffic and its connected devices.

    Reports about the traffic of hosts and gateways cause at most one event in ``TRAFFIC_PERIOD_S`` seconds.
    """
    await run_in_threadpool(authorize_cluster, service.store, browser.caller, Action.READ_CLUSTER, key, id)
    page = LivePage((f"cluster:{key}", TRAFFIC_TOPIC), partial(read_cluster_version, service, key, id), seen)
    return stream_events(service, browser, _counts(request), page)


def _counts(request: Request) -> StreamCounts:
    counts: StreamCounts = request.app.state.console_streams
    return counts
