"""Add a table with a row for each free VLAN ID. The new table replaces the table of released VLAN IDs."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime, VlanSetText

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

NEVER_USED = datetime(1970, 1, 1, tzinfo=UTC)
_SITES = sa.table("sites", sa.column("name"), sa.column("pool", VlanSetText()))
_CLAIMS = sa.table("claims", sa.column("site"), sa.column("vlan"))
_FREED = sa.table("freed_numbers", sa.column("site"), sa.column("vlan"), sa.column("freed_at", UtcDateTime()))


def upgrade() -> None:
    """Apply this step."""
    free = op.create_table(
        "free_numbers",
        sa.Column("site", NAME_TYPE, nullable=False),
        sa.Column("vlan", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["site"], ["sites.name"], name=op.f("fk_free_numbers_site")),
        sa.PrimaryKeyConstraint("site", "vlan", name=op.f("pk_free_numbers")),
    )
    op.create_index("ix_free_numbers_site_since_vlan", "free_numbers", ["site", "since", "vlan"], unique=False)
    op.bulk_insert(free, list(_rows(op.get_bind())))
    op.drop_table("freed_numbers")


def _rows(connection: sa.Connection) -> Iterator[dict[str, object]]:
    claimed = {(site, vlan) for site, vlan in connection.execute(sa.select(_CLAIMS))}
    freed = {(site, vlan): moment for site, vlan, moment in connection.execute(sa.select(_FREED))}
    for site, pool in connection.execute(sa.select(_SITES)).all():
        for vlan in pool:
            if (site, vlan) not in claimed:
                yield {"site": site, "vlan": vlan, "since": freed.get((site, vlan), NEVER_USED)}
