"""Add the column ``placements.settled``, and indexes, so that frequent queries do not read all rows.

For SQLite, SQLAlchemy writes the condition ``unchecked`` of a query as ``unchecked = 1``. SQLite uses an index with a
condition only if the condition has the same text in the index and in the query. Therefore, the migration replaces the
indexes of unchecked elements and of blocked placements.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0045"
down_revision: str | None = "0044"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_SETTLED = """
UPDATE placements SET settled = TRUE WHERE EXISTS (
  SELECT 1 FROM clusters WHERE clusters.id = placements.cluster_id
  AND clusters.state IN ('released', 'failed') AND NOT clusters.quarantined)"""
AGENTS, DEVICES = "kind NOT IN ('edge', 'switch')", "kind IN ('edge', 'switch')"


def upgrade() -> None:
    """Apply this step."""
    op.add_column("placements", sa.Column("settled", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute(_SETTLED)
    _create("ix_placements_unsettled", "placements", ["element", "added_revision"], "NOT settled", "settled = 0")
    op.drop_index("ix_placements_blocked", "placements")
    _create("ix_placements_blocked", "placements", ["element", "cluster_id"], "blocked", "blocked = 1")
    op.drop_index("ix_elements_unchecked", "elements")
    _create("ix_elements_unchecked", "elements", ["name"], "unchecked", "unchecked = 1")
    behind = "confirmed_revision < wanted_revision OR reachable IS"
    _create("ix_elements_unconfirmed", "elements", ["kind"], f"{behind} false", f"{behind} 0")
    seen = f"present AND {AGENTS} AND reachable"
    _create("ix_elements_seen", "elements", ["last_seen"], seen, f"present = 1 AND {AGENTS} AND reachable = 1")
    _create("ix_elements_checked", "elements", ["checked_at"], DEVICES, DEVICES)
    op.create_index("ix_clusters_state_lease_ends", "clusters", ["state", "lease_ends"])
    op.create_index("ix_clusters_created", "clusters", ["created_at", "key", "turn", "attempt"])


def _create(name: str, table: str, columns: list[str], condition: str, on_sqlite: str) -> None:
    op.create_index(name, table, columns, postgresql_where=sa.text(condition), sqlite_where=sa.text(on_sqlite))
