"""Add the column ``leaving``, which marks switches that left the topology before SBF restored their ports.

To restore a port means to restore the configuration that the port had before SBF first configured it.
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
