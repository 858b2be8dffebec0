"""The tables of VLAN IDs and service IDs: claimed, free, and in use on elements."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime
from sbf_service.store.tables.tables import Base


class ClaimRow(Base):
    """The claim of one VLAN ID at one site by one cluster.

    The primary key enforces invariant 1 (docs/explanation/invariants.md) at each site. ``transport`` is the transport
    of the cluster's network, or None if the network has none (``transport_vlans.py``).
    """

    __tablename__ = "claims"
    __table_args__ = (
        UniqueConstraint("cluster_id", "site"),
        CheckConstraint("vlan BETWEEN 2 AND 4094", name="vlan"),
        Index("ix_claims_transport_vlan", "transport", "vlan"),
    )

    site: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("sites.name"), primary_key=True)
    vlan: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"))
    transport: Mapped[str | None] = mapped_column(NAME_TYPE)


class FreeVlanRow(Base):
    """A free VLAN ID of a site's pool, and the time of its last release."""

    __tablename__ = "free_numbers"
    __table_args__ = (Index("ix_free_numbers_site_since_vlan", "site", "since", "vlan"),)

    site: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("sites.name"), primary_key=True)
    vlan: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    since: Mapped[datetime] = mapped_column(UtcDateTime)


class CreatedVlanRow(Base):
    """A VLAN that SBF created, or is about to create, on an element.

    SBF deletes only VLANs with such a row, and VLANs with SBF's name and a known VLAN ID (``domain/ownership.py``).
    """

    __tablename__ = "created_vlans"

    element: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True)
    vlan: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ForeignVlanRow(Base):
    """A VLAN ID *in other use* on a device: SBF does not own the VLAN, or an unmanaged port carries the VLAN.

    No new cluster gets the VLAN ID. ``since`` is the time when this use was first read. ``name`` is the VLAN's name on
    the device. It is NULL without a name, or for a VLAN that SBF owns on a switch. ``ports`` (JSON) lists the unmanaged
    ports that carry the VLAN.
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
    """The claim of one service ID of a transport by one cluster.

    The primary key enforces invariant 1 (docs/explanation/invariants.md).
    """

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
    """The start of the search for a transport's lowest service ID that was never used.

    The search starts at ``unused``: all IDs from ``first``, the lowest ID when the row was written, to ``unused`` - 1
    were used.
    """

    __tablename__ = "unused_services"

    transport: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    first: Mapped[int] = mapped_column(BigInteger)
    unused: Mapped[int] = mapped_column(BigInteger)
