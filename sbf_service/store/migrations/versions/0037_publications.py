"""Add the table ``publications``. Each row publishes a port of a guest at a port of a gateway."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime

revision: str = "0037"
down_revision: str | None = "0036"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "publications",
        sa.Column("gateway", NAME_TYPE, nullable=False),
        sa.Column("port", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("cluster_id", NAME_TYPE, nullable=False),
        sa.Column("guest", NAME_TYPE, nullable=False),
        sa.Column("guest_address", sa.String(39), nullable=False),
        sa.Column("guest_port", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("suspended", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["gateway"], ["elements.name"], name="fk_publications_gateway"),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name="fk_publications_cluster_id"),
        sa.PrimaryKeyConstraint("gateway", "port", name="pk_publications"),
        sa.UniqueConstraint(
            "cluster_id", "guest", "guest_port", "gateway", name="uq_publications_cluster_id_guest_guest_port_gateway"
        ),
    )
    op.create_index("ix_publications_cluster_id", "publications", ["cluster_id"])
