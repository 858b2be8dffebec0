"""Add quotas of networks, guests, CPUs and memory."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0018"
down_revision: str | None = "0017"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    for name in ("networks", "guests", "cpus", "memory_mb"):
        op.add_column("quotas", sa.Column(name, sa.BigInteger(), nullable=True))
