"""Add the table of gateways that are routers of networks."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE

revision: str = "0033"
down_revision: str | None = "0032"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "network_routers",
        sa.Column("network_id", NAME_TYPE, nullable=False),
        sa.Column("gateway", NAME_TYPE, nullable=False),
        sa.ForeignKeyConstraint(["network_id"], ["clusters.id"], name="fk_network_routers_network_id"),
        sa.ForeignKeyConstraint(["gateway"], ["elements.name"], name="fk_network_routers_gateway"),
        sa.PrimaryKeyConstraint("network_id", name="pk_network_routers"),
    )
    op.create_index("ix_network_routers_gateway", "network_routers", ["gateway"])
