"""Add the column ``resolved``: a cluster's spec with the choices of SBF, such as the addresses of its guests.

The column is NULL for existing clusters, and the guests of these clusters do not change.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0026"
down_revision: str | None = "0025"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.add_column("clusters", sa.Column("resolved", sa.Text(), nullable=True))
