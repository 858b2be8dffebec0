"""The tables. What must always hold stands here as constraints as well as in the code (STYLE rule 8)."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Float,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    false,
    or_,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sbf_service.store.columns import KEY_TYPE, NAME_TYPE, USER_TYPE, UtcDateTime, VlanSetText
from virtcloud.model.access import Role
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


def _is_one_of(column: str, values: type[StrEnum]) -> str:
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


class Base(DeclarativeBase):
    """All tables of the service."""

    metadata = MetaData(naming_convention=CONVENTION)


class TopologyRow(Base):
    """The one topology; the row is there from the first migration on, so that it can be locked."""

    __tablename__ = "topology"
    __table_args__ = (CheckConstraint("id = 1", name="one"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[int]
    document: Mapped[str | None] = mapped_column(Text)


class SiteRow(Base):
    """A site and its pool; ``present`` is false once the topology no longer has it."""

    __tablename__ = "sites"

    name: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    present: Mapped[bool]
    pool: Mapped[VlanSet] = mapped_column(VlanSetText)


class ElementRow(Base):
    """An element: its two revisions, what was last seen of it, and who is converging it.

    ``fence`` grows with every lease taken; only its newest value may confirm. ``checked_at`` is the last time it was
    read and found as confirmed. ``carried`` is what a device was read to carry, at ``carried_at``, when it was last
    saved; ``unsaved_since`` is set while its running configuration may be unsaved (``saves.py``). ``troubles`` is what
    of its trouble is about single clusters (``troubles.py``). ``highest_confirmed`` is the newest revision that was
    ever confirmed: unlike ``confirmed_revision`` it is never reset. ``reachable`` is false from a failed reading, or an
    agent's silence, until it was read or confirmed again. ``leaving`` is the description of a switch that left the
    topology while ports of it are to be put back. Rows stay when the topology loses the element, so that
    revisions never start again.
    """

    __tablename__ = "elements"
    __table_args__ = (
        CheckConstraint("confirmed_revision >= 0 AND confirmed_revision <= wanted_revision", name="revisions"),
        CheckConstraint(_is_one_of("kind", ElementKind), name="kind"),
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
    unsaved_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    failed_saves: Mapped[int] = mapped_column(default=0, server_default="0")
    save_after: Mapped[datetime | None] = mapped_column(UtcDateTime)
    leaving: Mapped[str | None] = mapped_column(Text)
    lease_holder: Mapped[str | None] = mapped_column(NAME_TYPE)
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    fence: Mapped[int]


class PortRow(Base):
    """A port of a switch that SBF configures, or that an administrator adopted.

    ``use_before`` is the port's use that SBF found, or the use that was adopted; None for a port that SBF configured
    before uses were recorded: nothing can be put back there. ``taken`` is true once SBF's first change was announced,
    ``shut`` while SBF itself may have shut the port down, ``leaving`` while the use before is being put back.
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
"""Elements of the topology, and those that left it while ports of theirs are still to be put back."""


class ClusterRow(Base):
    """A cluster, also after its end. ``version`` grows with every change of its view.

    ``turn`` grows when a key goes from one owner to another: attempts count anew then.
    ``transport`` joins its sites, and stays the one that was chosen when it was made; one of a single site has none.
    ``name`` is kept until it has ended: another one may have it then. ``network`` is the id of the cluster whose
    network a member has joined; numbers are claimed by that one. ``created_by`` is who asked for it, as the audit log
    has it; nothing for those from before that was kept. ``shares`` are the owners whom the network is shared with now,
    separated by commas, where that was changed after its creation: they replace those of ``spec``.
    """

    __tablename__ = "clusters"
    __table_args__ = (
        UniqueConstraint("key", "turn", "attempt"),
        CheckConstraint(_is_one_of("state", ClusterState), name="state"),
        Index("ix_clusters_state_quarantined", "state", "quarantined"),
        Index("ix_clusters_owner_state", "owner", "state"),
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


_STAYS = text("removed_revision IS NULL")
_BLOCKED = text("blocked")


class PlacementRow(Base):
    """A cluster on an element, from the revision that added it to the revision that removed it.

    ``blocked``: the element confirmed other clusters, and not this one: its VLAN is in other use there.
    """

    __tablename__ = "placements"
    __table_args__ = (
        CheckConstraint("removed_revision > added_revision", name="order"),
        Index("ix_placements_staying", "element", "cluster_id", sqlite_where=_STAYS, postgresql_where=_STAYS),
        Index("ix_placements_blocked", "cluster_id", sqlite_where=_BLOCKED, postgresql_where=_BLOCKED),
        Index("ix_placements_element_removed_revision", "element", "removed_revision"),
    )

    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), primary_key=True)
    element: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True)
    added_revision: Mapped[int]
    removed_revision: Mapped[int | None]
    blocked: Mapped[bool] = mapped_column(default=False, server_default=false())


class ClaimRow(Base):
    """One VLAN number at one site, held by one cluster: the primary key is DESIGN.md §7.1."""

    __tablename__ = "claims"
    __table_args__ = (
        UniqueConstraint("cluster_id", "site"),
        CheckConstraint("vlan BETWEEN 2 AND 4094", name="vlan"),
    )

    site: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("sites.name"), primary_key=True)
    vlan: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"))


class FreeVlanRow(Base):
    """A number that a site gives and nobody has, and since when, so that the longest unused is taken first."""

    __tablename__ = "free_numbers"
    __table_args__ = (Index("ix_free_numbers_site_since_vlan", "site", "since", "vlan"),)

    site: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("sites.name"), primary_key=True)
    vlan: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    since: Mapped[datetime] = mapped_column(UtcDateTime)


class CreatedVlanRow(Base):
    """A VLAN that SBF created on an element, or is about to create: no other VLAN is ever deleted there."""

    __tablename__ = "created_vlans"

    element: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True)
    vlan: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ForeignVlanRow(Base):
    """A VLAN ID in other use on an element, since it was first read so: no cluster at its site may have it.

    ``name`` is the VLAN's name where SBF did not create it, ``ports`` are the unmanaged ports that carry it (JSON).
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
    """A service number of a transport, held by one cluster: the primary key is DESIGN.md §7.1 for these numbers."""

    __tablename__ = "service_claims"
    __table_args__ = (
        UniqueConstraint("cluster_id"),
        CheckConstraint("number BETWEEN 1 AND 4294967295", name="number"),
    )

    transport: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"))


class FreedServiceRow(Base):
    """When a service number was last given back, so that the longest unused is taken first."""

    __tablename__ = "freed_services"

    transport: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    freed_at: Mapped[datetime] = mapped_column(UtcDateTime)


class AuditRow(Base):
    """Who changed what, when, why, on which element, with the difference. Never a secret."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    who: Mapped[str] = mapped_column(Text)
    what: Mapped[str] = mapped_column(NAME_TYPE)
    why: Mapped[str | None] = mapped_column(Text)
    element: Mapped[str | None] = mapped_column(NAME_TYPE, index=True)
    cluster_id: Mapped[str | None] = mapped_column(NAME_TYPE, index=True)
    difference: Mapped[str | None] = mapped_column(Text)


class JobQuestionRow(Base):
    """What a host (``starter``) wants to do for a job, and what the batch system's server said of that job (JSON)."""

    __tablename__ = "job_questions"

    key: Mapped[str] = mapped_column(KEY_TYPE, primary_key=True)
    starter: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    question: Mapped[str] = mapped_column(Text)
    asked_at: Mapped[datetime] = mapped_column(UtcDateTime)
    answer: Mapped[str | None] = mapped_column(Text)


class QuotaRow(Base):
    """How much one user may have, where that is not as the settings say."""

    __tablename__ = "quotas"

    owner: Mapped[str] = mapped_column(USER_TYPE, primary_key=True)
    clusters: Mapped[int | None]
    sites: Mapped[int | None]
    lease_s: Mapped[float | None] = mapped_column(Float)
    networks: Mapped[int | None] = mapped_column(BigInteger)
    guests: Mapped[int | None] = mapped_column(BigInteger)
    cpus: Mapped[int | None] = mapped_column(BigInteger)
    memory_mb: Mapped[int | None] = mapped_column(BigInteger)


class ReplicaRow(Base):
    """When a replica last wrote, which it does to find out whether the database can be written (``readiness.py``)."""

    __tablename__ = "replicas"

    name: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    wrote_at: Mapped[datetime] = mapped_column(UtcDateTime)


class TokenRow(Base):
    """Who holds a token, of which only the SHA-256 is kept. ``sites``: a site administrator's, with commas."""

    __tablename__ = "tokens"
    __table_args__ = (CheckConstraint(_is_one_of("role", Role), name="role"), UniqueConstraint("digest"))

    id: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(USER_TYPE, index=True)
    role: Mapped[str] = mapped_column(NAME_TYPE)
    sites: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    created_by: Mapped[str] = mapped_column(Text)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
