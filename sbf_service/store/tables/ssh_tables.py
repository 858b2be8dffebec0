"""The tables of SSH access through gateways: certificates of users, and open connections."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from sbf_service.store.tables.columns import NAME_TYPE, USER_TYPE, UtcDateTime
from sbf_service.store.tables.tables import Base


class SshCertificateRow(Base):
    """The record of a user's certificate for a cluster. SBF does not store the certificate itself.

    ``ssh_revocations.py`` deletes the row some time after the expiry. A row with a NULL ``fingerprint`` replaces a
    deleted row, if SBF needs it for an open connection.
    """

    __tablename__ = "ssh_certificates"

    serial: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), index=True)
    user: Mapped[str] = mapped_column("user_name", USER_TYPE)
    fingerprint: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class SshConnectionRow(Base):
    """A connection in the latest report of a gateway, with its index in the report (``position``).

    There is no foreign key to certificates, whose rows may have been deleted.
    """

    __tablename__ = "ssh_connections"

    gateway: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), index=True)
    user: Mapped[str] = mapped_column("user_name", USER_TYPE)
    serial: Mapped[int] = mapped_column(BigInteger, index=True)
    guest: Mapped[str] = mapped_column(NAME_TYPE)
    remote: Mapped[str] = mapped_column(Text)
    connected_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    reported_at: Mapped[datetime] = mapped_column(UtcDateTime)
