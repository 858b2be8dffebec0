"""Add quotas for individual users."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "quotas",
        sa.Column("owner", NAME_TYPE, nullable=False),
        sa.Column("clusters", sa.Integer(), nullable=True),
        sa.Column("sites", sa.Integer(), nullable=True),
        sa.Column("lease_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_quotas")),
    )
