"""Add the table of counters: how much each network uses destinations outside virtcloud's networks."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime

revision: str = "0036"
down_revision: str | None = "0035"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

COUNTERS = ("connections", "sent_bytes", "received_bytes")


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "outside_uses",
        sa.Column("network_id", NAME_TYPE, nullable=False),
        sa.Column("gateway", NAME_TYPE, nullable=False),
        sa.Column("destination", NAME_TYPE, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTERS),
        *(sa.Column(f"reported_{name}", sa.BigInteger(), nullable=False) for name in COUNTERS),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.Column("reported_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["network_id"], ["clusters.id"], name="fk_outside_uses_network_id"),
        sa.ForeignKeyConstraint(["gateway"], ["elements.name"], name="fk_outside_uses_gateway"),
        sa.PrimaryKeyConstraint("network_id", "gateway", "destination", name="pk_outside_uses"),
    )
    op.create_index("ix_outside_uses_gateway", "outside_uses", ["gateway"])
