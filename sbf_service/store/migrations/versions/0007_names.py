"""Add names of clusters, and allow every name of a Unix user as the name of an owner or token."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, USER_TYPE

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    with op.batch_alter_table("clusters") as clusters:
        clusters.alter_column("owner", type_=USER_TYPE, existing_type=NAME_TYPE, existing_nullable=False)
        clusters.add_column(sa.Column("name", NAME_TYPE, nullable=True))
    op.create_index("uq_clusters_name", "clusters", ["name"], unique=True)
    with op.batch_alter_table("quotas") as quotas:
        quotas.alter_column("owner", type_=USER_TYPE, existing_type=NAME_TYPE, existing_nullable=False)
    with op.batch_alter_table("tokens") as tokens:
        tokens.alter_column("name", type_=USER_TYPE, existing_type=NAME_TYPE, existing_nullable=False)
