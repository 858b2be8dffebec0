"""Add indexes for lists that are returned in pages, and a table for the search for unused service IDs.

Three indexes sort clusters by creation: the clusters of each owner, the live clusters, and the live clusters of each
owner. Three indexes sort audit rows by time: all rows, the rows of each actor, and the rows of each element.

Another index sorts released service IDs by release time. The migration first deletes the release times of claimed
service IDs, so that this index contains only free IDs.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0048"
down_revision: str | None = "0047"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

CREATION = ("created_at", "key", "turn", "attempt")
LIVE = sa.text("state || '' IN ('active', 'configuring', 'degraded', 'draining', 'failing', 'requested')")


_FORGET_CLAIMED = """
DELETE FROM freed_services WHERE EXISTS (
  SELECT 1 FROM service_claims AS claims
  WHERE claims.transport = freed_services.transport AND claims.number = freed_services.number)"""


def upgrade() -> None:
    """Apply this step."""
    op.create_index("ix_clusters_owner_created", "clusters", ["owner", *CREATION])
    _create_live("ix_clusters_live", [*CREATION])
    _create_live("ix_clusters_owner_live", ["owner", *CREATION])
    op.create_index("ix_audit_at_id", "audit", ["at", "id"])
    op.create_index("ix_audit_who_at_id", "audit", ["who", "at", "id"])
    op.create_index("ix_audit_element_at_id", "audit", ["element", "at", "id"])
    name = sa.String(63).with_variant(sa.String(63, collation="C"), "postgresql")
    op.create_table(
        "unused_services",
        sa.Column("transport", name, nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("unused", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("transport", name=op.f("pk_unused_services")),
    )
    op.execute(_FORGET_CLAIMED)
    columns = ["transport", "freed_at", "number"]
    op.create_index("ix_freed_services_transport_freed_at_number", "freed_services", columns)


def _create_live(name: str, columns: list[str]) -> None:
    op.create_index(name, "clusters", columns, postgresql_where=LIVE, sqlite_where=LIVE)
