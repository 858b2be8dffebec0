"""Add provider edges, the transport of each cluster, and the claims of service IDs."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    with op.batch_alter_table("elements") as elements:
        elements.drop_constraint(op.f("ck_elements_kind"), type_="check")
        elements.create_check_constraint(op.f("ck_elements_kind"), "kind IN ('switch', 'edge', 'host', 'gateway')")
    op.add_column("clusters", sa.Column("transport", NAME_TYPE, nullable=True))

    op.create_table(
        "service_claims",
        sa.Column("transport", NAME_TYPE, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cluster_id", NAME_TYPE, nullable=False),
        sa.CheckConstraint("number BETWEEN 1 AND 4294967295", name=op.f("ck_service_claims_number")),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_service_claims_cluster_id")),
        sa.PrimaryKeyConstraint("transport", "number", name=op.f("pk_service_claims")),
        sa.UniqueConstraint("cluster_id", name=op.f("uq_service_claims_cluster_id")),
    )
    op.create_table(
        "freed_services",
        sa.Column("transport", NAME_TYPE, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("freed_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("transport", "number", name=op.f("pk_freed_services")),
    )
