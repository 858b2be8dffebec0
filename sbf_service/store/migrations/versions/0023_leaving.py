"""Add the column ``leaving``: the description of a switch that was removed from the topology.

The column is set until SBF has restored the original uses of the switch's ports.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0023"
down_revision: str | None = "0022"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.add_column("elements", sa.Column("leaving", sa.Text(), nullable=True))
