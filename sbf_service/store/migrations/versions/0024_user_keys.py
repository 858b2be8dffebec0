"""Add the public SSH keys of users."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import USER_TYPE, UtcDateTime

revision: str = "0024"
down_revision: str | None = "0023"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "user_keys",
        sa.Column("owner", USER_TYPE, nullable=False),
        sa.Column("fingerprint", sa.String(50), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("added_at", UtcDateTime(), nullable=False),
        sa.Column("added_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "fingerprint", name=op.f("pk_user_keys")),
    )
