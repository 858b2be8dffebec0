"""Add two columns to elements, for databases that were restored from a backup.

``first_revision`` is the first revision after the restore. ``unchecked`` is true until SBF has read the element again.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0040"
down_revision: str | None = "0039"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.add_column("elements", sa.Column("first_revision", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("elements", sa.Column("unchecked", sa.Boolean(), nullable=False, server_default=sa.false()))
    unchecked = sa.text("unchecked")
    op.create_index("ix_elements_unchecked", "elements", ["site"], sqlite_where=unchecked, postgresql_where=unchecked)
