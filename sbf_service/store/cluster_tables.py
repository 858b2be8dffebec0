"""The database tables of clusters, and of the elements that carry them."""

from datetime import datetime

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

from sbf_service.store.columns import KEY_TYPE, NAME_TYPE, USER_TYPE, UtcDateTime
from sbf_service.store.tables import Base, is_one_of
from virtcloud.model.cluster import ClusterState

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
