"""Add the column ``outside_uses.names``: the FQDNs of a destination, with the addresses that the gateway resolved.

A destination is a name in the topology for addresses or FQDNs outside virtcloud's networks.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0042"
down_revision: str | None = "0041"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.add_column("outside_uses", sa.Column("names", sa.Text(), nullable=True))
