"""Add the table of gateways' own addresses in networks."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE

revision: str = "0032"
down_revision: str | None = "0031"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "gateway_addresses",
        sa.Column("network_id", NAME_TYPE, nullable=False),
        sa.Column("address", sa.String(39), nullable=False),
        sa.Column("prefix_length", sa.Integer(), nullable=False),
        sa.Column("gateway", NAME_TYPE, nullable=False),
        sa.ForeignKeyConstraint(["network_id"], ["clusters.id"], name="fk_gateway_addresses_network_id"),
        sa.ForeignKeyConstraint(["gateway"], ["elements.name"], name="fk_gateway_addresses_gateway"),
        sa.PrimaryKeyConstraint("network_id", "address", name="pk_gateway_addresses"),
    )
    op.create_index("ix_gateway_addresses_gateway", "gateway_addresses", ["gateway"])
