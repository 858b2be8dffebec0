"""Add records of the VLANs that SBF created on devices, and of the VLAN IDs that devices use for something else.

The migration records two kinds of VLANs as created by SBF: the VLANs in a device's observed state, and the VLANs of
clusters that the device has confirmed.

The migration also adds the column ``placements.blocked``. The column is true if the element confirmed its other
clusters, but not the cluster of this placement.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime
from virtcloud.model.vlans import VlanSet

revision: str = "0021"
down_revision: str | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_CONFIRMED = sa.text(
    "SELECT elements.name, claims.vlan FROM placements"
    " JOIN elements ON elements.name = placements.element"
    " JOIN clusters ON clusters.id = placements.cluster_id"
    " JOIN claims ON claims.cluster_id = COALESCE(clusters.network, clusters.id) AND claims.site = elements.site"
    " WHERE elements.kind IN ('switch', 'edge') AND placements.added_revision <= elements.confirmed_revision"
)
_CARRIED = sa.text("SELECT name, kind, carried FROM elements WHERE kind IN ('switch', 'edge') AND carried IS NOT NULL")


def upgrade() -> None:
    """Apply this step."""
    created = op.create_table(
        "created_vlans",
        sa.Column("element", NAME_TYPE, nullable=False),
        sa.Column("vlan", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["element"], ["elements.name"], name=op.f("fk_created_vlans_element")),
        sa.PrimaryKeyConstraint("element", "vlan", name=op.f("pk_created_vlans")),
    )
    op.create_table(
        "foreign_vlans",
        sa.Column("element", NAME_TYPE, nullable=False),
        sa.Column("vlan", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("site", NAME_TYPE, nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("ports", sa.Text(), nullable=False),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["element"], ["elements.name"], name=op.f("fk_foreign_vlans_element")),
        sa.ForeignKeyConstraint(["site"], ["sites.name"], name=op.f("fk_foreign_vlans_site")),
        sa.PrimaryKeyConstraint("element", "vlan", name=op.f("pk_foreign_vlans")),
    )
    op.create_index("ix_foreign_vlans_site_vlan", "foreign_vlans", ["site", "vlan"], unique=False)
    op.add_column("placements", sa.Column("blocked", sa.Boolean(), nullable=False, server_default=sa.false()))
    where = sa.text("blocked")
    op.create_index("ix_placements_blocked", "placements", ["cluster_id"], sqlite_where=where, postgresql_where=where)
    now = datetime.now(UTC)
    rows = [{"element": name, "vlan": vlan, "created_at": now} for name, vlan in sorted(set(_known(op.get_bind())))]
    op.bulk_insert(created, rows)


def _known(connection: sa.Connection) -> Iterator[tuple[str, int]]:
    for name, vlan in connection.execute(_CONFIRMED).all():
        yield name, int(vlan)
    for name, kind, carried in connection.execute(_CARRIED).all():
        found = json.loads(carried)
        if isinstance(found, list) != (kind == "edge"):
            continue  # the state was observed when the name denoted a device of the other kind
        if kind == "edge":
            yield from ((name, int(circuit["vlan"])) for circuit in found)
        else:
            yield from ((name, int(vlan)) for vlans in found.values() for vlan in VlanSet.parse(vlans))
