"""The tables of VPN access: gateways of clusters, profiles, addresses, invitations, and connections."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, Text, false, text
from sqlalchemy.orm import Mapped, mapped_column

from sbf_service.store.tables.columns import NAME_TYPE, USER_TYPE, UtcDateTime
from sbf_service.store.tables.tables import Base, is_one_of
from virtcloud.model.vpn import VpnProtocol

_IS_VALID = text("revoked_at IS NULL")
_IS_VALID_ROUTER = text("revoked_at IS NULL AND router")


class ClusterGatewayRow(Base):
    """A gateway of a cluster, with its index in the order of preference (``position``)."""

    __tablename__ = "cluster_gateways"

    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), primary_key=True)
    gateway: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True)
    position: Mapped[int]


class VpnProfileRow(Base):
    """A VPN profile of a device. ``network_id`` is the ID of the cluster that created the network.

    ``fingerprint`` is the fingerprint of the profile's certificate; SBF does not store the certificate itself. The
    partial indexes allow at most one valid profile for each device, and at most one valid profile of a router for each
    network.
    """

    __tablename__ = "vpn_profiles"
    __table_args__ = (
        Index(
            "uq_vpn_profiles_valid_device",
            "cluster_id",
            "user_name",
            "device",
            unique=True,
            sqlite_where=_IS_VALID,
            postgresql_where=_IS_VALID,
        ),
        Index(
            "uq_vpn_profiles_valid_router",
            "network_id",
            unique=True,
            sqlite_where=_IS_VALID_ROUTER,
            postgresql_where=_IS_VALID_ROUTER,
        ),
        Index("ix_vpn_profiles_valid_network", "network_id", sqlite_where=_IS_VALID, postgresql_where=_IS_VALID),
    )

    id: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), index=True)
    network_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), index=True)
    user: Mapped[str] = mapped_column("user_name", USER_TYPE)
    device: Mapped[str] = mapped_column(NAME_TYPE)
    fingerprint: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    created_by: Mapped[str] = mapped_column(Text)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    router: Mapped[bool] = mapped_column(default=False, server_default=false())


class VpnProfileGatewayRow(Base):
    """A gateway of a profile.

    ``revision`` is the gateway's first wanted revision that contains the profile's latest change.
    """

    __tablename__ = "vpn_profile_gateways"

    profile_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("vpn_profiles.id"), primary_key=True)
    gateway: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True)
    position: Mapped[int]
    revision: Mapped[int]


class VpnAddressRow(Base):
    """An address of a valid profile, unique in its network."""

    __tablename__ = "vpn_addresses"

    network_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), primary_key=True)
    address: Mapped[str] = mapped_column(String(39), primary_key=True)
    prefix_length: Mapped[int]
    profile_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("vpn_profiles.id"), index=True)


class VpnInvitationRow(Base):
    """A user who was invited to a cluster's network, by the cluster's owner or by an operator."""

    __tablename__ = "vpn_invitations"

    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), primary_key=True)
    user: Mapped[str] = mapped_column("user_name", USER_TYPE, primary_key=True)
    invited_at: Mapped[datetime] = mapped_column(UtcDateTime)
    invited_by: Mapped[str] = mapped_column(Text)


class VpnConnectionRow(Base):
    """A connection in the latest report of a gateway.

    ``first_reported_at`` is NULL if an older version of SBF recorded the connection.
    """

    __tablename__ = "vpn_connections"
    __table_args__ = (CheckConstraint(is_one_of("protocol", VpnProtocol), name="protocol"),)

    gateway: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True)
    profile_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("vpn_profiles.id"), primary_key=True, index=True)
    protocol: Mapped[str] = mapped_column(NAME_TYPE)
    remote: Mapped[str] = mapped_column(Text)
    connected_at: Mapped[datetime] = mapped_column(UtcDateTime)
    received_bytes: Mapped[int] = mapped_column(BigInteger)
    sent_bytes: Mapped[int] = mapped_column(BigInteger)
    reported_at: Mapped[datetime] = mapped_column(UtcDateTime)
    first_reported_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
