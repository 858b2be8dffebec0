"""The tables of guests: requested stops and resets, and sessions that wait for an agent."""

from datetime import datetime

from sqlalchemy import ForeignKey, Text
from sqlalchemy.orm import Mapped, mapped_column

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime
from sbf_service.store.tables.tables import Base


class GuestPowerRow(Base):
    """The wanted power state of a guest. A guest without a row is on.

    ``element`` is the guest's host. ``resets`` contains `WantedPower.starts`, not `WantedPower.resets`
    (``domain/guest_power.py``). ``revision`` is the host's revision that contains the latest change of this row.
    ``unstopped`` is true if the host's latest confirmation states that the host could not stop the guest. The placement
    of the cluster on the host is then blocked.
    """

    __tablename__ = "guest_powers"

    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), primary_key=True)
    guest: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    element: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), index=True)
    stopped: Mapped[bool]
    resets: Mapped[int]
    revision: Mapped[int]
    unstopped: Mapped[bool | None]


class GuestSessionRow(Base):
    """A session with a guest, from the user's request until the agent of the guest's host connects.

    A row can also describe a session with a host, for a check of a cluster's paths. ``guest`` is then the host's name.

    ``request`` is the user's request (JSON). ``address`` is the address of the replica that waits for the agent. Rows
    are ignored after ``expires_at``, and deleted when the next session begins.
    """

    __tablename__ = "guest_sessions"
    __table_args__ = ({"sqlite_autoincrement": True},)

    number: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(NAME_TYPE)
    element: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), index=True)
    network: Mapped[str] = mapped_column(NAME_TYPE)
    guest: Mapped[str] = mapped_column(NAME_TYPE)
    request: Mapped[str] = mapped_column(Text)
    address: Mapped[str | None] = mapped_column(Text)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
