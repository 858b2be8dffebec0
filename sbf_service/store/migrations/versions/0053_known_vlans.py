"""Add the known VLAN IDs of elements (decision 97).

For existing elements, all VLAN IDs are known: earlier versions relied on the names of VLANs from the first reading.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0053"
down_revision: str | None = "0052"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.add_column("elements", sa.Column("known_vlans", sa.Text, nullable=False, server_default=""))
    op.execute("UPDATE elements SET known_vlans = '1-4094'")
