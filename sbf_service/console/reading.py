"""Functions that read the data of the console's pages, with the rights of the API's routes."""

from collections.abc import Collection
from itertools import chain
from typing import Annotated, Final

from fastapi import Query

from sbf_service.bootstrap import SbfService
from sbf_service.domain.page_cursors import MAX_CURSOR
from sbf_service.domain.rights import Action, is_allowed
from sbf_service.http.auth.authorization import restrict_to_visible
from sbf_service.http.auth.caller import Caller
from sbf_service.http.routes import sites
from sbf_service.store.clusters.cluster_counts import ClusterCounts, count_clusters
from sbf_service.store.clusters.cluster_lists import ClusterFilter, read_cluster_page
from sbf_service.store.elements.elements import make_element_views
from sbf_service.store.pages import Page, PagePart
from sbf_service.store.topology.current_topology import read_topology
from virtcloud.model.element_views import ElementView, SiteView
from virtcloud.model.errors import NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView

PAGE_SIZE: Final = 50
PositionQuery = Annotated[str | None, Query(max_length=MAX_CURSOR)]


def list_clusters(
    service: SbfService, caller: Caller, selected: ClusterFilter, cursor: str | None = None
) -> Page[ClusterView]:
    """Return a page of the clusters that the caller may read, newest first.

    Raise BadInput for an invalid cursor. Raise the errors of :func:`restrict_to_visible`.
    """
    visible = restrict_to_visible(caller, selected)
    with service.store.read() as unit:
        return read_cluster_page(unit, visible, PagePart(PAGE_SIZE, cursor), newest_first=True)


def count_visible_clusters(service: SbfService, caller: Caller) -> ClusterCounts:
    """Return the counts of the clusters that have not ended and that the caller may read.

    Raise the errors of :func:`restrict_to_visible`.
    """
    visible = restrict_to_visible(caller, ClusterFilter())
    with service.store.read() as unit:
        return count_clusters(unit, visible)


def read_sites(service: SbfService, caller: Caller) -> list[SiteView]:
    """Return the sites; an empty list if SBF has no topology yet. Raise Forbidden if the caller may not read sites."""
    caller.require(Action.READ_SITES)
    try:
        return list(chain.from_iterable(sites.read_all_sites(caller, service)))
    except NotFound:
        return []


def read_elements(service: SbfService, caller: Caller, sites: Collection[str] | None = None) -> list[ElementView]:
    """Return the elements at ``sites`` (None: at all sites); an empty list if the caller may not read elements."""
    if not is_allowed(caller.principal, Action.READ_ELEMENT):
        return []
    with service.store.read() as unit:
        return make_element_views(unit, sites)


def find_topology(service: SbfService, caller: Caller) -> Topology | None:
    """Return the topology; None if there is no topology yet, or if the caller may not read it."""
    if not is_allowed(caller.principal, Action.READ_TOPOLOGY):
        return None
    try:
        with service.store.read() as unit:
            return read_topology(unit)
    except NotFound:
        return None


def own_sites(caller: Caller) -> frozenset[Name]:
    """Return the sites of a site administrator; an empty set for all other callers."""
    return caller.principal.sites
