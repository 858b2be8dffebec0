"""Add the column ``elements.local_images``.

The column contains the names of the images in a host's folder, as the host's agent reported these names.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0047"
down_revision: str | None = "0046"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.add_column("elements", sa.Column("local_images", sa.Text(), nullable=True))
