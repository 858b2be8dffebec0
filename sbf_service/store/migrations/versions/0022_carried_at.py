"""Add the column ``carried_at``: the time when the observed state of a device was read."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import UtcDateTime

revision: str = "0022"
down_revision: str | None = "0021"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step. In existing rows with an observed state, set ``carried_at`` to ``checked_at``."""
    op.add_column("elements", sa.Column("carried_at", UtcDateTime(), nullable=True))
    op.execute("UPDATE elements SET carried_at = checked_at WHERE carried IS NOT NULL")
