"""Extend the column of cluster keys to the maximum length of a job ID."""

from collections.abc import Sequence

from alembic import op

from sbf_service.store.tables.columns import KEY_TYPE, NAME_TYPE

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    with op.batch_alter_table("clusters") as clusters:
        clusters.alter_column("key", type_=KEY_TYPE, existing_type=NAME_TYPE, existing_nullable=False)
