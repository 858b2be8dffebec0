"""Divide the stored topology: one row for each site and its internal links, and one row for the common part.

The common part contains the names of the sites, the links between sites, and all keys of the topology except ``sites``
and ``links``.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import sqlalchemy as sa
from alembic import op

from sbf_service.store.tables.columns import NAME_TYPE

revision: str = "0049"
down_revision: str | None = "0048"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

BATCH = 100
ELEMENTS = ("switches", "edges", "hosts", "gateways")


def upgrade() -> None:
    """Apply this step.

    The column ``document`` gets a new name. Otherwise, replicas of the previous version would read the common part as
    if it were the whole topology.
    """
    op.execute("ALTER TABLE topology RENAME COLUMN document TO common")
    op.add_column("topology", sa.Column("common_version", sa.Integer(), nullable=False, server_default="0"))
    parts = op.create_table(
        "site_documents",
        sa.Column("site", NAME_TYPE, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["site"], ["sites.name"], name=op.f("fk_site_documents_site")),
        sa.PrimaryKeyConstraint("site", name=op.f("pk_site_documents")),
    )
    op.create_index(op.f("ix_site_documents_version"), "site_documents", ["version"])
    found = op.get_bind().execute(sa.text("SELECT version, common FROM topology WHERE common IS NOT NULL")).first()
    if found is not None:
        _divide(parts, found.version, json.loads(found.common))


def _divide(parts: sa.Table, version: int, topology: dict[str, Any]) -> None:
    """Insert a row for each site, and leave only the common part in the row of the topology."""
    links = _group_links(topology)
    rows = (
        {"site": site["name"], "version": version, "document": _dump({"site": site, "links": links[site["name"]]})}
        for site in topology["sites"]
    )
    while batch := list(islice(rows, BATCH)):
        op.get_bind().execute(sa.insert(parts), batch)
    common = {**topology, "sites": [site["name"] for site in topology["sites"]], "links": links[None]}
    update = sa.text("UPDATE topology SET common = :common, common_version = :version")
    op.get_bind().execute(update, {"common": _dump(common), "version": version})


def _group_links(topology: Mapping[str, Any]) -> Mapping[str | None, list[Any]]:
    """Return the links within each site by the site's name, and the links between sites under the key None."""
    site_of = {element: site["name"] for site in topology["sites"] for element in _list_elements(site)}
    grouped: dict[str | None, list[Any]] = defaultdict(list)
    for link in topology.get("links", ()):
        first, second = (site_of[link[end].partition(":")[0]] for end in ("a", "b"))
        grouped[first if first == second else None].append(link)
    return grouped


def _list_elements(site: Mapping[str, Any]) -> Iterator[str]:
    for group in ELEMENTS:
        yield from (element["name"] for element in site.get(group, ()))


def _dump(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
