"""Add the tables of SSH certificates and SSH connections."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, USER_TYPE, UtcDateTime

revision: str = "0038"
down_revision: str | None = "0037"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "ssh_certificates",
        sa.Column("serial", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("cluster_id", NAME_TYPE, nullable=False),
        sa.Column("user_name", USER_TYPE, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name="fk_ssh_certificates_cluster_id"),
        sa.PrimaryKeyConstraint("serial", name="pk_ssh_certificates"),
    )
    op.create_index("ix_ssh_certificates_cluster_id", "ssh_certificates", ["cluster_id"])
    op.create_index("ix_ssh_certificates_expires_at", "ssh_certificates", ["expires_at"])
    op.create_table(
        "ssh_connections",
        sa.Column("gateway", NAME_TYPE, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("cluster_id", NAME_TYPE, nullable=False),
        sa.Column("user_name", USER_TYPE, nullable=False),
        sa.Column("serial", sa.BigInteger(), nullable=False),
        sa.Column("guest", NAME_TYPE, nullable=False),
        sa.Column("remote", sa.Text(), nullable=False),
        sa.Column("connected_at", UtcDateTime(), nullable=True),
        sa.Column("reported_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["gateway"], ["elements.name"], name="fk_ssh_connections_gateway"),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name="fk_ssh_connections_cluster_id"),
        sa.PrimaryKeyConstraint("gateway", "position", name="pk_ssh_connections"),
    )
    op.create_index("ix_ssh_connections_cluster_id", "ssh_connections", ["cluster_id"])
    op.create_index("ix_ssh_connections_serial", "ssh_connections", ["serial"])
