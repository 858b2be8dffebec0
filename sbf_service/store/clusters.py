"""Clusters: asking for one, looking at it, ending it. What a repeated call means is decided in ``calls.py``."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement

from sbf_service.calls import Blocked, Former, New, decide
from sbf_service.store.audit import record
from sbf_service.store.create import Asked, create
from sbf_service.store.moves import drain
from sbf_service.store.pools import Reserved
from sbf_service.store.quotas import NO_LIMITS, check_length, check_new
from sbf_service.store.session import Store, Unit
from sbf_service.store.standing import NOT_ENDED, clusters_where, latest, spec_of, view, views
from sbf_service.store.tables import ClusterRow
from virtcloud.model.access import QuotaLimits
from virtcloud.model.cluster import WANTED, ClusterRequest, State
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.views import ClusterView


@dataclass(frozen=True, slots=True)
class Put:
    """The answer to a request for a cluster."""

    view: ClusterView
    created: bool


def put_cluster(  # noqa: PLR0913 - what is asked, by whom, and within what limits
    store: Store,
    key: str,
    request: ClusterRequest,
    reserved: Reserved,
    who: str,
    *,
    quota: QuotaLimits = NO_LIMITS,
) -> Put:
    """Make a cluster, or give the one that this key and attempt mean; may be repeated.

    Claims at every site, the cluster and all wanted changes are one transaction. Raises NotFound (an unknown host),
    Conflict, NoVlanFree, QuotaExceeded, Gone. A Conflict with a former attempt that still runs ends that attempt.
    """
    made = store.together(lambda unit: _put(replace(unit, who=who), store.new_id(), key, request, reserved, quota))
    if isinstance(made, Conflict):
        raise made
    return made


def get_cluster(unit: Unit, key: str) -> ClusterView:
    """Show the newest attempt under a key; raises NotFound."""
    return view(unit, _found(unit, key))


def version_of(unit: Unit, key: str) -> int:
    """Give the version of the view under a key; raises NotFound. Cheap: for those who wait."""
    return _found(unit, key).version


def list_clusters(unit: Unit, owner: str | None, *, ended: bool) -> list[ClusterView]:
    """Show clusters, oldest first; those that have ended only when asked for."""
    conditions: list[ColumnElement[bool]] = [] if ended else [NOT_ENDED]
    if owner is not None:
        conditions.append(ClusterRow.owner == owner)
    return views(unit, clusters_where(unit, *conditions))


def delete_cluster(unit: Unit, key: str, reason: str) -> ClusterView:
    """End a cluster; may be repeated. Raises NotFound for a key never seen."""
    row = _found(unit, key)
    drain(unit, row, reason)
    return view(unit, row)


def extend_lease(unit: Unit, key: str, seconds: float, quota: QuotaLimits = NO_LIMITS) -> ClusterView:
    """Let a cluster last for ``seconds`` from now, at least: a lease is never shortened, and this may be repeated.

    Raises NotFound, QuotaExceeded, and Conflict for a cluster that is ending or has ended.
    """
    row = _found(unit, key)
    if State(row.state) not in WANTED:
        raise Conflict(f"cluster {key} is {row.state}, its lease cannot be extended: ask for a new one")
    ends = unit.now + timedelta(seconds=seconds)
    if ends > row.lease_ends:
        check_length(unit, quota, row.owner, (ends - row.created_at).total_seconds())
        record(unit, "lease_extended", why=f"from {_utc(row.lease_ends)} to {_utc(ends)}", cluster_id=row.id)
        row.lease_ends, row.version = ends, row.version + 1
        unit.changed.add(f"cluster:{key}")
        unit.session.flush()
    return view(unit, row)


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _put(  # noqa: PLR0913, PLR0917 - as put_cluster
    unit: Unit, new_id: str, key: str, request: ClusterRequest, reserved: Reserved, quota: QuotaLimits
) -> Put | Conflict:
    """Give a conflict that ends the former attempt, so that this is kept; raise what keeps nothing."""
    row = latest(unit, key)
    decision = decide(key, request, _former(row))
    if isinstance(decision, New):
        check_new(unit, quota, request.spec)
        asked = Asked(new_id, key, decision.attempt, row.version + 1 if row else 1, request.spec)
        return Put(create(unit, asked, reserved), created=True)
    if row is None:
        raise NotFound(f"cluster {key} is not known")
    if isinstance(decision, Blocked):
        drain(unit, row, f"attempt {request.attempt} was asked for")
        return Conflict(decision.message)
    return Put(view(unit, row), created=False)


def _found(unit: Unit, key: str) -> ClusterRow:
    row = latest(unit, key)
    if row is None:
        raise NotFound(f"cluster {key} is not known")
    return row


def _former(row: ClusterRow | None) -> Former | None:
    return None if row is None else Former(row.attempt, State(row.state), spec_of(row))
