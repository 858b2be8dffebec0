"""Add the table ``console_sessions``: one row for each login to the web console."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, USER_TYPE, UtcDateTime

revision: str = "0044"
down_revision: str | None = "0043"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "console_sessions",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("token_id", NAME_TYPE, nullable=True),
        sa.Column("name", USER_TYPE, nullable=False),
        sa.Column("role", NAME_TYPE, nullable=False),
        sa.Column("sites", sa.Text(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name="fk_console_sessions_token_id"),
        sa.PrimaryKeyConstraint("digest", name="pk_console_sessions"),
    )
