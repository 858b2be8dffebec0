"""The list of elements, and the page of an element."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sbf_service.console.page import ConsoleRoute
from sbf_service.console.reading import PositionQuery, own_sites
from sbf_service.console.rendering import PREFIX, render
from sbf_service.console.sessions import CurrentBrowser
from sbf_service.console.troubles import find_element_level, find_element_troubles
from sbf_service.domain.rights import Action, ProtectedResource, is_allowed
from sbf_service.http.auth.authorization import CurrentService, describe_site
from sbf_service.http.routes import elements
from sbf_service.store.elements.elements import ElementFilter, count_elements, list_element_sites, read_element_page
from sbf_service.store.pages import PagePart
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Name

PAGE_SIZE: Final = 100
router = APIRouter(prefix=PREFIX, route_class=ConsoleRoute, include_in_schema=False)

SiteQuery = Annotated[str, Query(max_length=63)]
KindQuery = Annotated[str, Query(max_length=20)]


@router.get("/elements")
def show_elements(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    request: Request,
    service: CurrentService,
    browser: CurrentBrowser,
    site: SiteQuery = "",
    kind: KindQuery = "",
    troubled: bool = False,
    cursor: PositionQuery = None,
) -> Response:
    """Show a page of the list of elements."""
    browser.caller.require(Action.READ_ELEMENT, ProtectedResource("all elements"))
    selected = ElementFilter(Name(site) if site else None, _parse_kind(kind), troubled)
    with service.store.read() as unit:
        page = read_element_page(unit, selected, PagePart(PAGE_SIZE, cursor or None))
        total, names = count_elements(unit, selected), list_element_sites(unit)
    values = {
        "rows": [(view, find_element_level(view)) for view in page.rows],
        "total": total,
        "is_first": not cursor,
        "cursor": page.cursor,
        "sites": names,
        "kinds": sorted(ElementKind),
        "own": own_sites(browser.caller),
        "site": site,
        "kind": kind,
        "troubled": troubled,
    }
    return render(request, "elements.html", values)


def _parse_kind(kind: str) -> ElementKind | None:
    if kind and kind not in set(ElementKind):
        raise BadInput(
            f"kind: expected one of {', '.join(sorted(ElementKind))}, got {kind!r}: choose a kind in the list"
        )
    return ElementKind(kind) if kind else None


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
