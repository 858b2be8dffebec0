"""Add the time of a gateway's first report of a connection.

SBF compares the order of these times with the order of the connections' start times. If the two orders differ, a
gateway's clock is wrong.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.columns import UtcDateTime

revision: str = "0034"
down_revision: str | None = "0033"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step. For existing connections, the column is NULL until their gateways report again."""
    op.add_column("vpn_connections", sa.Column("first_reported_at", UtcDateTime(), nullable=True))
