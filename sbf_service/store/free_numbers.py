"""Numbers that a site gives and nobody has: each is a row, with the moment since when it is free."""

from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import bindparam, delete, insert, select, text

from sbf_service.store.columns import Instant
from sbf_service.store.session import Unit
from sbf_service.store.tables import Base, ClaimRow, FreeRow
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet

NEVER_USED = datetime(1970, 1, 1, tzinfo=UTC)
"""Since when a number is free that nobody ever had: it is the oldest."""

_FREE = Base.metadata.tables[FreeRow.__tablename__]
_CLAIMS = Base.metadata.tables[ClaimRow.__tablename__]
_TAKEN = delete(_FREE).where(_FREE.c.site == bindparam("of"), _FREE.c.vlan == bindparam("number"))
_ADDED = insert(_FREE)
_CLAIMED = insert(_CLAIMS)
_THEIRS = _CLAIMS.c.cluster_id == bindparam("cluster")
_GIVEN_BACK = insert(_FREE).from_select(
    ["site", "vlan", "since"],
    select(_CLAIMS.c.site, _CLAIMS.c.vlan, bindparam("now", type_=Instant())).where(_THEIRS),
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
    gone = [{"of": site, "number": vlan} for vlan in before - after]
    come = [{"site": site, "vlan": vlan, "since": NEVER_USED} for vlan in after - before]
    if gone:
        unit.connection.execute(_TAKEN, gone)
    if come:
        unit.connection.execute(_ADDED, come)
        if unit.connection.dialect.name == "postgresql":  # it would sort the thousands that came, for each claim
            unit.connection.execute(text("ANALYZE free_numbers"))
