"""Add the time when a gateway first reported a connection, by which SBF finds the latest connection of a profile."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.columns import UtcDateTime

revision: str = "0034"
down_revision: str | None = "0033"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step. The present connections have no such time until their gateways report again."""
    op.add_column("vpn_connections", sa.Column("first_reported_at", UtcDateTime(), nullable=True))
