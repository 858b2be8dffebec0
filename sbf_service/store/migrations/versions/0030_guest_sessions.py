"""Add the table of guest sessions that wait for the agent of the guest's host."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime

revision: str = "0030"
down_revision: str | None = "0029"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "guest_sessions",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("id", NAME_TYPE, nullable=False),
        sa.Column("element", NAME_TYPE, nullable=False),
        sa.Column("network", NAME_TYPE, nullable=False),
        sa.Column("guest", NAME_TYPE, nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["element"], ["elements.name"], name=op.f("fk_guest_sessions_element")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_guest_sessions")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_guest_sessions_element"), "guest_sessions", ["element"])
