"""The start page: counts, troubles with their remedies, and the sites."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sbf_service.bootstrap import SbfService
from sbf_service.console.drawing.tiles import Tile
from sbf_service.console.maps import draw_overview, list_site_transports
from sbf_service.console.page import ConsoleRoute
from sbf_service.console.pages.live import read_overview_version
from sbf_service.console.reading import count_visible_clusters, find_topology, own_sites, read_elements, read_sites
from sbf_service.console.rendering import PREFIX, render
from sbf_service.console.sessions import CurrentBrowser
from sbf_service.console.troubles import (
    Level,
    Trouble,
    find_element_level,
    find_element_troubles,
    find_site_troubles,
    find_worst,
    select_troubles,
)
from sbf_service.domain.rights import Action, ProtectedResource, is_allowed
from sbf_service.http.auth.authorization import CurrentService
from sbf_service.http.auth.caller import Caller
from virtcloud.model.element_views import SiteView
from virtcloud.model.values import Name

MAX_TROUBLES: Final = 10
PAGE_SIZE: Final = 25
PageQuery = Annotated[int, Query(ge=1, le=100_000)]
router = APIRouter(prefix=PREFIX, route_class=ConsoleRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class SiteSummary:
    """A site in the list of sites."""

    view: SiteView
    clusters: int
    elements: int
    level: Level | None
    """None if the caller may not read elements."""
    is_own: bool


@router.get("/")
def show_overview(request: Request, service: CurrentService, browser: CurrentBrowser, page: PageQuery = 1) -> Response:
    """Show the start page."""
    caller, seen = browser.caller, read_overview_version(service)
    views, elements = read_sites(service, caller), read_elements(service, caller)
    counts, troubles = count_visible_clusters(service, caller), list_troubles(service, caller)
    element_levels = {view.name: find_element_level(view) for view in elements}
    levels: dict[str, Level] = {}
    found = [(trouble.site, trouble.level) for trouble in troubles]
    for site, level in [*found, *((view.site, element_levels[view.name]) for view in elements)]:
        levels[site] = find_worst((level, levels.get(site, Level.OK)))
    reads_elements = is_allowed(browser.principal, Action.READ_ELEMENT)
    per_site = Counter(view.site for view in elements)
    rows = [
        SiteSummary(
            view,
            counts.sites.get(view.name, 0),
            per_site[view.name],
            levels.get(view.name, Level.OK) if reads_elements else None,
            view.name in own_sites(caller),
        )
        for view in views
    ]
    shown = select_troubles(troubles, own_sites(caller))
    topology = find_topology(service, caller)
    pages = max(1, -(-len(rows) // PAGE_SIZE))
    page = min(page, pages)  # the list can have become shorter since the page was opened
    values = {
        "seen": seen,
        "scene": draw_overview(topology, element_levels, _make_tiles(rows, list_site_transports(topology))),
        "rows": sorted(rows, key=lambda row: not row.is_own)[(page - 1) * PAGE_SIZE : page * PAGE_SIZE],
        "total": len(rows),
        "page": page,
        "pages": pages,
        "counts": counts,
        "elements": elements,
        "troubles": shown[:MAX_TROUBLES],
        "more": max(0, len(shown) - MAX_TROUBLES),
    }
    return render(request, "overview.html", values)


def _make_tiles(rows: list[SiteSummary], transports: Mapping[Name, tuple[str, ...]]) -> list[Tile]:
    return [
        Tile(
            row.view.name,
            row.level,
            row.clusters,
            len(row.view.claimed) + len(row.view.quarantined),
            len(row.view.pool),
            transports.get(row.view.name, ()),
            f"{PREFIX}/sites/{row.view.name}",
            row.is_own,
        )
        for row in rows
    ]


@router.get("/troubles")
def show_troubles(request: Request, service: CurrentService, browser: CurrentBrowser) -> Response:
    """Show all troubles of elements and sites."""
    browser.caller.require(Action.READ_ELEMENT, ProtectedResource("all elements"))
    found = select_troubles(list_troubles(service, browser.caller), own_sites(browser.caller))
    return render(request, "troubles.html", {"troubles": found})


def list_troubles(service: SbfService, caller: Caller) -> list[Trouble]:
    """Return the troubles of the elements and sites that the caller may read."""
    of_elements = (find_element_troubles(view, PREFIX) for view in read_elements(service, caller))
    of_sites = (find_site_troubles(view, PREFIX) for view in read_sites(service, caller))
    return list(chain.from_iterable(chain(of_elements, of_sites)))
