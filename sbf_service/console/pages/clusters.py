"""The list of clusters, and the page of a cluster."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from sbf_service.console.page import Page
from sbf_service.console.reading import ClusterFilter, list_clusters
from sbf_service.console.rendering import PREFIX, render
from sbf_service.console.sessions import CurrentBrowser
from sbf_service.console.troubles import find_cluster_troubles, find_placement_level, find_state_level
from sbf_service.domain.rights import Action, is_allowed
from sbf_service.http.auth.authorization import CurrentService, describe_cluster
from sbf_service.http.routes import clusters
from sbf_service.http.routes.clusters import EarlierIdQuery, KeyPath
from virtcloud.model.cluster import WANTED_STATES

router = APIRouter(prefix=PREFIX, route_class=Page, include_in_schema=False)

TextQuery = Annotated[str, Query(max_length=275)]


@router.get("/clusters")
def show_clusters(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    request: Request,
    service: CurrentService,
    browser: CurrentBrowser,
    owner: TextQuery = "",
    site: TextQuery = "",
    ended: bool = False,
    before: TextQuery = "",
) -> Response:
    """Show a page of the list of clusters."""
    selected = ClusterFilter(owner.strip(), site.strip(), ended, before)
    listed = list_clusters(service, browser.caller, selected)
    rows = [(view, find_state_level(view.state)) for view in listed.views]
    values = {"rows": rows, "selected": selected, "before": listed.before}
    return render(request, "clusters.html", values)


@router.get("/clusters/{key}")
async def show_cluster(
    key: KeyPath,
    request: Request,
    service: CurrentService,
    browser: CurrentBrowser,
    id: EarlierIdQuery = None,  # noqa: A002 - the word of the API
) -> Response:
    """Show a cluster."""
    caller = browser.caller
    view = await clusters.get_cluster(key, caller, service, after=None, wait=0, id=id)
    resource, is_running = describe_cluster(view), view.state in WANTED_STATES
    values = {
        "cluster": view,
        "level": find_state_level(view.state),
        "troubles": list(find_cluster_troubles(view, PREFIX)),
        "placements": [
            (
                part,
                find_placement_level(part.progress, reachable=part.reachable, has_trouble=part.trouble is not None),
            )
            for part in view.placements
        ],
        "may_end": is_running and is_allowed(caller.principal, Action.END_CLUSTER, resource),
        "may_extend": is_running and is_allowed(caller.principal, Action.EXTEND_CLUSTER, resource),
    }
    return await run_in_threadpool(render, request, "cluster.html", values)
