"""The database tables of the topology, of clusters and of the service.

Their constraints enforce the invariants that the domain rules also enforce (DESIGN.md §7).
"""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    MetaData,
    Text,
    UniqueConstraint,
    false,
    or_,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sbf_service.store.columns import KEY_TYPE, NAME_TYPE, ROW_NUMBER, USER_TYPE, UtcDateTime, VlanSetText
from virtcloud.model.cluster import ClusterState
from virtcloud.model.element import ElementKind
from virtcloud.model.vlans import VlanSet

CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def is_one_of(column: str, values: type[StrEnum]) -> str:
    """Return the SQL condition that a column contains one of these values."""
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


class Base(DeclarativeBase):
    """The base class of all tables of the service."""

    metadata = MetaData(naming_convention=CONVENTION)


class TopologyRow(Base):
    """The topology: the only row of its table.

    The first migration inserts the row, so that a unit can always lock the row.
    """

    __tablename__ = "topology"
    __table_args__ = (CheckConstraint("id = 1", name="one"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[int]
    document: Mapped[str | None] = mapped_column(Text)


class SiteRow(Base):
    """A site and its pool. ``present`` is false after the site left the topology."""

    __tablename__ = "sites"

    name: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    present: Mapped[bool]
    pool: Mapped[VlanSet] = mapped_column(VlanSetText)


_UNCHECKED, _UNCHECKED_SQLITE = text("unchecked"), text("unchecked = 1")
_BEHIND = "confirmed_revision < wanted_revision OR reachable IS"
_UNCONFIRMED, _UNCONFIRMED_SQLITE = text(f"{_BEHIND} false"), text(f"{_BEHIND} 0")
_SEEN = text("present AND kind NOT IN ('edge', 'switch') AND reachable")
_SEEN_SQLITE = text("present = 1 AND kind NOT IN ('edge', 'switch') AND reachable = 1")
_IS_DEVICE = text("kind IN ('edge', 'switch')")
"""The conditions of partial indexes. A database uses such an index only for queries with the same condition, and
SQLAlchemy writes conditions on Booleans differently for SQLite.
"""


class ElementRow(Base):
    """An element: its revisions, its observed state, its error report and its lease.

    The row of an element that left the topology is not deleted, so that its revisions never start again from 0.

    ``fence`` is the fencing token, incremented with every lease. ``checked_at`` is the last time when a reading showed
    the confirmed state. ``carried`` is the observed state of a device at its last save, read at ``carried_at``.
    ``unsaved_since`` is the time since which a save is pending.

    ``trouble`` is the error report. ``troubles`` are the parts of this report that each concern a single cluster
    (``error_report.py``). ``highest_confirmed`` is the highest revision ever confirmed, and is never reset.
    ``reachable`` becomes false after a failed reading and when the agent is stale. ``reachable`` becomes true again
    when the element is read, confirms a revision or reports an error. ``leaving`` is the description of a switch that
    left the topology and has ports to restore. ``cpus`` and ``memory_mb`` are the capacity that the agent of a host
    reported, and ``local_images`` the names of the images in the host's folder, separated by blanks. ``first_revision``
    is the first revision after the database was restored from a backup. ``unchecked`` is true until the element has
    been read after a restore (``unchecked_elements.py``).
    """

    __tablename__ = "elements"
    __table_args__ = (
        CheckConstraint("confirmed_revision >= 0 AND confirmed_revision <= wanted_revision", name="revisions"),
        CheckConstraint(is_one_of("kind", ElementKind), name="kind"),
        Index("ix_elements_unchecked", "name", sqlite_where=_UNCHECKED_SQLITE, postgresql_where=_UNCHECKED),
        Index("ix_elements_unconfirmed", "kind", sqlite_where=_UNCONFIRMED_SQLITE, postgresql_where=_UNCONFIRMED),
        Index("ix_elements_seen", "last_seen", sqlite_where=_SEEN_SQLITE, postgresql_where=_SEEN),
        Index("ix_elements_checked", "checked_at", sqlite_where=_IS_DEVICE, postgresql_where=_IS_DEVICE),
    )

    name: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    site: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("sites.name"), index=True)
    kind: Mapped[str] = mapped_column(NAME_TYPE)
    present: Mapped[bool]
    wanted_revision: Mapped[int]
    confirmed_revision: Mapped[int]
    highest_confirmed: Mapped[int] = mapped_column(server_default="0")
    trouble: Mapped[str | None] = mapped_column(Text)
    troubles: Mapped[str | None] = mapped_column(Text)
    reachable: Mapped[bool]
    last_seen: Mapped[datetime | None] = mapped_column(UtcDateTime)
    checked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    carried: Mapped[str | None] = mapped_column(Text)
    carried_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    cpus: Mapped[int | None]
    memory_mb: Mapped[int | None] = mapped_column(BigInteger)
    local_images: Mapped[str | None] = mapped_column(Text, deferred=True)
    unsaved_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    failed_saves: Mapped[int] = mapped_column(default=0, server_default="0")
    save_after: Mapped[datetime | None] = mapped_column(UtcDateTime)
    leaving: Mapped[str | None] = mapped_column(Text)
    lease_holder: Mapped[str | None] = mapped_column(NAME_TYPE)
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    fence: Mapped[int]
    first_revision: Mapped[int] = mapped_column(server_default="0")
    unchecked: Mapped[bool] = mapped_column(default=False, server_default=false())


class PortRow(Base):
    """A switch port that SBF configures, or that an administrator adopted.

    ``use_before`` is the port's use before SBF configured the port. ``use_before`` is None for a port that SBF
    configured before this column existed. ``taken`` becomes true just before SBF changes the port for the first time.
    ``shut`` is true while SBF may have shut the port down. ``leaving`` is true while SBF restores the former use.
    """

    __tablename__ = "ports"

    element: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True)
    port: Mapped[str] = mapped_column(Text, primary_key=True)
    use_before: Mapped[str | None] = mapped_column(Text)
    taken: Mapped[bool]
    shut: Mapped[bool]
    leaving: Mapped[bool]
    adopted_by: Mapped[str | None] = mapped_column(Text)
    adopted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


IS_RECONCILED = or_(ElementRow.present, ElementRow.leaving.is_not(None))
"""The condition that an element is in the topology, or is a switch that left the topology and has ports to restore."""


_CREATION = ("created_at", "key", "turn", "attempt")
_LIVE = text("state || '' IN ('active', 'configuring', 'degraded', 'draining', 'failing', 'requested')")
"""Clusters that have not ended, as ``LIVE`` in ``cluster_lists.py`` writes the condition."""


class ClusterRow(Base):
    """A cluster. Its row stays after the cluster's end. ``version`` is incremented with every change of the view.

    ``turn`` is incremented when a key passes to another owner. The attempt numbers then start again for a new owner.
    ``transport`` connects the sites. A cluster at a single site has no transport. A transport does not change once it
    is set. ``name`` is deleted when the cluster ends.

    For a member, ``network`` is the ID of the cluster whose network the member joined. That cluster has the claims.
    ``created_by`` is the creator's name in the audit log, and None for old clusters. ``shares`` are the owners,
    separated by commas, with whom the network is shared now, or None if these owners never changed. ``spec`` is the
    requested spec. ``resolved`` is the spec with the choices of SBF, such as addresses, or None if SBF chose nothing.
    ``login`` (JSON) is the user and the keys of the guests; guests of a cluster without ``login`` have no seed.
    ``images`` (JSON) are the sources of the cluster's images of the catalogue, by name, or None without such images.
    ``request_id`` and ``traceparent`` are the request ID and the trace context of the call that last changed the
    cluster, or None if SBF itself changed the cluster.
    """

    __tablename__ = "clusters"
    __table_args__ = (
        UniqueConstraint("key", "turn", "attempt"),
        CheckConstraint(is_one_of("state", ClusterState), name="state"),
        Index("ix_clusters_state_quarantined", "state", "quarantined"),
        Index("ix_clusters_state_lease_ends", "state", "lease_ends"),
        Index("ix_clusters_created", *_CREATION),
        Index("ix_clusters_owner_state", "owner", "state"),
        Index("ix_clusters_owner_created", "owner", *_CREATION),
        Index("ix_clusters_live", *_CREATION, sqlite_where=_LIVE, postgresql_where=_LIVE),
        Index("ix_clusters_owner_live", "owner", *_CREATION, sqlite_where=_LIVE, postgresql_where=_LIVE),
        Index("uq_clusters_name", "name", unique=True),
    )

    id: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    key: Mapped[str] = mapped_column(KEY_TYPE)
    turn: Mapped[int]
    attempt: Mapped[int]
    owner: Mapped[str] = mapped_column(USER_TYPE)
    spec: Mapped[str] = mapped_column(Text)
    version: Mapped[int]
    state: Mapped[str] = mapped_column(NAME_TYPE)
    reason: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    deadline: Mapped[datetime] = mapped_column(UtcDateTime)
    lease_ends: Mapped[datetime] = mapped_column(UtcDateTime)
    leaving_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    quarantined: Mapped[bool]
    transport: Mapped[str | None] = mapped_column(NAME_TYPE)
    name: Mapped[str | None] = mapped_column(NAME_TYPE)
    network: Mapped[str | None] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), index=True)
    created_by: Mapped[str | None] = mapped_column(Text)
    shares: Mapped[str | None] = mapped_column(Text)
    resolved: Mapped[str | None] = mapped_column(Text)
    login: Mapped[str | None] = mapped_column(Text)
    images: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(Text)
    traceparent: Mapped[str | None] = mapped_column(Text)


_STAYS = text("removed_revision IS NULL")
_BLOCKED, _BLOCKED_SQLITE = text("blocked"), text("blocked = 1")
_UNSETTLED, _UNSETTLED_SQLITE = text("NOT settled"), text("settled = 0")


class PlacementRow(Base):
    """A cluster on an element, from the revision that added the cluster to the revision that removed the cluster.

    ``blocked`` is true if the element confirmed its other clusters, but not this cluster: the VLAN ID of this cluster
    is in other use on the element, a guest waits for its image, or the element could not remove the cluster.
    """

    __tablename__ = "placements"
    __table_args__ = (
        CheckConstraint("removed_revision > added_revision", name="order"),
        Index("ix_placements_staying", "element", "cluster_id", sqlite_where=_STAYS, postgresql_where=_STAYS),
        Index(
            "ix_placements_blocked", "element", "cluster_id", sqlite_where=_BLOCKED_SQLITE, postgresql_where=_BLOCKED
        ),
        Index(
            "ix_placements_unsettled",
            "element",
            "added_revision",
            sqlite_where=_UNSETTLED_SQLITE,
            postgresql_where=_UNSETTLED,
        ),
        Index("ix_placements_element_removed_revision", "element", "removed_revision"),
    )

    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), primary_key=True)
    element: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True)
    added_revision: Mapped[int]
    removed_revision: Mapped[int | None]
    blocked: Mapped[bool] = mapped_column(default=False, server_default=false())
    settled: Mapped[bool] = mapped_column(default=False, server_default=false())


class ClaimRow(Base):
    """The claim of one VLAN ID at one site by one cluster. The primary key enforces DESIGN.md §7.1."""

    __tablename__ = "claims"
    __table_args__ = (
        UniqueConstraint("cluster_id", "site"),
        CheckConstraint("vlan BETWEEN 2 AND 4094", name="vlan"),
    )

    site: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("sites.name"), primary_key=True)
    vlan: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"))


class FreeVlanRow(Base):
    """A free VLAN ID of a site's pool, and the time of its last release."""

    __tablename__ = "free_numbers"
    __table_args__ = (Index("ix_free_numbers_site_since_vlan", "site", "since", "vlan"),)

    site: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("sites.name"), primary_key=True)
    vlan: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    since: Mapped[datetime] = mapped_column(UtcDateTime)


class CreatedVlanRow(Base):
    """A VLAN that SBF created or will create on an element. SBF deletes no other VLAN."""

    __tablename__ = "created_vlans"

    element: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True)
    vlan: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ForeignVlanRow(Base):
    """A VLAN ID in other use on an element, and the time when this use was first read. No new cluster gets the VLAN ID.

    ``name`` is the VLAN's name if SBF did not create the VLAN. ``ports`` (JSON) are the unmanaged ports with the VLAN.
    """

    __tablename__ = "foreign_vlans"
    __table_args__ = (Index("ix_foreign_vlans_site_vlan", "site", "vlan"),)

    element: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True)
    vlan: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    site: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("sites.name"))
    name: Mapped[str | None] = mapped_column(Text)
    ports: Mapped[str] = mapped_column(Text)
    since: Mapped[datetime] = mapped_column(UtcDateTime)


class ServiceClaimRow(Base):
    """The claim of one service ID of a transport by one cluster. The primary key enforces DESIGN.md §7.1."""

    __tablename__ = "service_claims"
    __table_args__ = (
        UniqueConstraint("cluster_id"),
        CheckConstraint("number BETWEEN 1 AND 4294967295", name="number"),
    )

    transport: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"))


class FreedServiceRow(Base):
    """A service ID that no network claims now, and the time of its last release."""

    __tablename__ = "freed_services"
    __table_args__ = (Index("ix_freed_services_transport_freed_at_number", "transport", "freed_at", "number"),)

    transport: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    freed_at: Mapped[datetime] = mapped_column(UtcDateTime)


class UnusedServiceRow(Base):
    """A transport's service IDs that were never claimed: no ID from ``first`` to below ``unused`` is one of them."""

    __tablename__ = "unused_services"

    transport: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    first: Mapped[int] = mapped_column(BigInteger)
    unused: Mapped[int] = mapped_column(BigInteger)


class AuditRow(Base):
    """A row of the audit log: who changed what, when, why and on which element. Rows never contain secrets.

    ``request_id`` is the request ID of the call that made the change, or None for changes of SBF itself.
    """

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_at_id", "at", "id"),
        Index("ix_audit_who_at_id", "who", "at", "id"),
        Index("ix_audit_element_at_id", "element", "at", "id"),
    )

    id: Mapped[int] = mapped_column(ROW_NUMBER, primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    who: Mapped[str] = mapped_column(Text)
    what: Mapped[str] = mapped_column(NAME_TYPE)
    why: Mapped[str | None] = mapped_column(Text)
    element: Mapped[str | None] = mapped_column(NAME_TYPE, index=True)
    cluster_id: Mapped[str | None] = mapped_column(NAME_TYPE, index=True)
    difference: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(Text)


class JobQuestionRow(Base):
    """The request of a host (``starter``) for a job's cluster, and the batch server's answer (JSON)."""

    __tablename__ = "job_questions"

    key: Mapped[str] = mapped_column(KEY_TYPE, primary_key=True)
    starter: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    question: Mapped[str] = mapped_column(Text)
    asked_at: Mapped[datetime] = mapped_column(UtcDateTime)
    answer: Mapped[str | None] = mapped_column(Text)


class ServiceSecretRow(Base):
    """A secret of the service, in hexadecimal digits. A migration creates the secret."""

    __tablename__ = "service_secrets"

    name: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class ReplicaRow(Base):
    """The time of a replica's last write. The readiness probe updates the row."""

    __tablename__ = "replicas"

    name: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    wrote_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ServiceTimeRow(Base):
    """The time of the last event of a kind, such as ``backup``."""

    __tablename__ = "service_times"

    name: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
