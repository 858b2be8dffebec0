"""Add the table ``service_times``, and columns for the request IDs and trace contexts of calls.

The table contains the time of the last event of each kind, such as ``backup``.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime

revision: str = "0043"
down_revision: str | None = "0042"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "service_times",
        sa.Column("name", NAME_TYPE, nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_service_times")),
    )
    op.add_column("audit", sa.Column("request_id", sa.Text(), nullable=True))
    op.add_column("clusters", sa.Column("request_id", sa.Text(), nullable=True))
    op.add_column("clusters", sa.Column("traceparent", sa.Text(), nullable=True))
