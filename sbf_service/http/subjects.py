"""What calls are about, looked up only for callers whose rights depend on it."""

from dataclasses import replace

from sqlalchemy import ColumnElement

from sbf_service.access.rights import Action, Reach, Subject, may, reach
from sbf_service.http.caller import Caller
from sbf_service.store.audit_log import Filter
from sbf_service.store.clusters import get_cluster
from sbf_service.store.keys import has_had
from sbf_service.store.revisions import element_row
from sbf_service.store.session import Store, Unit
from sbf_service.store.standing import at_sites, on_element
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.errors import NotFound
from virtcloud.model.values import ClusterKey, Name, UserName
from virtcloud.model.views import ClusterView


def must_on_cluster(store: Store, caller: Caller, action: Action, key: ClusterKey, cluster: str | None = None) -> None:
    """Raise Forbidden, or NotFound as for a key that never was: whose cluster it is concerns only who may know.

    It reads by itself. A call that changes the cluster asks again with :func:`must_in` in the unit that changes it.
    """
    caller.must_somehow(action, "cluster")
    if caller.reaches_all(action):
        return
    with store.read() as unit:
        must_in(unit, caller, action, key, cluster)


def must_in(unit: Unit, caller: Caller, action: Action, key: ClusterKey, cluster: str | None = None) -> None:
    """As :func:`must_on_cluster`, of the cluster as this unit reads it: nobody changes it until the unit ends."""
    if caller.reaches_all(action):
        return
    subject = subject_of(get_cluster(unit, key, cluster))
    if may(caller.principal, action, subject):
        return
    if may(caller.principal, Action.READ_CLUSTER, subject):
        caller.must(action, subject)
    raise caller.denied(NotFound(f"cluster {key} is not known"), action, subject)


def still_seen(caller: Caller, view: ClusterView) -> ClusterView:
    """Give what a caller waited for; raises NotFound when the key has gone to an owner whom it may not know."""
    subject = subject_of(view)
    if may(caller.principal, Action.READ_CLUSTER, subject):
        return view
    raise caller.denied(NotFound(f"cluster {view.key} is not known"), Action.READ_CLUSTER, subject)


def must_list_clusters(caller: Caller, owner: UserName | None) -> UserName | None:
    """Say whose clusters are to be listed; raises Forbidden for a user who asks for another's."""
    caller.must_somehow(Action.READ_CLUSTER, "cluster")
    if reach(caller.principal, Action.READ_CLUSTER) is not Reach.OWN:
        return owner
    chosen = owner or UserName(caller.principal.name)
    caller.must(Action.READ_CLUSTER, Subject(f"clusters of {chosen}", owner=chosen))
    return chosen


def within(caller: Caller) -> list[ColumnElement[bool]]:
    """Select the clusters that a caller sees who sees those of its sites, or of its element."""
    match reach(caller.principal, Action.READ_CLUSTER):
        case Reach.SITES:
            return [at_sites(caller.principal.sites)]
        case Reach.ELEMENT:
            return [on_element(caller.principal.name)]
        case _:
            return []


def must_on_element(store: Store, caller: Caller, action: Action, name: Name) -> None:
    """Raise Forbidden; NotFound for an unknown element only where its site decides."""
    caller.must_somehow(action, "element")
    sites: frozenset[Name] = frozenset()
    if reach(caller.principal, action) is Reach.SITES:
        with store.read() as unit:
            sites = frozenset({Name(element_row(unit, name).site)})
    caller.must(action, Subject(f"element {name}", elements=frozenset({name}), sites=sites))


def must_read_audit(store: Store, caller: Caller, asked: Filter) -> Filter:
    """Return what the caller may read of what was asked for. Raise Forbidden, NotFound.

    Users read what concerns a cluster of theirs, site administrators what concerns their sites: of a key that stood for
    several clusters, the rows of those that are theirs.
    """
    caller.must_somehow(Action.READ_AUDIT, "cluster or element")
    if caller.reaches_all(Action.READ_AUDIT):
        return asked
    if asked.cluster is not None and reach(caller.principal, Action.READ_AUDIT) is Reach.OWN:
        return _own_rows(store, caller, asked, ClusterKey(asked.cluster))
    if asked.cluster is not None:
        must_on_cluster(store, caller, Action.READ_AUDIT, ClusterKey(asked.cluster))
        return replace(asked, sites=caller.principal.sites)
    if asked.element is not None:
        must_on_element(store, caller, Action.READ_AUDIT, Name(asked.element))
        return asked
    caller.must(Action.READ_AUDIT, Subject("everything (ask for one cluster or one element)"))
    return asked


def _own_rows(store: Store, caller: Caller, asked: Filter, key: ClusterKey) -> Filter:
    owner = caller.principal.name
    with store.read() as unit:
        known = has_had(unit, key, owner)
    if not known:
        must_on_cluster(store, caller, Action.READ_AUDIT, key)
    return replace(asked, owner=owner)


def subject_of(view: ClusterView) -> Subject:
    """Give a cluster as the rights see it."""
    sites = frozenset(part.site for part in view.placements)
    elements = frozenset(part.element for part in view.placements)
    return Subject(f"cluster {view.key}", owner=view.spec.owner, sites=sites, elements=elements)


def subject_of_request(request: ClusterRequest) -> Subject:
    """Give a cluster that is asked for as the rights see it: nothing carries a part of it yet but its hosts will."""
    owner = request.spec.owner
    return Subject(f"a cluster of {owner}", owner=owner, elements=frozenset(request.spec.all_hosts))


def starter_of(caller: Caller) -> str | None:
    """Return the host for which a caller begins jobs; None for every other role."""
    return caller.principal.name if caller.principal.role is Role.JOB_STARTER else None


def of_site(name: Name) -> Subject:
    """Give a site as the rights see it."""
    return Subject(f"site {name}", sites=frozenset({name}))
