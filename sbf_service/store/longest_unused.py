"""Choosing a number by an index: it takes as long after years, when every number has been used, as on the first day.

What is chosen is what :func:`sbf_service.pools.take` chooses, of pools that are not read for it; a test holds the two
against each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import aliased

from sbf_service.pools import take
from sbf_service.store.columns import NAME
from sbf_service.store.free_numbers import NEVER_USED
from sbf_service.store.pools import Reserved, excluded_at, site_pools
from sbf_service.store.session import Unit
from sbf_service.store.tables import FreeRow
from virtcloud.model.topology import Site
from virtcloud.model.values import Name, VlanId

MOST_SITES = 16
"""Each site's order is read apart; over more sites all numbers are read instead."""
WINDOWS = (16, 128, 1024, 4096)
"""So many of a site's numbers are read at first, and then, where the one to take is not among them: all, at last."""

Key = tuple[datetime, int]
"""Since when a number is free, and the number: the order in which they are taken."""

_WINDOW = (
    select(FreeRow.since, FreeRow.vlan)
    .where(FreeRow.site == bindparam("site", type_=NAME))
    .order_by(FreeRow.since, FreeRow.vlan)
    .limit(bindparam("size"))
    .subquery()
)
"""Cut off before anything is asked about the numbers, so that no database asks about all of them first."""
_THERE = aliased(FreeRow)
_AS_OLD = (
    select(func.count())
    .where(
        _THERE.site.in_(bindparam("sites", type_=NAME, expanding=True)),
        _THERE.vlan == _WINDOW.c.vlan,
        _THERE.since <= _WINDOW.c.since,
    )
    .scalar_subquery()
)
_NUMBERS = select(_WINDOW.c.since, _WINDOW.c.vlan, _AS_OLD).order_by(_WINDOW.c.since, _WINDOW.c.vlan)
"""A site's numbers, each with the count of sites where it is free for as long, or longer."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was read of a site: the first number to take, if there is one, and the last one read, if there are more."""

    first: Key | None
    last: Key | None


def choose(unit: Unit, sites: Sequence[Site], reserved: Reserved, *, translates: bool) -> dict[Name, VlanId]:
    """Choose the number that a new cluster gets at each of these sites: as ``take``. Raises NoVlanFree."""
    if len(sites) <= MOST_SITES:
        if (same := _oldest(unit, sites, reserved)) is not None:
            return {site.name: same for site in sites}
        own = {site.name: _oldest(unit, [site], reserved) for site in sites if translates}
        found = {name: vlan for name, vlan in own.items() if vlan is not None}
        if len(found) == len(sites):
            return found
    return take(site_pools(unit, sites, reserved), translates=translates)


def _oldest(unit: Unit, sites: Sequence[Site], reserved: Reserved) -> VlanId | None:
    """Give the number whose last use at any of the sites is longest ago, of those that are free at all of them."""
    excluded: frozenset[int] = frozenset().union(*(excluded_at(site, reserved) for site in sites))
    for size in WINDOWS:
        windows = []
        for site in sites:
            windows.append(_window(unit, site.name, sites, excluded, size))
            if (found := windows[-1].first) and found[0] == NEVER_USED:
                return VlanId(found[1])
        first = min((one.first for one in windows if one.first), default=None)
        if all(one.last is None or (first is not None and first <= one.last) for one in windows):
            return None if first is None else VlanId(first[1])
    return None


def _window(unit: Unit, name: Name, sites: Sequence[Site], excluded: frozenset[int], size: int) -> Window:
    asked = {"site": name, "sites": [site.name for site in sites], "size": size}
    rows = unit.connection.execute(_NUMBERS, asked).all()
    free = ((since, vlan) for since, vlan, count in rows if count == len(sites) and vlan not in excluded)
    return Window(next(free, None), (rows[-1][0], rows[-1][1]) if len(rows) == size else None)
