"""Numbers that a site gives and nobody has: each is a row, with the moment since when it is free.

A number that a device of the site uses for somebody else has no row (``foreign_vlans.py``).
"""

from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import bindparam, delete, exists, insert, select, text

from sbf_service.store.columns import Instant
from sbf_service.store.session import Unit
from sbf_service.store.tables import Base, ClaimRow, ForeignVlanRow, FreeRow, SiteRow
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet

NEVER_USED = datetime(1970, 1, 1, tzinfo=UTC)
"""Since when a number is free that nobody ever had: it is the oldest."""

_FREE = Base.metadata.tables[FreeRow.__tablename__]
_CLAIMS = Base.metadata.tables[ClaimRow.__tablename__]
_FOREIGN = Base.metadata.tables[ForeignVlanRow.__tablename__]
_TAKEN = delete(_FREE).where(_FREE.c.site == bindparam("of"), _FREE.c.vlan == bindparam("number"))
_ADDED = insert(_FREE)
_CLAIMED = insert(_CLAIMS)
_THEIRS = _CLAIMS.c.cluster_id == bindparam("cluster")
_GIVEN_BACK = insert(_FREE).from_select(
    ["site", "vlan", "since"],
    select(_CLAIMS.c.site, _CLAIMS.c.vlan, bindparam("now", type_=Instant())).where(
        _THEIRS, ~exists().where(_FOREIGN.c.site == _CLAIMS.c.site, _FOREIGN.c.vlan == _CLAIMS.c.vlan)
    ),
)
_UNCLAIMED = delete(_CLAIMS).where(_THEIRS)


def claim(unit: Unit, cluster_id: str, numbers: Mapping[Name, VlanId]) -> None:
    """Give a cluster its numbers."""
    claims = [{"site": site, "vlan": vlan, "cluster_id": cluster_id} for site, vlan in numbers.items()]
    unit.connection.execute(_TAKEN, [{"of": site, "number": vlan} for site, vlan in numbers.items()])
    unit.connection.execute(_CLAIMED, claims)


def give_back(unit: Unit, cluster_id: str) -> None:
    """Take a cluster's numbers back: they are free from now on."""
    unit.connection.execute(_GIVEN_BACK, {"now": unit.now, "cluster": cluster_id})
    unit.connection.execute(_UNCLAIMED, {"cluster": cluster_id})


def offer(unit: Unit, site: str, before: VlanSet, after: VlanSet) -> None:
    """Let a site give other numbers; those that are in use are in both. One that comes again counts as never used."""
    foreign = VlanSet(unit.connection.execute(select(_FOREIGN.c.vlan).where(_FOREIGN.c.site == site)).scalars())
    gone = [{"of": site, "number": vlan} for vlan in before - after]
    come = [{"site": site, "vlan": vlan, "since": NEVER_USED} for vlan in after - before - foreign]
    if gone:
        unit.connection.execute(_TAKEN, gone)
    if come:
        unit.connection.execute(_ADDED, come)
        if unit.connection.dialect.name == "postgresql":  # it would sort the thousands that came, for each claim
            unit.connection.execute(text("ANALYZE free_numbers"))


def exclude(unit: Unit, site: str, vlans: VlanSet) -> None:
    """Make numbers of a site unavailable because they are in other use there; idempotent."""
    if vlans:
        unit.connection.execute(_TAKEN, [{"of": site, "number": vlan} for vlan in vlans])


def include(unit: Unit, site: str, vlans: VlanSet) -> None:
    """Make numbers free from now on that were in other use at a site: those in its pool that nobody has; idempotent."""
    taken = (
        unit.connection.execute(select(table.c.vlan).where(table.c.site == site, table.c.vlan.in_(sorted(vlans))))
        for table in (_CLAIMS, _FREE)
    )
    back = (unit.session.get_one(SiteRow, site).pool & vlans).difference(*(rows.scalars() for rows in taken))
    if back:
        rows = [{"site": site, "vlan": vlan, "since": unit.now} for vlan in sorted(back)]
        unit.connection.execute(_ADDED, rows)
