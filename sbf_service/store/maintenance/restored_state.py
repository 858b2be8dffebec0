"""The changes that SBF makes to a database after a restore (docs/decisions/0073).

The database lacks every change after the backup. SBF therefore reads every element again before it relies on the
element's state (``unchecked_elements.py``).

Revisions, fencing tokens and versions continue far above every number that SBF can have assigned after the backup. SBF
thus refuses earlier numbers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, insert, select, true, update

from sbf_service.store.elements.unchecked_elements import NOT_READ
from sbf_service.store.maintenance.backup_format import BackupHeader
from sbf_service.store.maintenance.outages import record_run
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.service_tables import AuditRow
from sbf_service.store.tables.tables import IS_RECONCILED, Base, ElementRow, SiteDocumentRow, TopologyRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import WANTED_STATES, ClusterState
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.errors import BadInput
from virtcloud.model.values import format_utc

REVISION_STEP = 10_000_000
"""The increment of revisions, fencing tokens and versions at a restore.

With one change of an element per second, SBF assigns so many numbers in four months.
"""
MAX_NUMBER = 2**31 - 1
"""The maximum value of PostgreSQL's columns of revisions, sufficient for about 200 restores."""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of a restore.

    ``elements`` is the number of unchecked elements, and ``extended`` the number of extended leases.
    """

    taken_at: datetime
    rows: Mapping[str, int]
    elements: int
    extended: int


def record_restore(
    unit: Unit, header: BackupHeader, rows: Mapping[str, int], grace: timedelta, former_version: int
) -> RestoreReport:
    """Change a restored database so that SBF can use it safely, and record the restore in the audit log.

    Increase revisions, fencing tokens and versions, reset all confirmations, and extend the leases that end before
    ``grace`` has passed. Active clusters become degraded. ``former_version`` is the version of the topology that the
    restore deleted, or 0.

    Raise BadInput if the highest revision would exceed :data:`MAX_NUMBER` after this restore and one further restore.
    """
    highest = unit.session.scalar(select(func.max(ElementRow.wanted_revision))) or 0
    if highest > MAX_NUMBER - 2 * REVISION_STEP:
        raise BadInput(
            f"the revisions of elements ({highest}) permit no further restore: start with an empty database instead"
        )
    trouble = f"{NOT_READ} {format_utc(header.taken_at)}"
    elements = _reset_elements(unit, trouble)
    reason = f"being restored: its elements were {trouble}"
    degraded = _degrade_clusters(unit, reason)
    extended = _extend_leases(unit, unit.now + grace)
    record_run(unit)  # the time since the backup is no outage: SBF ran, and leases are extended already
    unit.session.execute(update(ClusterRow).values(version=ClusterRow.version + REVISION_STEP))
    _increase_topology_version(unit, former_version)
    why = f"backup of {format_utc(header.taken_at)}, virtcloud {header.virtcloud}, {header.database}"
    changes = [(f"cluster_{ClusterState.DEGRADED}", reason, cluster_id) for cluster_id in degraded]
    _record_audit(unit, [*changes, ("database_restored", why, None)])
    return RestoreReport(header.taken_at, rows, elements, extended)


def _increase_topology_version(unit: Unit, former_version: int) -> None:
    """Assign a new version to the topology and all its documents.

    A replica that ran during the restore, for example without a connection, then reads all documents again. With a
    version above ``former_version``, two restores of one backup have different versions.
    """
    restored = unit.session.scalars(select(TopologyRow.version)).one()
    version = max(restored + REVISION_STEP, former_version + 1)
    unit.session.execute(update(TopologyRow).values(version=version, common_version=version))
    unit.session.execute(update(SiteDocumentRow).values(version=version))


def _reset_elements(unit: Unit, trouble: str) -> int:
    revision, fence = ElementRow.wanted_revision + REVISION_STEP, ElementRow.fence + REVISION_STEP
    unit.session.execute(
        update(ElementRow).values(
            wanted_revision=revision,
            first_revision=revision,
            confirmed_revision=0,
            fence=fence,
            lease_holder=None,
            lease_until=None,
            checked_at=None,
        )
    )
    unchecked = update(ElementRow).where(IS_RECONCILED)
    names = unit.session.scalars(
        unchecked.values(unchecked=true(), trouble=trouble, troubles=None).returning(ElementRow.name)
    ).all()
    # The startup configuration may differ from the backup even if the running configuration does not: SBF may have
    # saved a change after the backup, and then applied the opposite change without saving.
    unit.session.execute(
        unchecked.where(ElementRow.kind.in_(sorted(DEVICE_KINDS))).values(unsaved_since=unit.now, save_after=None)
    )
    return len(names)


def _degrade_clusters(unit: Unit, reason: str) -> list[str]:
    active = update(ClusterRow).where(ClusterRow.state == ClusterState.ACTIVE)
    degraded = active.values(state=ClusterState.DEGRADED, reason=reason).returning(ClusterRow.id)
    return sorted(unit.session.scalars(degraded))


def _extend_leases(unit: Unit, until: datetime) -> int:
    wanted = update(ClusterRow).where(ClusterRow.state.in_(WANTED_STATES))
    extending = wanted.where(ClusterRow.lease_ends < until).values(lease_ends=until)
    extended = unit.session.scalars(extending.returning(ClusterRow.id)).all()
    unit.session.execute(wanted.where(ClusterRow.deadline < until).values(deadline=until))
    return len(extended)


def _record_audit(unit: Unit, changes: Iterable[tuple[str, str, str | None]]) -> None:
    """Insert audit rows with IDs far above all IDs that SBF assigned after the backup.

    Each change consists of the columns ``what``, ``why`` and ``cluster_id``. A running ``audit --follow`` reads only
    rows above the last ID that it has read.
    """
    audit = Base.metadata.tables[AuditRow.__tablename__]
    first = (unit.session.scalar(select(func.max(AuditRow.id))) or 0) + REVISION_STEP
    rows = [
        {"id": number, "at": unit.now, "who": unit.who, "what": what, "why": why, "cluster_id": cluster_id}
        for number, (what, why, cluster_id) in enumerate(changes, first)
    ]
    unit.session.execute(insert(audit), rows)
