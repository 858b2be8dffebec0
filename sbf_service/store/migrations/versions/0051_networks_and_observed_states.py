"""Add an index of VPN profiles by network, and delete unreadable observed states of switches and edges.

When the retention deletes clusters, the database searches for the profiles of each cluster.

The observed state of a switch is a JSON object, and that of an edge is a list. If the name of a switch was given to an
edge, or the name of an edge to a switch, earlier versions kept the observed state.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0051"
down_revision: str | None = "0050"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_DELETE_UNREADABLE = """
UPDATE elements SET carried = NULL, carried_at = NULL
WHERE kind = 'switch' AND substr(carried, 1, 1) <> '{' OR kind = 'edge' AND substr(carried, 1, 1) <> '['"""


def upgrade() -> None:
    """Apply this step."""
    op.create_index("ix_vpn_profiles_network_id", "vpn_profiles", ["network_id"])
    op.execute(_DELETE_UNREADABLE)
