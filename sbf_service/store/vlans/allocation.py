"""The choice of VLAN IDs for clusters from the pools of sites. :mod:`.claims` records the chosen VLAN IDs."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Select, Text, bindparam, cast, func, literal_column, select, true
from sqlalchemy.orm import aliased

from sbf_service.domain.allocation import SitePool, allocate_vlan_ids, choose_vlan_ids, describe_choice, find_excluded
from sbf_service.domain.paths import choose_transport, find_sites
from sbf_service.store.elements.unchecked_elements import check_sites_checked
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import NAME_TYPE, equals_any
from sbf_service.store.tables.tables import SiteRow
from sbf_service.store.tables.vlan_tables import ClaimRow, ForeignVlanRow, FreeVlanRow
from sbf_service.store.unit_of_work import TOPOLOGY_TOPIC, Unit
from sbf_service.store.vlans.claims import NEVER_USED, read_foreign_vlans
from sbf_service.store.vlans.service_ids import choose_service_id
from sbf_service.store.vlans.transport_vlans import find_vlan_separated, find_vlan_user, is_taken, read_transport_vlans
from virtcloud.model.cluster import ENDED_STATES, ClusterSpec
from virtcloud.model.element import Device
from virtcloud.model.errors import NoVlanFree, VlanNotInPool
from virtcloud.model.switch_state import ForeignVlan
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Site
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet

ReservedVlans = Callable[[Device], VlanSet]
"""A function that returns the VLAN IDs that a device's platform reserves."""
CanSeeOwner = Callable[[str], bool]
"""A function that returns whether the caller may see the clusters of an owner."""
MAX_INDEXED_SITES = 16
"""The maximum number of sites for the fast allocation, which reads only a few free VLAN IDs of each site."""
WINDOW_SIZES = (16, 128, 1024, 4096)
"""The limits of successive queries for free VLAN IDs of a site.

SBF uses a larger limit only if the smaller one does not determine the choice.
"""
NO_VLANS = VlanSet()

_SITES = bindparam("sites", type_=NAME_TYPE, expanding=True)
_JOINED = func.aggregate_strings(cast(ClaimRow.vlan, Text), ",")
"""All claimed VLAN IDs of a site in one text, such as ``"101,102"``.

Reading one text is much faster than reading a row for each VLAN ID.
"""
_READ_POOLS = select(SiteRow.name, SiteRow.pool).where(SiteRow.name.in_(_SITES))
_READ_CLAIMS = select(ClaimRow.site, _JOINED).where(ClaimRow.site.in_(_SITES)).group_by(ClaimRow.site)
_READ_QUARANTINED = _READ_CLAIMS.where(
    ClaimRow.cluster_id.in_(
        select(ClusterRow.id).where(equals_any(ClusterRow.state, ENDED_STATES), ClusterRow.quarantined == true())
    )
)
_READ_FREED = select(FreeVlanRow.site, FreeVlanRow.vlan, FreeVlanRow.since).where(
    FreeVlanRow.site.in_(_SITES), FreeVlanRow.since > NEVER_USED
)


def _make_window_query(size: int, *conditions: ColumnElement[bool]) -> Select[datetime, int, int]:
    """Return a query for the free VLAN IDs of a site that meet the conditions, at most ``size`` of them.

    The rows are in the order of the last releases at the site. The columns are the time of the last release, the VLAN
    ID, and the number of the cluster's sites at which the VLAN ID is free and was not released after this time. If this
    number is the number of all the cluster's sites, the VLAN ID is free at all of them, and was not released later at
    any.

    The limit is in a subquery, so that the database applies it before counting rows of other sites. The limit is a
    literal: PostgreSQL would plan a statement with a bound parameter at each execution. The expression ``coalesce``
    prevents the use of the index of release times, in which the database would read all VLAN IDs of a site that were
    released earlier.
    """
    of_site = FreeVlanRow.site == bindparam("site", type_=NAME_TYPE)
    rows = select(FreeVlanRow.since, FreeVlanRow.vlan).where(of_site, *conditions)
    window = rows.order_by(FreeVlanRow.since, FreeVlanRow.vlan).limit(literal_column(str(size))).subquery()
    elsewhere = aliased(FreeVlanRow)
    since = func.coalesce(elsewhere.since, elsewhere.since)
    is_as_old = elsewhere.site.in_(_SITES), elsewhere.vlan == window.c.vlan, since <= window.c.since
    count = select(func.count()).where(*is_as_old).scalar_subquery()
    return select(window.c.since, window.c.vlan, count).order_by(window.c.since, window.c.vlan)


_READ_WINDOW = {size: _make_window_query(size) for size in WINDOW_SIZES}
_READ_WINDOW_ON_TRANSPORT = {size: _make_window_query(size, ~is_taken(FreeVlanRow.vlan)) for size in WINDOW_SIZES}
"""These queries omit the VLAN IDs in use on the transport before the limit applies."""


@dataclass(frozen=True, slots=True)
class NetworkIds:
    """The IDs of a network: its transport, its VLAN ID at each site, sorted by site, and its service ID."""

    transport: Transport | None
    vlans: Mapping[Name, VlanId]
    service: int | None

    @property
    def transport_name(self) -> Name | None:
        """The transport's name, or None for a single site."""
        return None if self.transport is None else self.transport.name


def can_see_none(_owner: str) -> bool:
    """Return False for every owner."""
    return False


def allocate_network_ids(
    unit: Unit, topology: Topology, spec: ClusterSpec, reserved: ReservedVlans, sees: CanSeeOwner = can_see_none
) -> NetworkIds:
    """Choose the IDs of a new cluster. Change nothing.

    Raise NoSuchHost for an unknown host, and NotFound for an unknown site. Raise Conflict if no transport connects the
    sites. Raise VlanNotInPool if a site's pool lacks the requested VLAN ID. Raise NoVlanFree if the requested VLAN ID
    is not free, or if no VLAN ID or no service ID is free. A VLAN ID of another network on a VLAN-separated transport
    is not free at any site (:mod:`.transport_vlans`). The message names another cluster with the requested VLAN ID only
    if ``sees(owner)``.

    Also raise NoVlanFree while an unchecked element could carry the VLAN ID after a restore
    (:mod:`sbf_service.store.elements.unchecked_elements`).
    """
    transport = choose_transport(topology, spec.all_hosts, spec.sites)
    sites = find_sites(topology, spec.all_hosts, spec.sites)
    check_sites_checked(unit, topology, sites, transport)
    if spec.vlan is None:
        vlans = allocate_longest_unused(unit, sites, reserved, transport)
    else:
        vlans = allocate_requested(unit, sites, spec.vlan, reserved, sees)
        remedy = "; omit the VLAN ID: SBF then chooses a VLAN ID that is free on the transport"
        check_not_taken(unit, transport, spec.vlan, sees, f"VLAN {spec.vlan}", remedy=remedy)
    has_services = transport is not None and transport.services
    service = choose_service_id(unit, transport) if has_services else None
    return NetworkIds(transport, dict(sorted(vlans.items())), service)


def allocate_longest_unused(
    unit: Unit, sites: Sequence[Site], reserved: ReservedVlans, transport: Transport | None
) -> dict[Name, VlanId]:
    """Choose VLAN IDs by the rule of :func:`allocate_vlan_ids`. Raise NoVlanFree if no VLAN ID is free.

    The VLAN IDs may differ if the transport translates VLAN IDs. If the fast allocation finds no VLAN ID, or if there
    are too many sites for it, read all VLAN IDs of the sites and of the transport.
    """
    translates, vlan_separated = transport is not None and transport.translates, find_vlan_separated(transport)
    if len(sites) <= MAX_INDEXED_SITES:
        excluded = {site.name: find_excluded_vlans(unit, site, reserved) for site in sites}

        def find_oldest(names: Sequence[Name]) -> VlanId | None:
            return _find_longest_unused(unit, names, excluded, vlan_separated)

        if vlans := choose_vlan_ids([site.name for site in sites], find_oldest, translates=translates):
            return vlans
    pools, on_transport = read_site_pools(unit, sites, reserved), read_transport_vlans(unit, transport)
    return allocate_vlan_ids(pools, translates=translates, on_transport=on_transport)


def allocate_requested(
    unit: Unit, sites: Sequence[Site], vlan: VlanId, reserved: ReservedVlans, sees: CanSeeOwner
) -> dict[Name, VlanId]:
    """Return the requested VLAN ID for each site.

    Raise VlanNotInPool if a site's pool lacks the VLAN ID. Raise NoVlanFree if the VLAN ID is not free at a site.
    """
    pools = read_site_pools(unit, sites, reserved)
    for pool in pools:
        if vlan not in pool.vlans:
            raise VlanNotInPool(
                f"VLAN {vlan} is not in the pool of site {pool.site} ({pool.vlans or 'none'}): {describe_choice(pool)}"
            )
    for pool in pools:
        if vlan not in pool.free:
            reason = describe_unavailable(unit, pool, vlan, sees)
            raise NoVlanFree(f"VLAN {vlan} is not free at site {pool.site}: {reason}; {describe_choice(pool)}")
    return {site.name: vlan for site in sites}


def check_not_taken(  # noqa: PLR0913, PLR0917 - the parameters of the message
    unit: Unit,
    transport: Transport | None,
    vlan: VlanId,
    sees: CanSeeOwner,
    subject: str,
    network: str = "",
    remedy: str = "",
) -> None:
    """Raise NoVlanFree if a network other than ``network`` has a VLAN ID on a transport.

    Do nothing unless the transport is VLAN-separated (:mod:`.transport_vlans`). The message begins with ``subject`` and
    ends with ``remedy``.
    """
    if transport is not None and (user := find_vlan_user(unit, transport, vlan, network)) is not None:
        raise NoVlanFree(
            f"{subject} is not free on transport {transport.name}, which separates clusters only by their VLAN IDs: "
            f"{_describe_holder(user.cluster, sees)} at site {user.site}{remedy}"
        )


def describe_unavailable(unit: Unit, pool: SitePool, vlan: VlanId, sees: CanSeeOwner) -> str:
    """Return the reason why a VLAN ID is not free at a site."""
    if vlan not in pool.vlans:
        return f"the VLAN ID is not in the pool of the site ({pool.vlans or 'none'})"
    holder = select(ClusterRow).join(ClaimRow, ClaimRow.cluster_id == ClusterRow.id)
    row = unit.session.scalars(holder.where(ClaimRow.site == pool.site, ClaimRow.vlan == vlan)).first()
    if row is None:
        return _describe_other_use(unit, pool.site, vlan) or "a device of the site reserves the VLAN ID"
    return _describe_holder(row, sees)


def _describe_holder(row: ClusterRow, sees: CanSeeOwner) -> str:
    cluster = f"cluster {row.key} of {row.owner}" if sees(row.owner) else "another cluster"
    return f"the VLAN ID is in quarantine after {cluster}" if row.quarantined else f"{cluster} uses the VLAN ID"


def _describe_other_use(unit: Unit, site: str, vlan: int) -> str | None:
    of_vlan = ForeignVlanRow.site == site, ForeignVlanRow.vlan == vlan
    row = unit.session.scalars(select(ForeignVlanRow).where(*of_vlan).limit(1)).first()
    if row is None:
        return None
    found = ForeignVlan(vlan=VlanId(row.vlan), name=row.name, ports=tuple(json.loads(row.ports)))
    return f"the VLAN is in other use on {row.element}: {found.use}"


def _find_longest_unused(
    unit: Unit, sites: Sequence[Name], excluded: Mapping[Name, VlanSet], vlan_separated: Transport | None
) -> VlanId | None:
    """Return the VLAN ID that is free at all sites and has been unused for the longest time, or None.

    The VLAN ID must also be free on the transport ``vlan_separated``, if there is one. A VLAN ID counts as used until
    its latest release at any of the sites.
    """
    unavailable = frozenset[int]().union(*(excluded[site] for site in sites))
    for size in WINDOW_SIZES:
        windows = []
        for site in sites:
            windows.append(_read_window(unit, site, sites, unavailable, size, vlan_separated))
            if (first := windows[-1].first) and first[0] == NEVER_USED:
                return VlanId(first[1])
        first = min((window.first for window in windows if window.first), default=None)
        if all(window.last is None or (first is not None and first <= window.last) for window in windows):
            return None if first is None else VlanId(first[1])
    return None


@dataclass(frozen=True, slots=True)
class _FreeWindow:
    """Some free VLAN IDs of a site, as pairs of release time and VLAN ID.

    ``first`` is the first pair that can be chosen, or None. ``last`` is the last pair that was read, or None if all
    free VLAN IDs were read.
    """

    first: tuple[datetime, int] | None
    last: tuple[datetime, int] | None


def _read_window(  # noqa: PLR0913, PLR0917 - the parameters of the query
    unit: Unit, site: Name, sites: Sequence[Name], excluded: frozenset[int], size: int, vlan_separated: Transport | None
) -> _FreeWindow:
    parameters: dict[str, object] = {"site": site, "sites": list(sites)}
    query = _READ_WINDOW[size]
    if vlan_separated is not None:
        query, parameters = _READ_WINDOW_ON_TRANSPORT[size], parameters | {"transport": vlan_separated.name}
    rows = unit.connection.execute(query, parameters).all()
    free = ((since, vlan) for since, vlan, count in rows if count == len(sites) and vlan not in excluded)
    return _FreeWindow(next(free, None), (rows[-1][0], rows[-1][1]) if len(rows) == size else None)


def read_site_pools(unit: Unit, sites: Sequence[Site], reserved: ReservedVlans) -> list[SitePool]:
    """Return the pool of each site, in the order of ``sites``."""
    names = {"sites": [site.name for site in sites]}
    pools = {name: pool for name, pool in unit.connection.execute(_READ_POOLS, names)}  # noqa: C416 - dict() would call the result's keys() method
    claimed = _parse_vlans(unit.connection.execute(_READ_CLAIMS, names))
    quarantined = _parse_vlans(unit.connection.execute(_READ_QUARANTINED, names))
    freed: dict[str, dict[VlanId, datetime]] = defaultdict(dict)
    for site, vlan, since in unit.connection.execute(_READ_FREED, names):
        freed[site][VlanId(vlan)] = since
    foreign = read_foreign_vlans(unit, names["sites"])
    return [
        SitePool(
            site=site.name,
            vlans=pools[site.name],
            claimed=claimed.get(site.name, NO_VLANS) - quarantined.get(site.name, NO_VLANS),
            quarantined=quarantined.get(site.name, NO_VLANS),
            excluded=find_excluded_vlans(unit, site, reserved),
            foreign=foreign.get(site.name, NO_VLANS),
            freed=freed.get(site.name, {}),
        )
        for site in sites
    ]


def _parse_vlans(rows: Iterable[tuple[str, str]]) -> dict[str, VlanSet]:
    return {site: VlanSet(map(int, joined.split(","))) for site, joined in rows}


def find_excluded_vlans(unit: Unit, site: Site, reserved: ReservedVlans) -> VlanSet:
    """Return the VLAN IDs that clusters cannot use at a site. The result is cached for each version of the topology."""
    key = unit.topology_version, site.name
    excluded = unit.cache.excluded.get(key)  # another thread may remove the key at any time
    if excluded is None or TOPOLOGY_TOPIC in unit.changed:
        excluded = find_excluded(frozenset(reserved(device) for device in site.devices))
        if TOPOLOGY_TOPIC not in unit.changed:
            unit.cache.excluded[key] = excluded
    return excluded
