"""Extend the IDs of audit rows to 64 bits. On SQLite, the IDs already have 64 bits.

PostgreSQL writes a new copy of the table and its indexes, and deletes the old copy at the commit. The transaction also
extends the sequence of IDs.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0041"
down_revision: str | None = "0040"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("audit", "id", existing_type=sa.Integer(), type_=sa.BigInteger(), existing_nullable=False)
        op.execute("ALTER SEQUENCE audit_id_seq AS bigint")
