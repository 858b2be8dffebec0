"""Add the highest revision that each element ever confirmed, and an index of placements by the removing revision."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

REMOVED = sa.text(
    "UPDATE elements SET highest_confirmed = coalesce((SELECT max(placements.removed_revision) FROM placements "
    "JOIN clusters ON clusters.id = placements.cluster_id WHERE placements.element = elements.name "
    "AND clusters.state IN ('released', 'failed') AND NOT clusters.quarantined), 0) WHERE highest_confirmed = 0"
)
"""Sets ``highest_confirmed`` for elements whose confirmed revision was reset to 0.

Each element of an ended cluster without quarantine has confirmed the revision that removed the cluster. The migration
uses the highest of these revisions.
"""


def upgrade() -> None:
    """Apply this step."""
    op.add_column("elements", sa.Column("highest_confirmed", sa.Integer(), nullable=False, server_default="0"))
    op.execute("UPDATE elements SET highest_confirmed = confirmed_revision")
    op.execute(REMOVED)
    op.create_index(
        "ix_placements_element_removed_revision", "placements", ["element", "removed_revision"], unique=False
    )
