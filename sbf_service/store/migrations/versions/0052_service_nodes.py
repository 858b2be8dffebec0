"""Add the table of the service nodes of networks.

The table has no rows for existing networks: SBF inserts their rows when the topology changes (`move_services`).
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE

revision: str = "0052"
down_revision: str | None = "0051"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "service_nodes",
        sa.Column("network_id", NAME_TYPE, nullable=False),
        sa.Column("gateway", NAME_TYPE, nullable=False),
        sa.ForeignKeyConstraint(["network_id"], ["clusters.id"], name="fk_service_nodes_network_id"),
        sa.ForeignKeyConstraint(["gateway"], ["elements.name"], name="fk_service_nodes_gateway"),
        sa.PrimaryKeyConstraint("network_id", name="pk_service_nodes"),
    )
