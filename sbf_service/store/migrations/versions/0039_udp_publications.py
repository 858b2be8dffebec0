"""Add two columns to the table ``publications``: the protocol, and the gateway from which the publication was moved."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime

revision: str = "0039"
down_revision: str | None = "0038"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

UNIQUE = ("cluster_id", "guest", "guest_port", "protocol", "gateway")


def list_former_columns() -> tuple[sa.Column[Any], ...]:
    """Return the columns of the table before this step."""
    return (
        sa.Column("gateway", NAME_TYPE, nullable=False),
        sa.Column("port", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("cluster_id", NAME_TYPE, nullable=False),
        sa.Column("guest", NAME_TYPE, nullable=False),
        sa.Column("guest_address", sa.String(39), nullable=False),
        sa.Column("guest_port", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("suspended", sa.Text(), nullable=True),
    )


def upgrade() -> None:
    """Apply this step. The table is created again, because its primary key changes."""
    former = sa.table("publications", *(sa.column(column.name, column.type) for column in list_former_columns()))
    rows = [dict(row) for row in op.get_bind().execute(sa.select(former)).mappings()]
    op.drop_table("publications")
    created = op.create_table(
        "publications",
        *list_former_columns(),
        sa.Column("protocol", NAME_TYPE, nullable=False),
        sa.Column("moved_from", NAME_TYPE, nullable=True),
        sa.ForeignKeyConstraint(["gateway"], ["elements.name"], name="fk_publications_gateway"),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name="fk_publications_cluster_id"),
        sa.PrimaryKeyConstraint("gateway", "protocol", "port", name="pk_publications"),
        sa.UniqueConstraint(*UNIQUE, name=f"uq_publications_{'_'.join(UNIQUE)}"),
        sa.CheckConstraint("protocol IN ('tcp', 'udp')", name="ck_publications_protocol"),
    )
    op.create_index("ix_publications_cluster_id", "publications", ["cluster_id"])
    op.bulk_insert(created, [row | {"protocol": "tcp"} for row in rows])
