"""The lock scopes of units of work that change existing clusters: the sites of the clusters' networks.

A network has claims at all its sites until every element has confirmed the removal of the network. Changes of the
network's clusters therefore concern only elements at these sites.
"""

from sqlalchemy import bindparam, func, select

from sbf_service.store.clusters.cluster_queries import is_unsettled_on
from sbf_service.store.elements.element_clusters import COMPLETED_PLACEMENTS
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import NAME_TYPE
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.tables.vlan_tables import ClaimRow
from sbf_service.store.transactions.lock_scopes import LockScope, OutsideScopeError
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.element import ElementKind

_NETWORK = func.coalesce(ClusterRow.network, ClusterRow.id)
_SITES_OF_KEY = select(ClaimRow.site).where(
    ClaimRow.cluster_id.in_(select(_NETWORK).where(ClusterRow.key == bindparam("key")))
)
_SITES_OF_COMPLETED = select(ClaimRow.site).where(
    ClaimRow.cluster_id.in_(select(_NETWORK).where(ClusterRow.id.in_(COMPLETED_PLACEMENTS)))
)
_SITES_OF_UNSETTLED = select(ClaimRow.site).where(
    ClaimRow.cluster_id.in_(select(_NETWORK).where(is_unsettled_on(bindparam("element"))))
)
_READ_ELEMENT = select(
    ElementRow.site,
    ElementRow.kind,
    ElementRow.confirmed_revision,
    ElementRow.reachable,
    ElementRow.trouble,
    ElementRow.leaving,
    ElementRow.unchecked,
).where(ElementRow.name == bindparam("name", type_=NAME_TYPE))


def find_cluster_scope(unit: Unit, key: str) -> LockScope:
    """Return the scope of a change of a cluster.

    The scope contains the key, and the sites at which the networks of the key's clusters, including earlier clusters,
    have claims.
    """
    sites = unit.connection.execute(_SITES_OF_KEY, {"key": key}).scalars()
    return LockScope(frozenset(sites), frozenset({f"cluster {key}"}))


def find_element_scope(unit: Unit, name: str) -> LockScope:
    """Return the scope of a change of one element: its site. An unknown element has an empty scope."""
    row = unit.connection.execute(_READ_ELEMENT, {"name": name}).one_or_none()
    return LockScope(frozenset() if row is None else frozenset({row.site}))


def find_confirmation_scope(unit: Unit, name: str, revision: int, *, has_errors: bool = False) -> LockScope:
    """Return the scope of a confirmation: the element's site, and the sites of the networks of the affected clusters.

    If the element was unreachable or had an error report, the affected clusters are all unsettled clusters on the
    element. Otherwise, they are the clusters that the newly confirmed revisions, up to ``revision``, add or remove.
    A cluster is unsettled if its state can still change.

    Raise OutsideScopeError for an unknown or unchecked element, a gateway, a removed switch, and a confirmation that
    ``has_errors``: such confirmations can change other clusters.
    """
    row = unit.connection.execute(_READ_ELEMENT, {"name": name}).one_or_none()
    if row is None or row.kind == ElementKind.GATEWAY or row.leaving or row.unchecked or has_errors:
        raise OutsideScopeError(f"element {name}")
    if not row.reachable or row.trouble:
        return LockScope(read_unsettled_sites(unit, name) | {row.site})
    completed = {"element": name, "before": row.confirmed_revision, "revision": revision}
    return LockScope(frozenset(unit.connection.execute(_SITES_OF_COMPLETED, completed).scalars()) | {row.site})


def read_unsettled_sites(unit: Unit, element: str) -> frozenset[str]:
    """Return the sites of the networks of all unsettled clusters on an element."""
    return frozenset(unit.connection.execute(_SITES_OF_UNSETTLED, {"element": element}).scalars())
