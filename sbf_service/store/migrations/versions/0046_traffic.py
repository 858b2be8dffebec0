"""Add the table ``traffic``: the last traffic samples of each network, reported by each element."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime

revision: str = "0046"
down_revision: str | None = "0045"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "traffic",
        sa.Column("network_id", NAME_TYPE, nullable=False),
        sa.Column("element", NAME_TYPE, nullable=False),
        sa.Column("reported_at", UtcDateTime(), nullable=False),
        sa.Column("samples", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["network_id"], ["clusters.id"], name="fk_traffic_network_id"),
        sa.ForeignKeyConstraint(["element"], ["elements.name"], name="fk_traffic_element"),
        sa.PrimaryKeyConstraint("network_id", "element", name="pk_traffic"),
    )
    op.create_index("ix_traffic_element", "traffic", ["element"])
