"""The stored documents of the topology: one row for the common part, and one row for each site's part.

A change of the topology writes only the rows that change, and increments the version of the topology. Each row has the
version that last changed it, so that a replica reads only the rows that changed after its version.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import CompoundSelect, Connection, bindparam, delete, insert, literal, select, union_all, update

from sbf_service.large_documents import collect_later, take_short_turns
from sbf_service.store.tables.tables import Base, SiteDocumentRow, TopologyRow
from virtcloud.model.document import share_given_keys
from virtcloud.model.errors import NotFound
from virtcloud.model.site import SitePart, site_part_of
from virtcloud.model.topology import Topology
from virtcloud.model.topology_parts import CommonPart, common_part_of, join_parts, list_changed_sites
from virtcloud.model.values import Name

_COMMON = literal("")
_READ_VERSION = select(TopologyRow.version)
_READ_PRESENCE = select(TopologyRow.version, TopologyRow.common.is_not(None))
_READ_CHANGES: CompoundSelect[Any] = union_all(
    select(_COMMON.label("site"), TopologyRow.common.label("document")).where(
        TopologyRow.common_version > bindparam("since"), TopologyRow.common.is_not(None)
    ),
    select(SiteDocumentRow.site, SiteDocumentRow.document).where(SiteDocumentRow.version > bindparam("since")),
)
"""The rows that changed after the version ``since``.

One statement reads both tables: two statements could read different versions.
"""
_READ_SITES = select(SiteDocumentRow.site)
_DOCUMENTS = Base.metadata.tables[SiteDocumentRow.__tablename__]
_INSERT = insert(_DOCUMENTS)
_UPDATE = (
    update(_DOCUMENTS)
    .where(_DOCUMENTS.c.site == bindparam("name"))
    .values(version=bindparam("new_version"), document=bindparam("new_document"))
)
_DELETE = delete(_DOCUMENTS).where(_DOCUMENTS.c.site == bindparam("name"))


def read_stored_version(connection: Connection) -> int:
    """Return the topology's version number, which exists even before the first topology is stored."""
    return connection.execute(_READ_VERSION).scalar_one()


def read_version_of_topology(connection: Connection) -> int | None:
    """Return the version of the topology, or None before the first topology."""
    version, is_present = connection.execute(_READ_PRESENCE).one()
    return version if is_present else None


def read_site_names(connection: Connection) -> tuple[Name, ...]:
    """Return the names of the topology's sites, or an empty tuple before the first topology."""
    return tuple(Name(site) for site in connection.execute(_READ_SITES).scalars())


def read_documents(connection: Connection, since: int, former: Topology | None) -> Topology:
    """Return the stored topology. Raise NotFound before the first topology.

    ``former`` is the topology of version ``since``, or None. Read only the parts that changed after this version.
    """
    rows = connection.execute(_READ_CHANGES, {"since": since}).all()
    common = next((document for site, document in rows if not site), None)
    documents = [document for site, document in rows if site]
    with collect_later(sum(map(len, documents))), take_short_turns():
        parts = {part.site.name: part for part in map(_parse_part, documents)}
    if common is not None:
        return join_parts(CommonPart.model_validate_json(common), parts, former)
    if former is None:
        raise make_no_topology_error()
    return join_parts(common_part_of(former), parts, former)


def _parse_part(document: str) -> SitePart:
    part = SitePart.model_validate_json(document)
    share_given_keys([*part.site.elements, *part.links])
    return part


def make_no_topology_error() -> NotFound:
    """Return the error for a call that needs a topology while SBF has none yet."""
    return NotFound("there is no topology yet: load one with 'virtcloud topology set FILE' (PUT /v1/topology)")


@dataclass(frozen=True, slots=True)
class DocumentChanges:
    """The changed documents, as JSON texts. ``common`` is None if the common part has not changed.

    ``new`` and ``changed`` contain the documents of new and of changed sites. ``lost`` contains the removed sites.
    """

    common: str | None
    new: Mapping[Name, str]
    changed: Mapping[Name, str]
    lost: frozenset[Name]

    @property
    def size(self) -> int:
        """The total length of ``common``, ``new`` and ``changed``, in characters."""
        return sum(map(len, (self.common or "", *self.new.values(), *self.changed.values())))


def prepare_documents(former: Topology | None, topology: Topology) -> DocumentChanges:
    """Return the documents in which ``topology`` differs from ``former``."""
    common, known = common_part_of(topology), set() if former is None else former.sites_by_name.keys()
    differs = former is None or common != common_part_of(former)
    names = common.sites if former is None else list_changed_sites(former, topology)
    texts = {name: site_part_of(topology, name).model_dump_json() for name in names}
    return DocumentChanges(
        common=common.model_dump_json() if differs else None,
        new={name: text for name, text in texts.items() if name not in known},
        changed={name: text for name, text in texts.items() if name in known},
        lost=frozenset(known - topology.sites_by_name.keys()),
    )


def write_documents(connection: Connection, changes: DocumentChanges) -> int:
    """Write changed documents, and return the new version of the topology.

    Each site must already have a row in the table of sites.
    """
    version = connection.execute(
        update(TopologyRow).values(version=TopologyRow.version + 1).returning(TopologyRow.version)
    ).scalar_one()
    if changes.common is not None:
        connection.execute(update(TopologyRow).values(common=changes.common, common_version=version))
    new = [{"site": name, "version": version, "document": text} for name, text in changes.new.items()]
    old = [{"name": name, "new_version": version, "new_document": text} for name, text in changes.changed.items()]
    lost = [{"name": name} for name in changes.lost]
    for statement, rows in ((_DELETE, lost), (_INSERT, new), (_UPDATE, old)):
        if rows:
            connection.execute(statement, rows)
    return version
