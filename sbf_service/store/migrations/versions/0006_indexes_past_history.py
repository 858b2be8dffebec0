"""Replace two indexes, because after years of operation, most clusters in the database have ended.

One new index contains only the placements that are not removed, sorted by element. The other new index contains all
clusters, sorted by owner and state.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

STAYS = sa.text("removed_revision IS NULL")


def upgrade() -> None:
    """Apply this step."""
    op.drop_index("ix_placements_element", "placements")
    op.create_index(
        "ix_placements_staying",
        "placements",
        ["element", "cluster_id"],
        unique=False,
        sqlite_where=STAYS,
        postgresql_where=STAYS,
    )
    op.drop_index("ix_clusters_owner", "clusters")
    op.create_index("ix_clusters_owner_state", "clusters", ["owner", "state"], unique=False)
