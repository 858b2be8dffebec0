"""Add the indexes of lists in pages: clusters by creation, elements by kind, audit rows by time, actor and element."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0046"
down_revision: str | None = "0045"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

CREATION = ("created_at", "key", "turn", "attempt")
LIVE = sa.text("state IN ('active', 'configuring', 'degraded', 'draining', 'failing', 'requested')")


def upgrade() -> None:
    """Apply this step."""
    op.create_index("ix_clusters_owner_created", "clusters", ["owner", *CREATION])
    for name, columns in (("ix_clusters_live", CREATION), ("ix_clusters_owner_live", ("owner", *CREATION))):
        op.create_index(name, "clusters", list(columns), postgresql_where=LIVE, sqlite_where=LIVE)
    op.create_index("ix_elements_kind_name", "elements", ["kind", "name"])
    for name, column in (
        ("ix_audit_at_id", ()),
        ("ix_audit_who_at_id", ("who",)),
        ("ix_audit_element_at_id", ("element",)),
    ):
        op.create_index(name, "audit", [*column, "at", "id"])
