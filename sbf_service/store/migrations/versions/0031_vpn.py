"""Add the tables of VPN access, and the secret from which SBF derives the certificate authority for VPN access."""

import secrets
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, USER_TYPE, UtcDateTime

revision: str = "0031"
down_revision: str | None = "0030"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    secret = sa.table("service_secrets", sa.column("name", sa.Text), sa.column("value", sa.Text))
    op.bulk_insert(secret, [{"name": "vpn", "value": secrets.token_hex(32)}])
    _create_gateways()
    _create_profiles()
    op.create_table(
        "vpn_invitations",
        sa.Column("cluster_id", NAME_TYPE, nullable=False),
        sa.Column("user_name", USER_TYPE, nullable=False),
        sa.Column("invited_at", UtcDateTime(), nullable=False),
        sa.Column("invited_by", sa.Text(), nullable=False),
        _refer("vpn_invitations", "cluster_id", "clusters.id"),
        sa.PrimaryKeyConstraint("cluster_id", "user_name", name="pk_vpn_invitations"),
    )
    op.create_table(
        "vpn_connections",
        sa.Column("gateway", NAME_TYPE, nullable=False),
        sa.Column("profile_id", NAME_TYPE, nullable=False),
        sa.Column("protocol", NAME_TYPE, nullable=False),
        sa.Column("remote", sa.Text(), nullable=False),
        sa.Column("connected_at", UtcDateTime(), nullable=False),
        sa.Column("received_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reported_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("protocol IN ('udp', 'tcp')", name="ck_vpn_connections_protocol"),
        _refer("vpn_connections", "gateway", "elements.name"),
        _refer("vpn_connections", "profile_id", "vpn_profiles.id"),
        sa.PrimaryKeyConstraint("gateway", "profile_id", name="pk_vpn_connections"),
    )
    op.create_index("ix_vpn_connections_profile_id", "vpn_connections", ["profile_id"])


def _create_gateways() -> None:
    op.create_table(
        "cluster_gateways",
        sa.Column("cluster_id", NAME_TYPE, nullable=False),
        sa.Column("gateway", NAME_TYPE, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        _refer("cluster_gateways", "cluster_id", "clusters.id"),
        _refer("cluster_gateways", "gateway", "elements.name"),
        sa.PrimaryKeyConstraint("cluster_id", "gateway", name="pk_cluster_gateways"),
    )


def _create_profiles() -> None:
    op.create_table(
        "vpn_profiles",
        sa.Column("id", NAME_TYPE, nullable=False),
        sa.Column("cluster_id", NAME_TYPE, nullable=False),
        sa.Column("network_id", NAME_TYPE, nullable=False),
        sa.Column("user_name", USER_TYPE, nullable=False),
        sa.Column("device", NAME_TYPE, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        _refer("vpn_profiles", "cluster_id", "clusters.id"),
        _refer("vpn_profiles", "network_id", "clusters.id"),
        sa.PrimaryKeyConstraint("id", name="pk_vpn_profiles"),
    )
    is_valid = sa.text("revoked_at IS NULL")
    op.create_index("ix_vpn_profiles_cluster_id", "vpn_profiles", ["cluster_id"])
    op.create_index(
        "ix_vpn_profiles_valid_network",
        "vpn_profiles",
        ["network_id"],
        sqlite_where=is_valid,
        postgresql_where=is_valid,
    )
    op.create_index(
        "uq_vpn_profiles_valid_device",
        "vpn_profiles",
        ["cluster_id", "user_name", "device"],
        unique=True,
        sqlite_where=is_valid,
        postgresql_where=is_valid,
    )
    op.create_table(
        "vpn_profile_gateways",
        sa.Column("profile_id", NAME_TYPE, nullable=False),
        sa.Column("gateway", NAME_TYPE, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        _refer("vpn_profile_gateways", "profile_id", "vpn_profiles.id"),
        _refer("vpn_profile_gateways", "gateway", "elements.name"),
        sa.PrimaryKeyConstraint("profile_id", "gateway", name="pk_vpn_profile_gateways"),
    )
    op.create_table(
        "vpn_addresses",
        sa.Column("network_id", NAME_TYPE, nullable=False),
        sa.Column("address", sa.String(39), nullable=False),
        sa.Column("prefix_length", sa.Integer(), nullable=False),
        sa.Column("profile_id", NAME_TYPE, nullable=False),
        _refer("vpn_addresses", "network_id", "clusters.id"),
        _refer("vpn_addresses", "profile_id", "vpn_profiles.id"),
        sa.PrimaryKeyConstraint("network_id", "address", name="pk_vpn_addresses"),
    )
    op.create_index("ix_vpn_addresses_profile_id", "vpn_addresses", ["profile_id"])


def _refer(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [target], name=f"fk_{table}_{column}")
