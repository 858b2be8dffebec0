"""Add the time of a gateway's first report of a connection.

If the order of these times differs from the order of the connections' start times, a gateway's clock is wrong.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import UtcDateTime

revision: str = "0034"
down_revision: str | None = "0033"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step. For existing connections, the column is NULL until their gateways report again."""
    op.add_column("vpn_connections", sa.Column("first_reported_at", UtcDateTime(), nullable=True))
