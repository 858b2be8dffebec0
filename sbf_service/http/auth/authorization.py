"""The caller of a route: who it is, and whether it may do what it asks.

What calls are about, looked up only for callers whose rights depend on it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import ColumnElement

from sbf_service.domain.authentication import Principal
from sbf_service.domain.rights import (
    WHOLE_SERVICE,
    Action,
    ProtectedResource,
    RightScope,
    describe_denial,
    find_scope,
    is_allowed,
)
from sbf_service.log import get_log
from sbf_service.metrics import ServiceMetrics
from sbf_service.overload import RateLimiter
from sbf_service.store.audit_log import AuditFilter
from sbf_service.store.cluster_queries import has_owned_key, has_placement_at, has_placement_on
from sbf_service.store.clusters import get_cluster
from sbf_service.store.revisions import require_element
from sbf_service.store.unit_of_work import Store, Unit
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.errors import Forbidden, NotFound, TooManyRequests, VirtcloudError
from virtcloud.model.values import ClusterKey, Name, UserName
from virtcloud.model.views import ClusterView

CALLER_KEY = "virtcloud.caller"
log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and from where."""

    principal: Principal
    address: str
    metrics: ServiceMetrics
    rate_limiter: RateLimiter

    @property
    def who(self) -> str:
        """The name for the audit log."""
        return self.principal.who

    def must(self, action: Action, subject: ProtectedResource = WHOLE_SERVICE) -> None:
        """Raise Forbidden unless the caller may do this."""
        if not is_allowed(self.principal, action, subject):
            raise self.denied(Forbidden(describe_denial(self.principal, action, subject)), action, subject)

    def must_somehow(self, action: Action, kind: str) -> None:
        """Raise Forbidden if the caller may not do this to any of a kind: asked before anything is looked up."""
        if find_scope(self.principal, action) is None:
            self.must(action, ProtectedResource(f"any {kind}"))

    def reaches_all(self, action: Action) -> bool:
        """Say whether the caller may do this whatever it is about."""
        return find_scope(self.principal, action) is RightScope.ALL

    def sees(self, owner: str) -> bool:
        """Say whether the caller may know of this owner's clusters."""
        return is_allowed(self.principal, Action.READ_CLUSTER, ProtectedResource(owner=owner))

    def may_create_now(self) -> None:
        """Raise TooManyRequests for a user who asks for clusters too often."""
        with self._counted():
            self.rate_limiter.count_cluster(self.principal)

    def may_read_devices_now(self) -> None:
        """Raise TooManyRequests for a caller who has devices read too often."""
        with self._counted():
            self.rate_limiter.count_device_read(self.principal)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except TooManyRequests as error:
            self.metrics.record_denial(error.slug)
            log.warning("throttled", who=self.who, why=error)
            raise

    def denied(self, error: VirtcloudError, action: Action, subject: ProtectedResource) -> VirtcloudError:
        """Log and count that the caller was denied something; gives the error that says so."""
        self.metrics.record_denial(error.slug)
        log.warning("denied", who=self.who, action=action.name.lower(), subject=subject.words, address=self.address)
        return error


BEARER = HTTPBearer(
    scheme_name="token",
    description="A token that `virtcloud token create` made. Root and the service's own user need none on its socket.",
    auto_error=False,
)
"""For the description of the API; the gate before the routes is what reads the token."""


async def _caller(
    request: Request, _shown: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)] = None
) -> Caller:
    """Give the caller; ``async``, since a plain function would be called in another thread."""
    found: Caller = request.scope[CALLER_KEY]
    return found


CurrentCaller = Annotated[Caller, Depends(_caller)]
"""A route's argument of this type is its caller; every route that is not open has one."""


def authorize_cluster(
    store: Store, caller: Caller, action: Action, key: ClusterKey, cluster: str | None = None
) -> None:
    """Raise Forbidden, or NotFound as for a key that never was: whose cluster it is concerns only who may know.

    It reads by itself. A call that changes the cluster asks again with :func:`must_in` in the unit that changes it.
    """
    caller.must_somehow(action, "cluster")
    if caller.reaches_all(action):
        return
    with store.read() as unit:
        authorize_cluster_in(unit, caller, action, key, cluster)


def authorize_cluster_in(
    unit: Unit, caller: Caller, action: Action, key: ClusterKey, cluster: str | None = None
) -> None:
    """As :func:`must_on_cluster`, of the cluster as this unit reads it: nobody changes it until the unit ends."""
    if caller.reaches_all(action):
        return
    subject = cluster_subject(get_cluster(unit, key, cluster))
    if is_allowed(caller.principal, action, subject):
        return
    if is_allowed(caller.principal, Action.READ_CLUSTER, subject):
        caller.must(action, subject)
    raise caller.denied(NotFound(f"cluster {key} is not known"), action, subject)


def require_visible(caller: Caller, view: ClusterView) -> ClusterView:
    """Give what a caller waited for; raises NotFound when the key has gone to an owner whom it may not know."""
    subject = cluster_subject(view)
    if is_allowed(caller.principal, Action.READ_CLUSTER, subject):
        return view
    raise caller.denied(NotFound(f"cluster {view.key} is not known"), Action.READ_CLUSTER, subject)


def authorize_cluster_list(caller: Caller, owner: UserName | None) -> UserName | None:
    """Say whose clusters are to be listed; raises Forbidden for a user who asks for another's."""
    caller.must_somehow(Action.READ_CLUSTER, "cluster")
    if find_scope(caller.principal, Action.READ_CLUSTER) is not RightScope.OWN:
        return owner
    chosen = owner or UserName(caller.principal.name)
    caller.must(Action.READ_CLUSTER, ProtectedResource(f"clusters of {chosen}", owner=chosen))
    return chosen


def visible_clusters(caller: Caller) -> list[ColumnElement[bool]]:
    """Select the clusters that a caller sees who sees those of its sites, or of its element."""
    match find_scope(caller.principal, Action.READ_CLUSTER):
        case RightScope.SITES:
            return [has_placement_at(caller.principal.sites)]
        case RightScope.ELEMENT:
            return [has_placement_on(caller.principal.name)]
        case _:
            return []


def authorize_element(store: Store, caller: Caller, action: Action, name: Name) -> None:
    """Raise Forbidden; NotFound for an unknown element only where its site decides."""
    caller.must_somehow(action, "element")
    sites: frozenset[Name] = frozenset()
    if find_scope(caller.principal, action) is RightScope.SITES:
        with store.read() as unit:
            sites = frozenset({Name(require_element(unit, name).site)})
    caller.must(action, ProtectedResource(f"element {name}", elements=frozenset({name}), sites=sites))


def authorize_audit(store: Store, caller: Caller, asked: AuditFilter) -> AuditFilter:
    """Return what the caller may read of what was asked for. Raise Forbidden, NotFound.

    Users read what concerns a cluster of theirs, site administrators what concerns their sites: of a key that stood for
    several clusters, the rows of those that are theirs.
    """
    caller.must_somehow(Action.READ_AUDIT, "cluster or element")
    if caller.reaches_all(Action.READ_AUDIT):
        return asked
    if asked.cluster is not None and find_scope(caller.principal, Action.READ_AUDIT) is RightScope.OWN:
        return _own_rows(store, caller, asked, ClusterKey(asked.cluster))
    if asked.cluster is not None:
        authorize_cluster(store, caller, Action.READ_AUDIT, ClusterKey(asked.cluster))
        return replace(asked, sites=caller.principal.sites)
    if asked.element is not None:
        authorize_element(store, caller, Action.READ_AUDIT, Name(asked.element))
        return asked
    caller.must(Action.READ_AUDIT, ProtectedResource("everything (ask for one cluster or one element)"))
    return asked


def _own_rows(store: Store, caller: Caller, asked: AuditFilter, key: ClusterKey) -> AuditFilter:
    owner = caller.principal.name
    with store.read() as unit:
        known = has_owned_key(unit, key, owner)
    if not known:
        authorize_cluster(store, caller, Action.READ_AUDIT, key)
    return replace(asked, owner=owner)


def cluster_subject(view: ClusterView) -> ProtectedResource:
    """Give a cluster as the rights see it."""
    sites = frozenset(part.site for part in view.placements)
    elements = frozenset(part.element for part in view.placements)
    return ProtectedResource(f"cluster {view.key}", owner=view.spec.owner, sites=sites, elements=elements)


def request_subject(request: ClusterRequest) -> ProtectedResource:
    """Give a cluster that is asked for as the rights see it: nothing carries a part of it yet but its hosts will."""
    owner = request.spec.owner
    return ProtectedResource(f"a cluster of {owner}", owner=owner, elements=frozenset(request.spec.all_hosts))


def job_starter_host(caller: Caller) -> str | None:
    """Return the host for which a caller begins jobs; None for every other role."""
    return caller.principal.name if caller.principal.role is Role.JOB_STARTER else None


def site_subject(name: Name) -> ProtectedResource:
    """Give a site as the rights see it."""
    return ProtectedResource(f"site {name}", sites=frozenset({name}))
