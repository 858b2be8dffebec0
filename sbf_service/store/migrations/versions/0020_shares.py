"""Add the column ``shares``: the owners who may join a network.

NULL means the owners in the spec's ``shares_with``: the list has not changed since the network's creation.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0020"
down_revision: str | None = "0019"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.add_column("clusters", sa.Column("shares", sa.Text(), nullable=True))
