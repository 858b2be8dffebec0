"""Add the columns ``cpus`` and ``memory_mb``: a host's capacity, as reported by the host's agent.

Agents report the capacity when they start. Until then, the capacity is unknown (NULL).
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0029"
down_revision: str | None = "0028"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.add_column("elements", sa.Column("cpus", sa.Integer(), nullable=True))
    op.add_column("elements", sa.Column("memory_mb", sa.BigInteger(), nullable=True))
