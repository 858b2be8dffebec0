"""Checks of a caller's rights to clusters, elements and sites.

A check reads the database only if the caller's rights depend on the resource.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, TypeVar

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import (
    Action,
    ProtectedResource,
    RightScope,
    find_scope,
    is_allowed,
)
from sbf_service.http.auth.caller import Caller
from sbf_service.store.clusters.cluster_lists import ClusterFilter
from sbf_service.store.clusters.clusters import get_cluster, make_unknown_error
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.pages import require_filter_names
from sbf_service.store.store import Store
from sbf_service.store.transactions.network_scopes import find_cluster_scope
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.element import ElementKind
from virtcloud.model.values import ClusterKey, Name, UserName
from virtcloud.model.views import ClusterView

T = TypeVar("T")

CALLER_KEY = "virtcloud.caller"


BEARER = HTTPBearer(
    scheme_name="token",
    description="A token from `virtcloud token create`. Root and the service's user need no token on SBF's socket. If "
    "the setting `local_users` is `user`, other local users need no token either.",
    auto_error=False,
)


async def _current_caller(
    request: Request, _documented: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)] = None
) -> Caller:
    """Return the caller. Asynchronous, because FastAPI runs synchronous functions in other threads."""
    caller: Caller = request.scope[CALLER_KEY]
    return caller


async def _current_service(request: Request) -> SbfService:
    service: SbfService = request.app.state.service
    return service


CurrentCaller = Annotated[Caller, Depends(_current_caller)]
"""The type of the parameter that receives an operation's caller.

Operations of open paths, which need no authentication, have no such parameter.
"""
CurrentService = Annotated[SbfService, Depends(_current_service)]


def authorize_cluster(
    store: Store, caller: Caller, action: Action, key: ClusterKey, cluster_id: str | None = None
) -> None:
    """Check the caller's right to ``action`` on a cluster, in a separate transaction.

    Raise Forbidden if the caller has no right to ``action`` on any cluster. For a caller with the right on other
    clusters only, raise Forbidden if the caller may read this cluster, else NotFound.
    """
    caller.require_for_any(action, "cluster")
    if caller.is_unrestricted(action):
        return
    with store.read() as unit:
        authorize_in_unit(unit, caller, action, key, cluster_id)


@contextmanager
def change_cluster(store: Store, caller: Caller, action: Action, key: ClusterKey) -> Iterator[Unit]:
    """Yield a unit of work to change a cluster, after checking the caller's right to ``action``.

    The right is checked before the write lock is acquired, and again in the unit of work.
    """
    authorize_cluster(store, caller, action, key)
    with store.change(who=caller.who) as unit:
        authorize_in_unit(unit, caller, action, key)
        yield unit


def change_cluster_scope(store: Store, caller: Caller, action: Action, key: ClusterKey, work: Callable[[Unit], T]) -> T:
    """Return the result of ``work``, after checking the caller's right twice, as :func:`change_cluster` does.

    ``work`` runs in a unit that locks only what a change of this cluster needs.
    """
    authorize_cluster(store, caller, action, key)

    def change(unit: Unit) -> T:
        authorize_in_unit(unit, caller, action, key)
        return work(unit)

    return store.change_scope(partial(find_cluster_scope, key=key), change, who=caller.who)


def authorize_in_unit(
    unit: Unit, caller: Caller, action: Action, key: ClusterKey, cluster_id: str | None = None
) -> None:
    """Check the caller's right to ``action`` on a cluster, within a unit of work; see :func:`authorize_cluster`."""
    caller.require_for_any(action, "cluster")
    if caller.is_unrestricted(action):
        return
    resource = describe_cluster(get_cluster(unit, key, cluster_id))
    if is_allowed(caller.principal, action, resource):
        return
    if is_allowed(caller.principal, Action.READ_CLUSTER, resource):
        caller.require(action, resource)
    raise caller.deny(make_unknown_error(key, cluster_id), action, resource)


def require_visible(caller: Caller, view: ClusterView) -> ClusterView:
    """Return ``view``. Raise NotFound if the caller may not read the cluster.

    An earlier check does not suffice: since then, another owner may have created a cluster with this key.
    """
    resource = describe_cluster(view)
    if is_allowed(caller.principal, Action.READ_CLUSTER, resource):
        return view
    raise caller.deny(make_unknown_error(view.key), Action.READ_CLUSTER, resource)


def authorize_cluster_list(caller: Caller, owner: UserName | None) -> UserName | None:
    """Return the owner whose clusters the call must list; None for the clusters of all owners.

    Raise Forbidden if a user requests the clusters of another user, or if the caller may read no clusters.
    """
    caller.require_for_any(Action.READ_CLUSTER, "cluster")
    if find_scope(caller.principal, Action.READ_CLUSTER) is not RightScope.OWN:
        return owner
    listed_owner = owner or UserName(caller.principal.name)
    caller.require(Action.READ_CLUSTER, ProtectedResource(f"clusters of {listed_owner}", owner=listed_owner))
    return listed_owner


def require_known_names(store: Store, caller: Caller, site: str | None = None, element: str | None = None) -> None:
    """Raise BadInput if a list's filter names an unknown site or element.

    Check only names that the caller may read: other callers must not learn which names exist.
    """
    reads_site = site is not None and caller.is_unrestricted(Action.READ_SITES)
    reads_element = element is not None and caller.is_unrestricted(Action.READ_ELEMENT)
    if reads_site or reads_element:
        with store.read() as unit:
            require_filter_names(unit, site if reads_site else None, element if reads_element else None)


def restrict_to_visible(caller: Caller, selected: ClusterFilter) -> ClusterFilter:
    """Return a filter of clusters, restricted to the clusters that the caller may read.

    Raise Forbidden if a user requests the clusters of another user, or if the caller may read no clusters.
    """
    owner = authorize_cluster_list(caller, None if selected.owner is None else UserName(selected.owner))
    match find_scope(caller.principal, Action.READ_CLUSTER):
        case RightScope.SITES:
            return replace(selected, owner=owner, sites=caller.principal.sites)
        case RightScope.ELEMENT:
            return replace(selected, owner=owner, element=caller.principal.name)
        case _:
            return replace(selected, owner=owner)


def authorize_element(store: Store, caller: Caller, action: Action, name: Name) -> None:
    """Check the caller's right to ``action`` on an element. Raise Forbidden if the caller lacks the right.

    Raise NotFound for an unknown element if the right depends on the element's site.
    """
    caller.require_for_any(action, "element")
    sites: frozenset[Name] = frozenset()
    if find_scope(caller.principal, action) is RightScope.SITES:
        with store.read() as unit:
            sites = frozenset({Name(require_element(unit, name).site)})
    caller.require(action, ProtectedResource(f"element {name}", elements=frozenset({name}), sites=sites))


def describe_cluster(view: ClusterView) -> ProtectedResource:
    """Return the :class:`ProtectedResource` that describes a cluster."""
    sites = frozenset(placement.site for placement in view.placements)
    elements = frozenset(placement.element for placement in view.placements)
    hosts = frozenset(placement.element for placement in view.placements if placement.kind is ElementKind.HOST)
    return ProtectedResource(f"cluster {view.key}", owner=view.spec.owner, sites=sites, elements=elements, hosts=hosts)


def describe_request(request: ClusterRequest) -> ProtectedResource:
    """Return the :class:`ProtectedResource` that describes a requested cluster."""
    owner = request.spec.owner
    return ProtectedResource(f"a cluster of {owner}", owner=owner, elements=frozenset(request.spec.all_hosts))


def describe_site(name: Name) -> ProtectedResource:
    """Return the :class:`ProtectedResource` that describes a site."""
    return ProtectedResource(f"site {name}", sites=frozenset({name}))


def find_job_starter(caller: Caller) -> str | None:
    """Return the host for which the caller starts jobs; None if the caller's role is not ``job-starter``."""
    return caller.principal.name if caller.principal.role is Role.JOB_STARTER else None
