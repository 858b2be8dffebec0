"""Add the catalogue of images, the quota of a user's images, and the column ``images`` of clusters."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, USER_TYPE, UtcDateTime

revision: str = "0028"
down_revision: str | None = "0027"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "images",
        sa.Column("name", NAME_TYPE, nullable=False),
        sa.Column("owner", USER_TYPE, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("format", NAME_TYPE, nullable=False),
        sa.Column("architecture", NAME_TYPE, nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("file", sa.Text(), nullable=True),
        sa.Column("everybody", sa.Boolean(), nullable=False),
        sa.Column("added_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_images"),
    )
    op.create_index("ix_images_owner", "images", ["owner"])
    op.create_index("ix_images_sha256", "images", ["sha256"])
    op.create_table(
        "image_shares",
        sa.Column("image", NAME_TYPE, nullable=False),
        sa.Column("user_name", USER_TYPE, nullable=False),
        sa.ForeignKeyConstraint(["image"], ["images.name"], name="fk_image_shares_image"),
        sa.PrimaryKeyConstraint("image", "user_name", name="pk_image_shares"),
    )
    op.create_table(
        "image_certifications",
        sa.Column("image", NAME_TYPE, nullable=False),
        sa.Column("site", NAME_TYPE, nullable=False),
        sa.Column("certified_by", sa.Text(), nullable=False),
        sa.Column("certified_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["image"], ["images.name"], name="fk_image_certifications_image"),
        sa.ForeignKeyConstraint(["site"], ["sites.name"], name="fk_image_certifications_site"),
        sa.PrimaryKeyConstraint("image", "site", name="pk_image_certifications"),
    )
    op.add_column("clusters", sa.Column("images", sa.Text(), nullable=True))
    op.add_column("quotas", sa.Column("images_mb", sa.BigInteger(), nullable=True))
