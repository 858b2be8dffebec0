"""Clusters: asking for one, looking at it, ending it. What a repeated call means is decided in ``calls.py``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement

from sbf_service.calls import ANY_OF_KEY, Blocked, Fence, New, Same, decide
from sbf_service.settle import lagging
from sbf_service.store.asked_number import Sees, sees_none
from sbf_service.store.audit import record
from sbf_service.store.choosing import Asked
from sbf_service.store.create import create
from sbf_service.store.history import Page, page_of
from sbf_service.store.jobs import check_job
from sbf_service.store.keys import former_of, highest_of, latest
from sbf_service.store.moves import drain
from sbf_service.store.networks import network_called
from sbf_service.store.pools import Reserved
from sbf_service.store.quotas import NO_LIMITS, check_length, check_new
from sbf_service.store.session import Store, Unit
from sbf_service.store.standing import NOT_ENDED, clusters_where, standings, view, views
from sbf_service.store.tables import ClusterRow
from virtcloud.model.access import QuotaLimits
from virtcloud.model.cluster import WANTED, ClusterRequest, State
from virtcloud.model.errors import AttemptWaits, Conflict, JobUnproven, NotFound
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
    sees: Sees = sees_none,
    starter: str | None = None,
) -> Put:
    """Make a cluster, or give the one that this key and attempt mean; may be repeated.

    Claims at every site, the cluster and all wanted changes are one transaction. Raises NotFound (an unknown host),
    Conflict, Gone. AttemptWaits ends the former attempt. ``sees`` says of which owners' clusters who asks may know.
    ``starter`` is the host that asks for a job's cluster: JobUnproven, Forbidden (see :mod:`.jobs`).
    """
    call = _Call(key, request, reserved, quota, sees, starter)
    made = store.together(lambda unit: _put(replace(unit, who=who), store.new_id(), call))
    if isinstance(made, AttemptWaits | JobUnproven):
        raise made
    return made


def get_cluster(unit: Unit, key: str, cluster_id: str | None = None) -> ClusterView:
    """Return the newest cluster under a key, or an earlier one by its id; raises NotFound."""
    return view(unit, _found(unit, key, cluster_id))


def version_of(unit: Unit, key: str, cluster_id: str | None = None) -> int:
    """Return the version of what :func:`get_cluster` returns; raises NotFound. Cheap: for those who wait."""
    return _found(unit, key, cluster_id).version


def list_clusters(
    unit: Unit, owner: str | None, ended: Page | None = None, within: Sequence[ColumnElement[bool]] = ()
) -> list[ClusterView]:
    """Show clusters, oldest first: all that have not ended; or a page of all. Raises NotFound."""
    conditions = [*within, *([] if owner is None else [ClusterRow.owner == owner])]
    if ended is not None:
        return views(unit, page_of(unit, ended, *conditions))
    return views(unit, clusters_where(unit, NOT_ENDED, *conditions))


def list_network(unit: Unit, word: str) -> list[ClusterView]:
    """Show the network that is called so, by a name or key: its own cluster, then its members; those not ended."""
    return views(unit, network_called(unit, word))


def delete_cluster(unit: Unit, key: str, reason: str, fence: Fence = ANY_OF_KEY) -> ClusterView:
    """End a cluster; may be repeated. Raises NotFound for a key never seen, Gone for a cluster that is not meant."""
    row = _found(unit, key)
    fence.check(key, row)
    drain(unit, row, reason)
    return view(unit, row)


def extend_lease(
    unit: Unit, key: str, seconds: float, quota: QuotaLimits = NO_LIMITS, fence: Fence = ANY_OF_KEY
) -> ClusterView:
    """Extend a cluster's lease to at least ``seconds`` from now; never shortens it. May be repeated.

    Raises NotFound, Gone for a cluster that is not meant, QuotaExceeded, and Conflict for one that is ending or ended.
    """
    row = _found(unit, key)
    fence.check(key, row)
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


@dataclass(frozen=True, slots=True)
class _Call:
    """What is asked, and within what limits."""

    key: str
    request: ClusterRequest
    reserved: Reserved
    quota: QuotaLimits
    sees: Sees
    starter: str | None = None


def _put(unit: Unit, new_id: str, call: _Call) -> Put | AttemptWaits | JobUnproven:
    """Return what ends the former attempt or asks about a job, so that this is kept; raise what keeps nothing."""
    key, spec, row = call.key, call.request.spec, latest(unit, call.key)
    decision = decide(key, call.request, former_of(row), highest_of(unit, row, spec.owner))
    if call.starter is not None and not isinstance(decision, Same):
        unproven = check_job(unit, key, spec, call.starter, use=isinstance(decision, New))
        if unproven is not None:
            return unproven
    if isinstance(decision, New):
        check_new(unit, call.quota, spec)
        asked = Asked(new_id, key, decision.attempt, spec, call.sees, row)
        return Put(create(unit, asked, call.reserved), created=True)
    if row is None:
        raise NotFound(f"cluster {key} is not known")
    if isinstance(decision, Blocked):
        drain(unit, row, f"attempt {call.request.attempt} was asked for")
        return AttemptWaits("; ".join(filter(None, [decision.message, lagging(*standings(unit, [row]))])))
    return Put(view(unit, row), created=False)


def _found(unit: Unit, key: str, cluster_id: str | None = None) -> ClusterRow:
    row = latest(unit, key) if cluster_id is None else unit.session.get(ClusterRow, cluster_id)
    if row is None or row.key != key:
        raise NotFound(f"cluster {key} is not known")
    return row
