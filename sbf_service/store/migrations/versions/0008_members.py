"""Add members, that is, clusters that joined the network of another cluster."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    with op.batch_alter_table("clusters") as clusters:
        clusters.add_column(sa.Column("network", NAME_TYPE, nullable=True))
        clusters.create_foreign_key(op.f("fk_clusters_network"), "clusters", ["network"], ["id"])
    op.create_index("ix_clusters_network", "clusters", ["network"], unique=False)
