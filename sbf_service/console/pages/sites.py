"""The page of a site (its elements, pool, quarantine and clusters), and the page of all pools.

Both pages draw a pool as a strip of VLAN IDs.
"""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sbf_service.console.drawing.pool_strip import draw_pool
from sbf_service.console.maps import draw_whole_sites
from sbf_service.console.page import ConsoleRoute
from sbf_service.console.reading import find_topology, list_clusters, own_sites, read_elements, read_sites
from sbf_service.console.rendering import PREFIX, render
from sbf_service.console.sessions import CurrentBrowser
from sbf_service.console.troubles import (
    find_element_level,
    find_element_troubles,
    find_site_troubles,
    find_state_level,
    find_worst,
)
from sbf_service.domain.rights import Action, is_allowed
from sbf_service.http.auth.authorization import CurrentService, describe_site
from sbf_service.http.routes import sites
from sbf_service.store.clusters.cluster_lists import ClusterFilter
from virtcloud.model.values import Name

PAGE_SIZE: Final = 20
router = APIRouter(prefix=PREFIX, route_class=ConsoleRoute, include_in_schema=False)

PageQuery = Annotated[int, Query(ge=1, le=100_000)]


@router.get("/sites/{name}")
def show_site(name: Name, request: Request, service: CurrentService, browser: CurrentBrowser) -> Response:
    """Show a site."""
    view = sites.get_site(name, browser.caller, service)
    here = read_elements(service, browser.caller, [name])
    own = list(find_site_troubles(view, PREFIX))
    troubles = [trouble for element in here for trouble in find_element_troubles(element, PREFIX)]
    levels = {element.name: find_element_level(element) for element in here}
    listed = list_clusters(service, browser.caller, ClusterFilter(site=name))
    topology = find_topology(service, browser.caller)
    site_levels = {name: find_worst(trouble.level for trouble in own)}
    values = {
        "site": view,
        "scene": None if topology is None else draw_whole_sites(topology, [topology.site(name)], levels, site_levels),
        "strip": draw_pool(
            view, {int(cluster.vlans[name]): cluster.key for cluster in listed.rows if name in cluster.vlans}
        ),
        "may_declare": is_allowed(browser.principal, Action.DECLARE_CLEAN, describe_site(name)),
        "elements": [(element, levels[element.name]) for element in here],
        "troubles": [*troubles, *own],
        "clusters": [(cluster, find_state_level(cluster.state)) for cluster in listed.rows],
        "has_older": listed.cursor is not None,
    }
    return render(request, "site.html", values)


@router.get("/pools")
def show_pools(request: Request, service: CurrentService, browser: CurrentBrowser, page: PageQuery = 1) -> Response:
    """Show a page of pools. The pools of the sites that the caller administers come first."""
    own = own_sites(browser.caller)
    views = sorted(read_sites(service, browser.caller), key=lambda view: view.name not in own)
    pages = max(1, -(-len(views) // PAGE_SIZE))
    page = min(page, pages)  # the list can have become shorter since the page was opened
    start = (page - 1) * PAGE_SIZE
    values = {
        "pools": [(view, draw_pool(view, {})) for view in views[start : start + PAGE_SIZE]],
        "page": page,
        "pages": pages,
    }
    return render(request, "pools.html", values)
