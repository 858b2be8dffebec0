"""Extend the numbers of audit rows to 64 bits. On SQLite they always had 64 bits.

PostgreSQL writes the table and its indexes again, for which it needs their space a second time until the commit. The
sequence follows in the same transaction.
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
