"""Clusters: asking for one, looking at it, ending it. What a repeated call means is decided in ``calls.py``.

Lists of clusters that have those that have ended too: after years most have, so a list is a page of it.

Whom a running network is shared with: changed after its creation, by its owner's call (REQUIREMENTS.md N6).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy import ColumnElement, select, tuple_

from sbf_service.domain.admission import RequestLimits, check_request_limits
from sbf_service.domain.idempotency import (
    ANY_ATTEMPT,
    AttemptBlocked,
    AttemptFence,
    CreateAttempt,
    NoChange,
    resolve_request,
)
from sbf_service.domain.lifecycle import describe_unconfirmed
from sbf_service.store.allocation import CanSeeOwner, can_see_none
from sbf_service.store.cluster_creation import NewCluster, create_cluster
from sbf_service.store.cluster_queries import (
    NOT_ENDED,
    find_clusters,
    find_highest_attempt,
    find_newest_cluster,
    make_cluster_view,
    make_cluster_views,
    make_latest_attempt,
    parse_current_spec,
    read_cluster_statuses,
)
from sbf_service.store.job_proofs import check_job_proof
from sbf_service.store.networks import find_network
from sbf_service.store.pools import ReservedVlans
from sbf_service.store.quotas import NO_LIMITS, check_lease, check_new_cluster
from sbf_service.store.tables import ClusterRow
from sbf_service.store.transitions import drain_cluster
from sbf_service.store.unit_of_work import Store, Unit, record_audit
from virtcloud.model.access import QuotaLimits
from virtcloud.model.cluster import WANTED_STATES, ClusterRequest, ClusterState
from virtcloud.model.errors import AttemptWaits, Conflict, JobUnproven, NotFound
from virtcloud.model.values import format_utc
from virtcloud.model.views import ClusterView

_PAGE_ORDER = ClusterRow.created_at, ClusterRow.key, ClusterRow.turn, ClusterRow.attempt


@dataclass(frozen=True, slots=True)
class ClusterPage:
    """The newest ``limit`` clusters; with ``before``, the id of one, of those that are older than that one."""

    limit: int
    before: str | None = None


def read_page(unit: Unit, page: ClusterPage, *conditions: ColumnElement[bool]) -> Sequence[ClusterRow]:
    """Find a page of clusters, oldest first. Raises NotFound."""
    rows = select(ClusterRow).where(*conditions, *_is_older(unit, page.before))
    return unit.session.scalars(rows.order_by(*(one.desc() for one in _PAGE_ORDER)).limit(page.limit)).all()[::-1]


def _is_older(unit: Unit, before: str | None) -> list[ColumnElement[bool]]:
    if before is None:
        return []
    row = unit.session.get(ClusterRow, before)
    if row is None:
        raise NotFound(f"before: no cluster has the id {before}")
    return [tuple_(*_PAGE_ORDER) < (row.created_at, row.key, row.turn, row.attempt)]


@dataclass(frozen=True, slots=True)
class PutResult:
    """The answer to a request for a cluster."""

    view: ClusterView
    created: bool


def put_cluster(  # noqa: PLR0913 - what is asked, by whom, and within what limits
    store: Store,
    key: str,
    request: ClusterRequest,
    reserved: ReservedVlans,
    who: str,
    *,
    quota: QuotaLimits = NO_LIMITS,
    sees: CanSeeOwner = can_see_none,
    starter: str | None = None,
) -> PutResult:
    """Make a cluster, or give the one that this key and attempt mean; may be repeated.

    Claims at every site, the cluster and all wanted changes are one transaction. Raises NotFound (an unknown host),
    Conflict, Gone. AttemptWaits ends the former attempt. ``sees`` says of which owners' clusters who asks may know.
    ``starter`` is the host that asks for a job's cluster: JobUnproven, Forbidden (see :mod:`.jobs`).
    """
    call = _PutRequest(key, request, reserved, quota, sees, starter)
    made = store.together(lambda unit: _put_in_unit(replace(unit, who=who), store.new_id(), call))
    if isinstance(made, AttemptWaits | JobUnproven):
        raise made
    return made


def get_cluster(unit: Unit, key: str, cluster_id: str | None = None) -> ClusterView:
    """Return the newest cluster under a key, or an earlier one by its id; raises NotFound."""
    return make_cluster_view(unit, _require_cluster(unit, key, cluster_id))


def read_cluster_version(unit: Unit, key: str, cluster_id: str | None = None) -> int:
    """Return the version of what :func:`get_cluster` returns; raises NotFound. Cheap: for those who wait."""
    return _require_cluster(unit, key, cluster_id).version


def list_clusters(
    unit: Unit, owner: str | None, ended: ClusterPage | None = None, within: Sequence[ColumnElement[bool]] = ()
) -> list[ClusterView]:
    """Show clusters, oldest first: all that have not ended; or a page of all. Raises NotFound."""
    conditions = [*within, *([] if owner is None else [ClusterRow.owner == owner])]
    if ended is not None:
        return make_cluster_views(unit, read_page(unit, ended, *conditions))
    return make_cluster_views(unit, find_clusters(unit, NOT_ENDED, *conditions))


def list_network(unit: Unit, word: str) -> list[ClusterView]:
    """Show the network that is called so, by a name or key: its own cluster, then its members; those not ended."""
    return make_cluster_views(unit, find_network(unit, word))


def delete_cluster(unit: Unit, key: str, reason: str, fence: AttemptFence = ANY_ATTEMPT) -> ClusterView:
    """End a cluster; may be repeated. Raises NotFound for a key never seen, Gone for a cluster that is not meant."""
    row = _require_cluster(unit, key)
    fence.check(key, row)
    drain_cluster(unit, row, reason)
    return make_cluster_view(unit, row)


def extend_lease(
    unit: Unit, key: str, seconds: float, quota: QuotaLimits = NO_LIMITS, fence: AttemptFence = ANY_ATTEMPT
) -> ClusterView:
    """Extend a cluster's lease to at least ``seconds`` from now; never shortens it. May be repeated.

    Raises NotFound, Gone for a cluster that is not meant, QuotaExceeded, and Conflict for one that is ending or ended.
    """
    row = _require_cluster(unit, key)
    fence.check(key, row)
    if ClusterState(row.state) not in WANTED_STATES:
        raise Conflict(f"cluster {key} is {row.state}, its lease cannot be extended: ask for a new one")
    ends = unit.now + timedelta(seconds=seconds)
    if ends > row.lease_ends:
        check_lease(unit, quota, row.owner, (ends - row.created_at).total_seconds())
        record_audit(
            unit, "lease_extended", why=f"from {format_utc(row.lease_ends)} to {format_utc(ends)}", cluster_id=row.id
        )
        row.lease_ends, row.version = ends, row.version + 1
        unit.changed.add(f"cluster:{key}")
        unit.session.flush()
    return make_cluster_view(unit, row)


@dataclass(frozen=True, slots=True)
class _PutRequest:
    """What is asked, and within what limits."""

    key: str
    request: ClusterRequest
    reserved: ReservedVlans
    quota: QuotaLimits
    sees: CanSeeOwner
    starter: str | None = None


def _put_in_unit(unit: Unit, new_id: str, call: _PutRequest) -> PutResult | AttemptWaits | JobUnproven:
    """Return what ends the former attempt or asks about a job, so that this is kept; raise what keeps nothing."""
    key, spec, row = call.key, call.request.spec, find_newest_cluster(unit, call.key)
    decision = resolve_request(key, call.request, make_latest_attempt(row), find_highest_attempt(unit, row, spec.owner))
    if call.starter is not None and not isinstance(decision, NoChange):
        unproven = check_job_proof(unit, key, spec, call.starter, use=isinstance(decision, CreateAttempt))
        if unproven is not None:
            return unproven
    if isinstance(decision, CreateAttempt):
        check_new_cluster(unit, call.quota, spec)
        asked = NewCluster(new_id, key, decision.attempt, spec, call.sees, row)
        return PutResult(create_cluster(unit, asked, call.reserved), created=True)
    if row is None:
        raise NotFound(f"cluster {key} is not known")
    if isinstance(decision, AttemptBlocked):
        drain_cluster(unit, row, f"attempt {call.request.attempt} was asked for")
        return AttemptWaits(
            "; ".join(filter(None, [decision.message, describe_unconfirmed(*read_cluster_statuses(unit, [row]))]))
        )
    return PutResult(make_cluster_view(unit, row), created=False)


def _require_cluster(unit: Unit, key: str, cluster_id: str | None = None) -> ClusterRow:
    row = find_newest_cluster(unit, key) if cluster_id is None else unit.session.get(ClusterRow, cluster_id)
    if row is None or row.key != key:
        raise NotFound(f"cluster {key} is not known")
    return row


def share_network(
    unit: Unit, key: str, owner: str, limits: RequestLimits, fence: AttemptFence = ANY_ATTEMPT
) -> ClusterView:
    """Share a cluster's network with ``owner``, who may join it from now on. Idempotent.

    Raise NotFound, Gone for a cluster that is not meant, Conflict for a member or a cluster that ends, BeyondLimit for
    more owners than the service's settings allow.
    """
    row = _require_sharable(unit, key, fence)
    owners = parse_current_spec(row).shares_with
    if owner not in owners:
        check_request_limits(limits, parse_current_spec(row).model_copy(update={"shares_with": (*owners, owner)}))
        _replace_shares(unit, row, (*owners, owner), f"shared with {owner}")
    return make_cluster_view(unit, row)


def unshare_network(unit: Unit, key: str, owner: str, fence: AttemptFence = ANY_ATTEMPT) -> ClusterView:
    """Stop sharing a cluster's network with ``owner``, whose members stay until they end. Idempotent.

    Raise NotFound, Gone for a cluster that is not meant, Conflict for a member or a cluster that ends.
    """
    row = _require_sharable(unit, key, fence)
    owners = parse_current_spec(row).shares_with
    if owner in owners:
        _replace_shares(unit, row, tuple(one for one in owners if one != owner), f"no longer shared with {owner}")
    return make_cluster_view(unit, row)


def _require_sharable(unit: Unit, key: str, fence: AttemptFence) -> ClusterRow:
    row = find_newest_cluster(unit, key)
    if row is None:
        raise NotFound(f"cluster {key} is not known")
    fence.check(key, row)
    if row.network is not None:
        raise Conflict(f"cluster {key} is a member of another cluster's network: the owner of that cluster shares it")
    if ClusterState(row.state) not in WANTED_STATES:
        raise Conflict(f"cluster {key} is {row.state}: its network cannot be shared any more")
    return row


def _replace_shares(unit: Unit, row: ClusterRow, owners: tuple[str, ...], why: str) -> None:
    row.shares, row.version = ",".join(owners), row.version + 1
    record_audit(unit, "network_shared", why=why, cluster_id=row.id)
    unit.changed.add(f"cluster:{row.key}")
    unit.session.flush()
