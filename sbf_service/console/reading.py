"""What the pages read, with the rights of the API: the functions of its routes, or its checks of rights."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action, is_allowed
from sbf_service.http.auth.authorization import Caller, authorize_cluster_list, describe_cluster, visible_clusters
from sbf_service.http.routes import sites
from sbf_service.store.cluster_counts import ClusterCounts, count_clusters
from sbf_service.store.cluster_queries import NOT_ENDED, has_placement_at
from sbf_service.store.clusters import ClusterPage, make_cluster_views, read_page
from sbf_service.store.elements import make_element_views
from sbf_service.store.tables import ClusterRow
from sbf_service.store.unit_of_work import read_topology
from virtcloud.model.errors import NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, UserName
from virtcloud.model.views import ClusterView, ElementView, SiteView

PAGE_SIZE: Final = 50


@dataclass(frozen=True, slots=True)
class ClusterFilter:
    """Which clusters a list shows: of one owner, at one site, ended or not, and older than the one with this ID."""

    owner: str = ""
    site: str = ""
    ended: bool = False
    before: str = ""


@dataclass(frozen=True, slots=True)
class ClusterList:
    """A page of clusters, newest first. ``before`` is the ID of the last cluster if there are older clusters."""

    views: list[ClusterView]
    before: str | None


def list_clusters(service: SbfService, caller: Caller, selected: ClusterFilter, size: int = PAGE_SIZE) -> ClusterList:
    """Return a page of the clusters that the caller may read."""
    owner = authorize_cluster_list(caller, UserName(selected.owner) if selected.owner else None)
    conditions: list[ColumnElement[bool]] = [*visible_clusters(caller)]
    conditions += [] if owner is None else [ClusterRow.owner == owner]
    conditions += [] if selected.ended else [NOT_ENDED]
    conditions += [has_placement_at([selected.site])] if selected.site else []
    with service.store.read() as unit:
        rows = read_page(unit, ClusterPage(size + 1, selected.before or None), *conditions)
        views = make_cluster_views(unit, rows)[::-1]
    shown = [view for view in views[:size] if is_allowed(caller.principal, Action.READ_CLUSTER, describe_cluster(view))]
    return ClusterList(shown, views[size - 1].id if len(views) > size else None)


def count_visible_clusters(service: SbfService, caller: Caller) -> ClusterCounts:
    """Return the counts of the clusters that the caller may read."""
    owner = authorize_cluster_list(caller, None)
    with service.store.read() as unit:
        return count_clusters(unit, owner, visible_clusters(caller))


def read_sites(service: SbfService, caller: Caller) -> list[SiteView]:
    """Return the sites; an empty list before the first topology was put."""
    try:
        return sites.list_sites(caller, service)
    except NotFound:
        return []


def read_elements(service: SbfService, caller: Caller, sites: Collection[str] | None = None) -> list[ElementView]:
    """Return the elements, or those at ``sites``, if the caller may read them; otherwise an empty list."""
    if not is_allowed(caller.principal, Action.READ_ELEMENT):
        return []
    with service.store.read() as unit:
        return make_element_views(unit, sites)


def find_topology(service: SbfService, caller: Caller) -> Topology | None:
    """Return the topology if there is one and the caller may read it."""
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
