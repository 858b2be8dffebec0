"""The base class of all database tables, and the tables of the topology: sites, elements and ports.

The modules ``*_tables.py`` contain the tables of other subjects. The constraints enforce invariants of the domain
(docs/explanation/invariants.md).
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
    false,
    or_,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime, VlanSetText
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
    """The version of the topology, and the part that all sites share. The table has a single row.

    The row exists from the first migration on, so that a unit can always lock it. ``common_version`` is the version
    that last changed the common part.
    """

    __tablename__ = "topology"
    __table_args__ = (CheckConstraint("id = 1", name="one"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[int]
    common: Mapped[str | None] = mapped_column(Text)
    common_version: Mapped[int] = mapped_column(server_default="0")


class SiteDocumentRow(Base):
    """A site's part of the topology, and the version that last changed this part."""

    __tablename__ = "site_documents"

    site: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("sites.name"), primary_key=True)
    version: Mapped[int] = mapped_column(index=True)
    document: Mapped[str] = mapped_column(Text)


class SiteRow(Base):
    """A site and its pool. ``present`` is false after the site's removal from the topology."""

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
"""The conditions of partial indexes, which a database uses only for queries with the same condition.

Some conditions have two texts, because SQLAlchemy writes ``present = 1`` for SQLite.
"""


class ElementRow(Base):
    """An element: its revisions, its observed state, its error report and its lease.

    The row of a removed element stays, so that its revisions never start again from 0.

    - ``highest_confirmed``: the highest revision that the element ever confirmed. SBF never resets this value.
    - ``fence``: the fencing token, incremented with every lease.
    - ``checked_at``: the last time that a reading showed the confirmed state.
    - ``carried``: the observed state at the last verified save of a device's startup configuration. ``carried_at``: the
      time at which SBF recorded this state.
    - ``unsaved_since``: the time from which a save is pending, or None.
    - ``trouble``: the error report. ``troubles``: errors of single clusters (``domain/error_report.py``).
    - ``reachable``: false after a failed reading, or when the agent is stale; true when the element is read, confirms a
      revision or reports an error.
    - ``leaving``: the description of a removed switch with ports to restore.
    - ``cpus``, ``memory_mb``: the capacity that a host's agent reported.
    - ``local_images``: the names of the images in the host's folder, separated by blanks.
    - ``known_vlans``: the VLAN IDs that SBF has managed on a device, and has found free of other use at least once.
      After a clean declaration: all VLAN IDs. SBF owns a VLAN with SBF's name if ``known_vlans`` contains the VLAN ID
      (``domain/ownership.py``).
    - ``first_revision``: the first revision after the database was restored from a backup.
    - ``unchecked``: true from a restore of the database until the element is checked (``unchecked_elements.py``).
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
    known_vlans: Mapped[VlanSet] = mapped_column(VlanSetText, server_default="")
    first_revision: Mapped[int] = mapped_column(server_default="0")
    unchecked: Mapped[bool] = mapped_column(default=False, server_default=false())


class PortRow(Base):
    """A switch port that SBF configures, or that an administrator adopted.

    - ``use_before``: the original use, before SBF first configured the port. None for a port that an earlier version of
      SBF configured before this column existed.
    - ``taken``: becomes true just before SBF first changes the port.
    - ``shut``: true while SBF may have shut the port down.
    - ``leaving``: true from the port's release until SBF has restored the original use.
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
"""The condition that an element is in the topology, or is a removed switch with ports to restore."""
