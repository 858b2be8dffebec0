"""Create the tables of the first version."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime, VlanSetText

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this step."""
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("what", NAME_TYPE, nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("element", NAME_TYPE, nullable=True),
        sa.Column("cluster_id", NAME_TYPE, nullable=True),
        sa.Column("difference", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_cluster_id", "audit", ["cluster_id"], unique=False)
    op.create_index("ix_audit_element", "audit", ["element"], unique=False)

    op.create_table(
        "clusters",
        sa.Column("id", NAME_TYPE, nullable=False),
        sa.Column("key", NAME_TYPE, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("owner", NAME_TYPE, nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", NAME_TYPE, nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("deadline", UtcDateTime(), nullable=False),
        sa.Column("lease_ends", UtcDateTime(), nullable=False),
        sa.Column("leaving_since", UtcDateTime(), nullable=True),
        sa.Column("quarantined", sa.Boolean(), nullable=False),
        sa.CheckConstraint(
            "state IN ('requested', 'configuring', 'active', 'degraded', 'draining', 'released', 'failing', 'failed')",
            name=op.f("ck_clusters_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clusters")),
        sa.UniqueConstraint("key", "attempt", name=op.f("uq_clusters_key_attempt")),
    )
    op.create_index("ix_clusters_owner", "clusters", ["owner"], unique=False)
    op.create_index("ix_clusters_state_quarantined", "clusters", ["state", "quarantined"], unique=False)

    op.create_table(
        "sites",
        sa.Column("name", NAME_TYPE, nullable=False),
        sa.Column("present", sa.Boolean(), nullable=False),
        sa.Column("pool", VlanSetText(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_sites")),
    )
    op.create_table(
        "topology",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=True),
        sa.CheckConstraint("id = 1", name=op.f("ck_topology_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_topology")),
    )
    op.create_table(
        "claims",
        sa.Column("site", NAME_TYPE, nullable=False),
        sa.Column("vlan", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cluster_id", NAME_TYPE, nullable=False),
        sa.CheckConstraint("vlan BETWEEN 2 AND 4094", name=op.f("ck_claims_vlan")),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_claims_cluster_id")),
        sa.ForeignKeyConstraint(["site"], ["sites.name"], name=op.f("fk_claims_site")),
        sa.PrimaryKeyConstraint("site", "vlan", name=op.f("pk_claims")),
        sa.UniqueConstraint("cluster_id", "site", name=op.f("uq_claims_cluster_id_site")),
    )
    op.create_table(
        "elements",
        sa.Column("name", NAME_TYPE, nullable=False),
        sa.Column("site", NAME_TYPE, nullable=False),
        sa.Column("kind", NAME_TYPE, nullable=False),
        sa.Column("present", sa.Boolean(), nullable=False),
        sa.Column("wanted_revision", sa.Integer(), nullable=False),
        sa.Column("confirmed_revision", sa.Integer(), nullable=False),
        sa.Column("trouble", sa.Text(), nullable=True),
        sa.Column("reachable", sa.Boolean(), nullable=False),
        sa.Column("last_seen", UtcDateTime(), nullable=True),
        sa.Column("checked_at", UtcDateTime(), nullable=True),
        sa.Column("carried", sa.Text(), nullable=True),
        sa.Column("lease_holder", NAME_TYPE, nullable=True),
        sa.Column("lease_until", UtcDateTime(), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.CheckConstraint("kind IN ('switch', 'host', 'gateway')", name=op.f("ck_elements_kind")),
        sa.CheckConstraint(
            "confirmed_revision >= 0 AND confirmed_revision <= wanted_revision", name=op.f("ck_elements_revisions")
        ),
        sa.ForeignKeyConstraint(["site"], ["sites.name"], name=op.f("fk_elements_site")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_elements")),
    )
    op.create_index("ix_elements_site", "elements", ["site"], unique=False)

    op.create_table(
        "freed_numbers",
        sa.Column("site", NAME_TYPE, nullable=False),
        sa.Column("vlan", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("freed_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["site"], ["sites.name"], name=op.f("fk_freed_numbers_site")),
        sa.PrimaryKeyConstraint("site", "vlan", name=op.f("pk_freed_numbers")),
    )
    op.create_table(
        "placements",
        sa.Column("cluster_id", NAME_TYPE, nullable=False),
        sa.Column("element", NAME_TYPE, nullable=False),
        sa.Column("added_revision", sa.Integer(), nullable=False),
        sa.Column("removed_revision", sa.Integer(), nullable=True),
        sa.CheckConstraint("removed_revision > added_revision", name=op.f("ck_placements_order")),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_placements_cluster_id")),
        sa.ForeignKeyConstraint(["element"], ["elements.name"], name=op.f("fk_placements_element")),
        sa.PrimaryKeyConstraint("cluster_id", "element", name=op.f("pk_placements")),
    )
    op.create_index("ix_placements_element", "placements", ["element"], unique=False)

    op.execute(sa.text("INSERT INTO topology (id, version, document) VALUES (1, 0, NULL)"))
