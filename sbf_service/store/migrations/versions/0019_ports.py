"""Add a table of the ports that SBF configures, each with its use before SBF configured the port.

The migration adds to the table all ports that the observed states of switches contain, because SBF has already
configured these ports.
"""

import json
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

ELEMENTS = sa.table("elements", sa.column("name"), sa.column("kind"), sa.column("carried"))


def upgrade() -> None:
    """Apply this step."""
    ports = op.create_table(
        "ports",
        sa.Column("element", NAME_TYPE, nullable=False),
        sa.Column("port", sa.Text(), nullable=False),
        sa.Column("use_before", sa.Text(), nullable=True),
        sa.Column("taken", sa.Boolean(), nullable=False),
        sa.Column("shut", sa.Boolean(), nullable=False),
        sa.Column("leaving", sa.Boolean(), nullable=False),
        sa.Column("adopted_by", sa.Text(), nullable=True),
        sa.Column("adopted_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["element"], ["elements.name"], name=op.f("fk_ports_element")),
        sa.PrimaryKeyConstraint("element", "port", name=op.f("pk_ports")),
    )
    found = op.get_bind().execute(
        sa.select(ELEMENTS.c.name, ELEMENTS.c.carried).where(
            ELEMENTS.c.kind == "switch", ELEMENTS.c.carried.isnot(None)
        )
    )
    rows = [
        {"element": name, "port": port, "taken": True, "shut": not vlans, "leaving": False}
        for name, carried in found.all()
        for port, vlans in _parse_ports(carried).items()
    ]
    if rows:
        op.bulk_insert(ports, rows)


def _parse_ports(carried: str) -> dict[str, str]:
    """Return the observed state of a switch.

    Return an empty state if ``carried`` describes an edge: the switch later got the edge's name.
    """
    found = json.loads(carried)
    return found if isinstance(found, dict) else {}
