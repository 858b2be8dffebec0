"""Quotas: what users may have, checked in the transaction that would give them more."""

from dataclasses import asdict
from typing import Final

from sqlalchemy import bindparam, select

from sbf_service.access.quota import Use, Wanted, refused_length, refused_new, use_of, within
from sbf_service.paths import sites_of
from sbf_service.store.audit import record
from sbf_service.store.reading import read_topology
from sbf_service.store.session import Unit
from sbf_service.store.standing import NOT_ENDED, spec_in
from sbf_service.store.tables import ClusterRow, QuotaRow
from virtcloud.model.access import QuotaLimits, QuotaView
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import QuotaExceeded
from virtcloud.model.values import UserName

NO_LIMITS: Final = QuotaLimits()
_LIMITS: Final = tuple(QuotaLimits.model_fields)
_OWN = select(*(getattr(QuotaRow, name) for name in _LIMITS)).where(QuotaRow.owner == bindparam("owner"))
_RUNNING = select(ClusterRow.spec).where(ClusterRow.owner == bindparam("owner"), NOT_ENDED)


def check_new(unit: Unit, default: QuotaLimits, spec: ClusterSpec) -> None:
    """Raise QuotaExceeded when the owner of a cluster may not have it. Clusters count until they have ended."""
    limits = within(_own(unit, spec.owner), default)
    if limits == NO_LIMITS:
        return
    sites = len(sites_of(read_topology(unit), spec.all_hosts, spec.sites))
    has = _use(unit, spec.owner)
    refused = refused_new(limits, Wanted(spec.owner, has, use_of([spec]), sites, spec.lease_s))
    if refused is not None:
        raise QuotaExceeded(refused)


def check_length(unit: Unit, default: QuotaLimits, owner: str, lasts_s: float) -> None:
    """Raise QuotaExceeded when a cluster of this owner may not last so long from its start."""
    refused = refused_length(within(_own(unit, owner), default), owner, lasts_s)
    if refused is not None:
        raise QuotaExceeded(refused)


def quota_view(unit: Unit, user: UserName, default: QuotaLimits) -> QuotaView:
    """Show what a user may have, and has."""
    own = _own(unit, user)
    return QuotaView(user=user, limits=within(own, default), own=own or NO_LIMITS, **asdict(_use(unit, user)))


def own_quotas(unit: Unit, default: QuotaLimits) -> list[QuotaView]:
    """Show every user who has a quota of its own."""
    owners = unit.session.scalars(select(QuotaRow.owner).order_by(QuotaRow.owner)).all()
    return [quota_view(unit, UserName(owner), default) for owner in owners]


def put_quota(unit: Unit, user: UserName, limits: QuotaLimits) -> None:
    """Say what a user may have; what is not given is as the settings say. What it has already stays. Repeatable."""
    before = _own(unit, user) or NO_LIMITS
    if before == limits:
        return
    row = unit.session.get(QuotaRow, user)
    if limits == NO_LIMITS:
        unit.session.delete(row)
    else:
        unit.session.merge(QuotaRow(owner=user, **limits.model_dump()))
    record(unit, "quota_put", why=f"{user}: {_words(before)} became {_words(limits)}")
    unit.session.flush()


def _own(unit: Unit, owner: str) -> QuotaLimits | None:
    found = unit.connection.execute(_OWN, {"owner": owner}).one_or_none()
    return None if found is None else QuotaLimits(**dict(zip(_LIMITS, found, strict=True)))


def _use(unit: Unit, owner: str) -> Use:
    """Return what a user has now; clusters count until they have ended."""
    return use_of(spec_in(text) for (text,) in unit.connection.execute(_RUNNING, {"owner": owner}))


def _words(limits: QuotaLimits) -> str:
    given = limits.model_dump(exclude_none=True)
    return ", ".join(f"{name} {value:g}" for name, value in given.items()) or "nothing of its own"
