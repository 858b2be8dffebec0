"""Add the table of the wanted power states of guests that were stopped or reset."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE

revision: str = "0025"
down_revision: str | None = "0024"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "guest_powers",
        sa.Column("cluster_id", NAME_TYPE, nullable=False),
        sa.Column("guest", NAME_TYPE, nullable=False),
        sa.Column("element", NAME_TYPE, nullable=False),
        sa.Column("stopped", sa.Boolean(), nullable=False),
        sa.Column("resets", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_guest_powers_cluster_id")),
        sa.ForeignKeyConstraint(["element"], ["elements.name"], name=op.f("fk_guest_powers_element")),
        sa.PrimaryKeyConstraint("cluster_id", "guest", name=op.f("pk_guest_powers")),
    )
    op.create_index(op.f("ix_guest_powers_element"), "guest_powers", ["element"])
