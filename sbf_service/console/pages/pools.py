"""The pools of all sites as strips of VLAN IDs."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sbf_service.console.drawing.pool_strip import draw_pool
from sbf_service.console.page import Page
from sbf_service.console.reading import own_sites, read_sites
from sbf_service.console.rendering import PREFIX, render
from sbf_service.console.sessions import CurrentBrowser
from sbf_service.http.auth.authorization import CurrentService

PAGE_SIZE: Final = 20
router = APIRouter(prefix=PREFIX, route_class=Page, include_in_schema=False)

PageQuery = Annotated[int, Query(ge=1, le=100_000)]


@router.get("/pools")
def show_pools(request: Request, service: CurrentService, browser: CurrentBrowser, page: PageQuery = 1) -> Response:
    """Show a page of pools. The sites of a site administrator come first."""
    own = own_sites(browser.caller)
    views = sorted(read_sites(service, browser.caller), key=lambda view: view.name not in own)
    start = (page - 1) * PAGE_SIZE
    values = {
        "pools": [(view, draw_pool(view, {})) for view in views[start : start + PAGE_SIZE]],
        "page": page,
        "pages": max(1, -(-len(views) // PAGE_SIZE)),
    }
    return render(request, "pools.html", values)
