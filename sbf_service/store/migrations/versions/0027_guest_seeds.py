"""Add the login of clusters' guests, and create the secret from which SBF derives key pairs of guests and clusters.

The secret is in the database, so that all replicas use the same secret.
"""

import secrets
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE

revision: str = "0027"
down_revision: str | None = "0026"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.add_column("clusters", sa.Column("login", sa.Text(), nullable=True))
    table = op.create_table(
        "service_secrets",
        sa.Column("name", NAME_TYPE, nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_service_secrets")),
    )
    op.bulk_insert(table, [{"name": "guests", "value": secrets.token_hex(32)}])
