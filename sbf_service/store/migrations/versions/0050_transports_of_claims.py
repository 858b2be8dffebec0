"""Add the transport of each claim's network, and an index that finds the VLAN IDs in use on a transport."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE

revision: str = "0050"
down_revision: str | None = "0049"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_COPY_TRANSPORTS = """
UPDATE claims SET transport = (SELECT clusters.transport FROM clusters WHERE clusters.id = claims.cluster_id)"""


def upgrade() -> None:
    """Apply this step."""
    op.add_column("claims", sa.Column("transport", NAME_TYPE, nullable=True))
    op.execute(_COPY_TRANSPORTS)
    op.create_index("ix_claims_transport_vlan", "claims", ["transport", "vlan"])
