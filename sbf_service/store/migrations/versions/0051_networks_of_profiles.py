"""Add an index of VPN profiles by network.

When the retention deletes clusters, the database searches for the profiles of each cluster.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0051"
down_revision: str | None = "0050"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_index("ix_vpn_profiles_network_id", "vpn_profiles", ["network_id"])
