"""The database tables of clusters and of placements."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from sbf_service.store.tables.columns import KEY_TYPE, NAME_TYPE, USER_TYPE, UtcDateTime
from sbf_service.store.tables.tables import Base, is_one_of
from virtcloud.model.cluster import ClusterState

_CREATION = ("created_at", "key", "turn", "attempt")
_NOT_ENDED = text("state || '' IN ('active', 'configuring', 'degraded', 'draining', 'failing', 'requested')")
"""The condition that a cluster has not ended.

The text must be equal to the SQL of ``NOT_ENDED_BY_CREATION`` in ``cluster_lists.py``: otherwise, SQLite does not use
the indexes with this condition.
"""


class ClusterRow(Base):
    """A cluster. The row stays after the cluster's end.

    - ``version``: incremented with every change of the cluster's view.
    - ``turn``: 0 for the key's first cluster, incremented with each change of the key's owner (``cluster_keys.py``).
    - ``transport``: the transport that connects the sites, or None for a single site. A value other than
      None never changes.
    - ``name``: an optional name for use instead of the key, deleted when the cluster ends.
    - ``network``: if this cluster joined a network, the ID of the cluster that created the network. None: this cluster
      created its network.
    - ``created_by``: the creator's name in the audit log. None: an old version of SBF created the cluster.
    - ``shares``: the owners who may join the network, separated by commas. None: the owners in the spec's
      ``shares_with``.
    - ``spec``: the spec as requested. ``resolved``: the spec with SBF's choices, such as addresses, or None.
    - ``login``: the guests' login name and the public keys that permit a login, as JSON. None: the guests get no seed
      (the configuration that a guest reads when it boots).
    - ``images``: the sources of the guests' catalogue images, by name, as JSON. None: no such images.
    - ``request_id``, ``traceparent``: the request ID and trace context of the call that created the cluster, or of the
      call that ended the cluster. None: neither call is known.
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
        Index("ix_clusters_live", *_CREATION, sqlite_where=_NOT_ENDED, postgresql_where=_NOT_ENDED),
        Index("ix_clusters_owner_live", "owner", *_CREATION, sqlite_where=_NOT_ENDED, postgresql_where=_NOT_ENDED),
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


class ClusterRecord(NamedTuple):
    """The columns that are read of each live cluster. Records are ordered by their first field, the creation time."""

    created_at: object
    key: str
    id: str
    spec: str
    resolved: str | None
    shares: str | None
    network: str | None
    transport: str | None
    created_by: str | None
    images: str | None

    @property
    def quarantined(self) -> bool:
        """Always False, because a live cluster has not ended."""
        return False


_STAYS = text("removed_revision IS NULL")
_BLOCKED, _BLOCKED_SQLITE = text("blocked"), text("blocked = 1")
_UNSETTLED, _UNSETTLED_SQLITE = text("NOT settled"), text("settled = 0")


class PlacementRow(Base):
    """A cluster on an element, with the revision that added the cluster and, later, the revision that removed it.

    ``blocked`` is true if the element confirmed its other clusters, but not this cluster. Causes: the VLAN ID is in
    other use, a guest waits for its image or could not be started, or the element could not remove the cluster.
    ``settled``: the cluster has ended without quarantined claims, and can no longer change.
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
