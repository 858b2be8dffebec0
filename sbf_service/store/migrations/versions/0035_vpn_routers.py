"""Add the column ``router`` to VPN profiles: true for a device that is the router of its network.

An index permits at most one valid profile of a router in each network.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0035"
down_revision: str | None = "0034"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.add_column("vpn_profiles", sa.Column("router", sa.Boolean(), server_default=sa.false(), nullable=False))
    is_valid_router = sa.text("revoked_at IS NULL AND router")
    op.create_index(
        "uq_vpn_profiles_valid_router",
        "vpn_profiles",
        ["network_id"],
        unique=True,
        sqlite_where=is_valid_router,
        postgresql_where=is_valid_router,
    )
