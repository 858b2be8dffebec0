"""Add pending saves of devices.

Earlier versions did not verify saves. Therefore, the migration records a pending save for each device with an observed
state.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import UtcDateTime

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.add_column("elements", sa.Column("unsaved_since", UtcDateTime(), nullable=True))
    op.add_column("elements", sa.Column("failed_saves", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("elements", sa.Column("save_after", UtcDateTime(), nullable=True))
    moments = [sa.column(name, UtcDateTime()) for name in ("unsaved_since", "checked_at", "last_seen")]
    elements = sa.table("elements", sa.column("carried", sa.Text()), *moments)
    seen = sa.func.coalesce(elements.c.checked_at, elements.c.last_seen)
    op.execute(elements.update().where(elements.c.carried.is_not(None)).values(unsaved_since=seen))
