"""The streams of events for the start page, and for the pages of clusters."""

from collections.abc import Hashable
from typing import Final

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from sbf_service.console.events import StreamCounts, stream_events
from sbf_service.console.page import Page
from sbf_service.console.rendering import PREFIX
from sbf_service.console.sessions import CurrentBrowser
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentService, authorize_cluster
from sbf_service.http.routes.clusters import EarlierIdQuery, KeyPath
from sbf_service.store import clusters, outside_uses, traffic, vpn_users
from sbf_service.store.audit_log import find_newest_id
from sbf_service.store.unit_of_work import AUDIT_TOPIC, TRAFFIC_TOPIC

TRAFFIC_PERIOD_S: Final = 10
"""In seconds. Traffic reports update a cluster's page at most once in this period."""
router = APIRouter(prefix=PREFIX, route_class=Page, include_in_schema=False)


@router.get("/events")
async def follow_overview(request: Request, service: CurrentService, browser: CurrentBrowser) -> Response:
    """Send an event after each change of any cluster or element.

    Every user may receive the events, because an event contains no data.
    """

    def read_version() -> Hashable:
        with service.store.read() as unit:
            return find_newest_id(unit)

    return stream_events(service, browser, _counts(request), (AUDIT_TOPIC,), read_version)


@router.get("/clusters/{key}/events")
async def follow_cluster(
    key: KeyPath,
    request: Request,
    service: CurrentService,
    browser: CurrentBrowser,
    id: EarlierIdQuery = None,  # noqa: A002 - the word of the API
) -> Response:
    """Send an event after each change of a cluster, and after reports about its traffic and its connected devices.

    Reports about the traffic of hosts and gateways cause at most one event in ``TRAFFIC_PERIOD_S`` seconds. Each report
    about traffic to the outside, and each report about connected devices, causes an event.
    """
    await run_in_threadpool(authorize_cluster, service.store, browser.caller, Action.READ_CLUSTER, key, id)

    def read_version() -> Hashable:
        with service.store.read() as unit:
            row = clusters.require_cluster(unit, key, id)
            uses = [use.reported_at for use in outside_uses.list_uses(unit, key, row.id)]
            devices = [one.reported_at for one in vpn_users.list_connections(unit, key, None, row.id)]
            reported = traffic.find_last_report(unit, row.network or row.id)
            period = None if reported is None else reported.timestamp() // TRAFFIC_PERIOD_S
            return row.id, row.version, period, max(uses, default=None), max(devices, default=None), len(devices)

    return stream_events(service, browser, _counts(request), (f"cluster:{key}", TRAFFIC_TOPIC), read_version)


def _counts(request: Request) -> StreamCounts:
    counts: StreamCounts = request.app.state.console_streams
    return counts
