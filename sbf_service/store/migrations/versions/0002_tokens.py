"""Add the table of tokens."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

ROLES = "role IN ('user', 'site-administrator', 'operator', 'agent', 'scheduler')"


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "tokens",
        sa.Column("id", NAME_TYPE, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("name", NAME_TYPE, nullable=False),
        sa.Column("role", NAME_TYPE, nullable=False),
        sa.Column("sites", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=True),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.Column("last_used_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint(ROLES, name=op.f("ck_tokens_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_index("ix_tokens_name", "tokens", ["name"], unique=False)
