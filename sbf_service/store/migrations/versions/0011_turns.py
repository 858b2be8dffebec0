"""Allow an owner to use the key of another owner's cluster after this cluster has ended."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    with op.batch_alter_table("clusters") as clusters:
        clusters.add_column(sa.Column("turn", sa.Integer(), nullable=False, server_default="0"))
        clusters.drop_constraint(op.f("uq_clusters_key_attempt"), type_="unique")
        clusters.create_unique_constraint(op.f("uq_clusters_key_turn_attempt"), ["key", "turn", "attempt"])
