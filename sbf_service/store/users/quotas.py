"""Quotas of users, checked in the transaction of the checked change."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import bindparam, func, select

from sbf_service.domain.admission import (
    QuotaRequest,
    ResourceUsage,
    find_lease_violation,
    find_quota_violation,
    merge_limits,
    sum_usage,
)
from sbf_service.domain.page_cursors import KEY_OF_NAME, CursorFormat
from sbf_service.domain.paths import find_sites
from sbf_service.log import get_log
from sbf_service.store.clusters.cluster_documents import parse_spec
from sbf_service.store.clusters.cluster_queries import NOT_ENDED
from sbf_service.store.pages import Page, PageOrder, PagePart, read_page
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.user_tables import ImageRow, QuotaRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.access import QuotaLimits, QuotaView
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import QuotaExceeded
from virtcloud.model.message_text import to_mib
from virtcloud.model.values import UserName

NO_LIMITS: Final = QuotaLimits()
BY_OWNER: Final = PageOrder(CursorFormat("quotas", KEY_OF_NAME), (QuotaRow.owner,))
_LIMIT_NAMES: Final = tuple(QuotaLimits.model_fields)
MAX_LIMITS_AT_ONCE: Final = 16
"""The maximum number of users whose individual limits one query reads, for all changes of a group commit."""
_SELECT_LIMITS = select(QuotaRow.owner, *(getattr(QuotaRow, name) for name in _LIMIT_NAMES))
_READ_SOME_LIMITS = _SELECT_LIMITS.limit(MAX_LIMITS_AT_ONCE + 1)
_READ_LIMITS = _SELECT_LIMITS.where(QuotaRow.owner == bindparam("owner"))
IS_STORED: Final = ImageRow.url.is_(None), ImageRow.file.is_(None)
_STORED_BYTES = select(func.coalesce(func.sum(ImageRow.size), 0)).where(
    ImageRow.owner == bindparam("owner"), *IS_STORED
)
_RUNNING = select(
    func.coalesce(ClusterRow.resolved, ClusterRow.spec).label("spec"), ClusterRow.id, ClusterRow.key, ClusterRow.network
).where(ClusterRow.owner == bindparam("owner"), NOT_ENDED)

log = get_log(__name__)


def check_new_cluster(unit: Unit, default: QuotaLimits, spec: ClusterSpec) -> None:
    """Raise QuotaExceeded if a new cluster would exceed its owner's quota. Clusters count until they have ended."""
    limits = merge_limits(_read_limits(unit, spec.owner), default)
    if limits == NO_LIMITS:
        return
    sites = len(find_sites(read_topology(unit), spec.all_hosts, spec.sites))
    used, unreadable = _read_usage(unit, spec.owner)
    request = QuotaRequest(spec.owner, used, sum_usage([spec]), sites, spec.lease_s, unreadable)
    violation = find_quota_violation(limits, request)
    if violation is not None:
        raise QuotaExceeded(violation)


def check_lease(unit: Unit, default: QuotaLimits, owner: str, duration_s: float) -> None:
    """Raise QuotaExceeded if the quota of ``owner`` forbids a cluster of ``duration_s`` seconds in total."""
    limits = merge_limits(_read_limits(unit, owner), default)
    violation = find_lease_violation(limits, owner, duration_s)
    if violation is not None:
        raise QuotaExceeded(violation)


def make_quota_view(unit: Unit, user: UserName, default: QuotaLimits) -> QuotaView:
    """Return a user's quota and usage. The usage omits the guests of clusters whose stored specs SBF cannot read."""
    own = _read_limits(unit, user)
    usage, _ = _read_usage(unit, user)
    return QuotaView(
        user=user,
        limits=merge_limits(own, default),
        own=own or NO_LIMITS,
        images_mb=to_mib(read_stored_bytes(unit, user)),
        **asdict(usage),
    )


def find_limits(unit: Unit, owner: str, default: QuotaLimits) -> QuotaLimits:
    """Return the limits that apply to a user."""
    return merge_limits(_read_limits(unit, owner), default)


def read_stored_bytes(unit: Unit, owner: str) -> int:
    """Return the total size, in bytes, of the images that SBF stores for a user."""
    return int(unit.connection.execute(_STORED_BYTES, {"owner": owner}).scalar_one())


def read_quota_page(unit: Unit, part: PagePart, default: QuotaLimits) -> Page[QuotaView]:
    """Return a page of individual quotas, sorted by user. Raise BadInput for an invalid cursor."""
    found = read_page(unit, select(QuotaRow), BY_OWNER, part)
    return found.convert(lambda rows: [make_quota_view(unit, UserName(row.owner), default) for row in rows])


def put_quota(unit: Unit, user: UserName, limits: QuotaLimits) -> None:
    """Replace a user's quota; idempotent. For a missing limit, the limit in the settings applies."""
    before = _read_limits(unit, user) or NO_LIMITS
    if before == limits:
        return
    row = unit.session.get(QuotaRow, user)
    if limits == NO_LIMITS:
        unit.session.delete(row)
    else:
        unit.session.merge(QuotaRow(owner=user, **limits.model_dump()))
    record_audit(unit, "quota_put", why=f"{user}: {_describe_limits(before)} became {_describe_limits(limits)}")
    unit.session.flush()
    unit.values.limits[user] = None if limits == NO_LIMITS else limits


def _read_limits(unit: Unit, owner: str) -> QuotaLimits | None:
    """Return the individual limits of a user, or None.

    One query in each unit of work suffices, because a unit that changes quotas locks everything. If very many users
    have individual limits, each user needs a query.
    """
    known = unit.values.limits
    if owner not in known:
        row = _read_quota_row(unit, owner)
        known[owner] = None if row is None else QuotaLimits(**dict(zip(_LIMIT_NAMES, row[1:], strict=True)))
    return known[owner]


def _read_quota_row(unit: Unit, owner: str) -> Sequence[Any] | None:
    values = unit.values
    if values.quota_rows is None:
        values.quota_rows = {row.owner: row for row in unit.connection.execute(_READ_SOME_LIMITS)}
    if owner in values.quota_rows or len(values.quota_rows) <= MAX_LIMITS_AT_ONCE:
        return values.quota_rows.get(owner)
    return unit.connection.execute(_READ_LIMITS, {"owner": owner}).one_or_none()


def _read_usage(unit: Unit, owner: str) -> tuple[ResourceUsage, Sequence[str]]:
    specs, counted, unreadable = [], ResourceUsage(), []
    for row in unit.connection.execute(_RUNNING, {"owner": owner}):
        try:
            specs.append(parse_spec(row.spec))
        except ValueError as error:
            log.fault("cluster_unreadable", error, cluster=row.id)
            counted += ResourceUsage(clusters=1, networks=int(row.network is None))
            unreadable.append(row.key)
    return sum_usage(specs) + counted, unreadable


def _describe_limits(limits: QuotaLimits) -> str:
    values = limits.model_dump(exclude_none=True)
    return ", ".join(f"{name} {value:g}" for name, value in values.items()) or "no individual limits"
