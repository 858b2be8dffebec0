"""Add the table ``job_questions``: SBF's questions to batch servers about jobs, and the answers.

SBF records a question when a host requests the cluster of a job that the batch server has not confirmed.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import KEY_TYPE, NAME_TYPE, UtcDateTime

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "job_questions",
        sa.Column("key", KEY_TYPE, nullable=False),
        sa.Column("starter", NAME_TYPE, nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("asked_at", UtcDateTime(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("key", "starter", name=op.f("pk_job_questions")),
    )
