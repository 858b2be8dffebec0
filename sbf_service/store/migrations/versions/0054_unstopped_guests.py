"""Add a mark of guests that their host could not stop (decision 67)."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0054"
down_revision: str | None = "0053"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.add_column("guest_powers", sa.Column("unstopped", sa.Boolean, nullable=True))
