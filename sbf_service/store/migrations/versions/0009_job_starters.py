"""Add the role ``job-starter``: a host with this role requests the clusters of its jobs."""

from collections.abc import Sequence

from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

ROLES = "role IN ('user', 'site-administrator', 'operator', 'agent', 'scheduler', 'job-starter')"


def upgrade() -> None:
    """Apply this step."""
    with op.batch_alter_table("tokens") as tokens:
        tokens.drop_constraint(op.f("ck_tokens_role"), type_="check")
        tokens.create_check_constraint(op.f("ck_tokens_role"), ROLES)
