"""The list of elements, and the page of an element."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sbf_service.console.page import Page
from sbf_service.console.reading import own_sites
from sbf_service.console.rendering import PREFIX, render
from sbf_service.console.sessions import CurrentBrowser
from sbf_service.console.troubles import Level, find_element_level, find_element_troubles
from sbf_service.domain.rights import Action, is_allowed
from sbf_service.http.auth.authorization import CurrentService, describe_site
from sbf_service.http.routes import elements
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.values import Name

PAGE_SIZE: Final = 100
router = APIRouter(prefix=PREFIX, route_class=Page, include_in_schema=False)

SiteQuery = Annotated[str, Query(max_length=63)]
KindQuery = Annotated[str, Query(max_length=20)]
PageQuery = Annotated[int, Query(ge=1, le=100_000)]


@router.get("/elements")
def show_elements(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    request: Request,
    service: CurrentService,
    browser: CurrentBrowser,
    site: SiteQuery = "",
    kind: KindQuery = "",
    troubled: bool = False,
    page: PageQuery = 1,
) -> Response:
    """Show a page of the list of elements."""
    views = elements.list_elements(browser.caller, service)
    rows = [
        (view, level)
        for view in views
        if site in {"", view.site}
        and kind in {"", view.kind}
        and ((level := find_element_level(view)) in {Level.WARNING, Level.FAILED} or not troubled)
    ]
    start = (page - 1) * PAGE_SIZE
    values = {
        "rows": rows[start : start + PAGE_SIZE],
        "total": len(rows),
        "page": page,
        "pages": max(1, -(-len(rows) // PAGE_SIZE)),
        "sites": sorted({view.site for view in views}),
        "kinds": sorted({str(view.kind) for view in views}),
        "own": own_sites(browser.caller),
        "site": site,
        "kind": kind,
        "troubled": troubled,
    }
    return render(request, "elements.html", values)


@router.get("/elements/{name}")
def show_element(name: Name, request: Request, service: CurrentService, browser: CurrentBrowser) -> Response:
    """Show an element."""
    view = elements.get_element(name, browser.caller, service)
    values = {
        "element": view,
        "level": find_element_level(view),
        "troubles": list(find_element_troubles(view, PREFIX)),
        "may_reconcile": view.kind in DEVICE_KINDS
        and is_allowed(browser.principal, Action.RECONCILE_ELEMENT, describe_site(view.site)),
    }
    return render(request, "element.html", values)
