"""The list of clusters, and the page of a cluster."""

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from sbf_service.bootstrap import SbfService
from sbf_service.console.drawing.sparkline import draw_traffic
from sbf_service.console.drawing.timeline import Timeline, draw_timeline
from sbf_service.console.maps import draw_cluster, find_cluster_path
from sbf_service.console.page import ConsoleRoute
from sbf_service.console.pages.live import read_cluster_version
from sbf_service.console.reading import PositionQuery, find_topology, list_clusters, read_elements
from sbf_service.console.rendering import PREFIX, render
from sbf_service.console.sessions import Browser, CurrentBrowser
from sbf_service.console.troubles import (
    Level,
    find_cluster_troubles,
    find_element_level,
    find_placement_level,
    find_state_level,
)
from sbf_service.domain.rights import Action, is_allowed
from sbf_service.http.auth.authorization import CurrentService, authorize_cluster, describe_cluster
from sbf_service.http.long_polls import make_poll
from sbf_service.http.routes import audit, clusters, traffic, vpn
from sbf_service.http.routes.clusters import EarlierIdQuery, KeyPath
from sbf_service.store.clusters.cluster_lists import ClusterFilter
from sbf_service.store.maintenance.audit_log import AuditFilter
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.errors import NotFound
from virtcloud.model.values import Name, UserName
from virtcloud.model.views import ClusterView, PlacementView
from virtcloud.model.vpn import VpnConnectionView

router = APIRouter(prefix=PREFIX, route_class=ConsoleRoute, include_in_schema=False)

MAX_EVENTS: Final = 200
"""The maximum number of events on the page of a cluster. The page shows the newest events."""
TextQuery = Annotated[str, Query(max_length=275)]


@router.get("/clusters")
def show_clusters(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    request: Request,
    service: CurrentService,
    browser: CurrentBrowser,
    owner: TextQuery = "",
    site: TextQuery = "",
    ended: bool = False,
    cursor: PositionQuery = None,
) -> Response:
    """Show a page of the list of clusters."""
    shown = {"owner": owner.strip(), "site": site.strip(), "ended": ended, "cursor": cursor}
    selected = ClusterFilter(
        UserName(owner.strip()) if owner.strip() else None, ended, site=Name(site.strip()) if site.strip() else None
    )
    listed = list_clusters(service, browser.caller, selected, cursor or None)
    rows = [(view, find_state_level(view.state)) for view in listed.rows]
    return render(request, "clusters.html", {"rows": rows, "selected": shown, "cursor": listed.cursor})


@router.get("/clusters/{key}")
async def show_cluster(
    key: KeyPath,
    request: Request,
    service: CurrentService,
    browser: CurrentBrowser,
    id: EarlierIdQuery = None,  # noqa: A002 - the word of the API
) -> Response:
    """Show a cluster."""
    await run_in_threadpool(authorize_cluster, service.store, browser.caller, Action.READ_CLUSTER, key, id)
    seen = await run_in_threadpool(read_cluster_version, service, key, id)  # before the content, to miss no change
    view = await clusters.wait_for_cluster(
        key, browser.caller, service, make_poll(service, request, browser.caller), cluster_id=id
    )
    values = {"seen": seen, **await run_in_threadpool(_describe, service, browser, view)}
    values["timeline"] = await _read_timeline(service, browser, view)
    return await run_in_threadpool(render, request, "cluster.html", values)


def _describe(service: SbfService, browser: Browser, view: ClusterView) -> dict[str, object]:
    resource, is_running = describe_cluster(view), view.state in WANTED_STATES
    levels = {part.element: _find_level(part) for part in view.placements}
    path = find_cluster_path(service, view)
    whole = path is not None and is_allowed(browser.principal, Action.READ_TOPOLOGY)
    topology = find_topology(service, browser.caller)
    others = read_elements(service, browser.caller, {part.site for part in view.placements}) if whole else []
    return {
        "cluster": view,
        "uses": traffic.list_destination_uses(view.key, browser.caller, service, view.id),
        "traffic": draw_traffic(traffic.list_traffic(view.key, browser.caller, service, view.id), datetime.now(UTC)),
        "connections": _list_connections(service, browser, view),
        "level": find_state_level(view.state),
        "troubles": list(find_cluster_troubles(view, PREFIX)),
        "scene": None
        if path is None
        else draw_cluster(path, {view.name: find_element_level(view) for view in others} | levels, whole=whole),
        "placements": [(part, levels[part.element]) for part in view.placements],
        "linked": () if topology is None else topology.elements,
        "may_end": is_running and is_allowed(browser.principal, Action.END_CLUSTER, resource),
        "may_extend": is_running and is_allowed(browser.principal, Action.EXTEND_CLUSTER, resource),
    }


def _list_connections(service: SbfService, browser: Browser, view: ClusterView) -> list[VpnConnectionView]:
    """Return the devices that are connected to a cluster, if the reader is the cluster's owner or an operator.

    Other readers get an empty list: a site administrator's right depends on the sites of the gateways, which are not
    checked here.
    """
    caller = browser.caller
    if not caller.is_unrestricted(Action.READ_VPN) and view.spec.owner != caller.principal.name:
        return []
    return vpn.list_vpn_connections(view.key, browser.caller, service, view.id)


def _find_level(part: PlacementView) -> Level:
    return find_placement_level(part.progress, reachable=part.reachable, has_trouble=part.trouble is not None)


async def _read_timeline(service: SbfService, browser: Browser, view: ClusterView) -> Timeline | None:
    """Return the drawing of a cluster's history, or None if the reader may not read the cluster's audit log.

    For example, a site administrator may not read the log if a later cluster with the same key is at other sites.
    """
    if not is_allowed(browser.principal, Action.READ_AUDIT, describe_cluster(view)):
        return None
    read = partial(audit.read_newest, service.store, browser.caller, AuditFilter(cluster=view.key), MAX_EVENTS)
    try:
        return draw_timeline(view, await run_in_threadpool(read), datetime.now(UTC))
    except NotFound:
        return None
