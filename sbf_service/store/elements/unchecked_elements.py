"""Unchecked elements: elements that SBF has not read since the database was restored (docs/decisions/0073).

An unchecked element may carry unknown clusters, with VLAN IDs that are free or claimed in the database. While a site
has an unchecked element:

* No network gets an additional VLAN ID at the site. If the element is a device, no network that uses a transport of the
  site gets an additional VLAN ID at any site.
* If the element is a device, the site's pool loses no VLAN ID.
* Each network with a VLAN ID at the site is *held*. If the element is a device, each network that uses a transport of
  the site is held, too. Elements keep their existing configuration of a held network, but add no configuration of this
  network.

An element is checked as soon as it confirms its wanted state, unless it reports unknown clusters that it could not
remove. An administrator can also declare the element clean or remove it from the topology.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from sqlalchemy import ColumnElement, Row, bindparam, or_, select, union

from sbf_service.domain.ownership import ALL_VLAN_IDS
from sbf_service.store.clusters.transitions import ON_ELEMENT, increment_versions
from sbf_service.store.elements.revisions import increment_revisions, require_element
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.columns import equals_any, split_ids
from sbf_service.store.tables.tables import IS_RECONCILED, ElementRow
from sbf_service.store.tables.vlan_tables import ClaimRow
from sbf_service.store.topology.current_topology import read_cached_version, read_topology
from sbf_service.store.unit_of_work import TOPOLOGY_TOPIC, Unit, record_audit
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.errors import Conflict, NoVlanFree
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Site
from virtcloud.model.transport import Transport
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import UNCHECKED_NETWORK, HostWanted

MAX_NAMES = 5
NOT_READ = "not read since the database was restored from a backup of"
"""The beginning of the error report of an unchecked element that SBF has not tried to read since the restore."""
DECLARED_CLEAN = "declared clean; it has not confirmed its wanted state since"
REMEDY = (
    "wait until these elements have confirmed their wanted state (virtcloud element list), or, if an element will "
    "never return, declare it clean (virtcloud element clean NAME --reason TEXT)"
)
_READ_UNCHECKED = (
    select(ElementRow.name, ElementRow.site, ElementRow.kind)
    .where(ElementRow.unchecked, IS_RECONCILED)
    .order_by(ElementRow.name)
)


def check_sites_checked(unit: Unit, topology: Topology, sites: Iterable[Site], transport: Transport | None) -> None:
    """Raise NoVlanFree if a new network at these sites could get a VLAN ID that an unchecked element still carries."""
    unchecked = _read_unchecked(unit)
    if not unchecked:
        return
    names = {site.name for site in sites}
    attached = _list_attached_sites(topology, {transport.name}) if transport else frozenset()
    found = [row for row in unchecked if row.site in names or (row.kind in DEVICE_KINDS and row.site in attached)]
    if found:
        raise NoVlanFree(
            f"the database was restored from a backup, and these elements may still carry clusters that the backup "
            f"does not contain: {_join_names(found)}: {REMEDY}"
        )


def check_devices_checked(unit: Unit, site: str, vlans: VlanSet) -> None:
    """Raise Conflict if an unchecked device of a site may still carry one of these VLAN IDs.

    If the site's pool lost such a VLAN ID, SBF would not remove the VLAN from the device.
    """
    rows = _read_unchecked(unit) if vlans else ()
    found = [row for row in rows if row.site == site and row.kind in DEVICE_KINDS]
    if found:
        raise Conflict(
            f"pool of {site}: the new pool lacks VLAN IDs {vlans}. The database was restored from a backup, and these "
            "elements may still carry these VLAN IDs for clusters that the backup does not contain: "
            f"{_join_names(found)}: {REMEDY}"
        )


def _read_unchecked(unit: Unit) -> Sequence[Row[str, str, str]]:
    """Return the names, sites and kinds of unchecked elements.

    If there are none, do not query the database again for this version of the topology.
    """
    version = read_cached_version(unit)
    if version in unit.cache.checked:
        return ()
    rows = unit.connection.execute(_READ_UNCHECKED).all()
    if not rows and TOPOLOGY_TOPIC not in unit.changed:
        unit.values.checked_version = version
    return rows


def _join_names(rows: Sequence[Any]) -> str:
    more = f" and {len(rows) - MAX_NAMES} others" if len(rows) > MAX_NAMES else ""
    return ", ".join(row.name for row in rows[:MAX_NAMES]) + more


def _list_attached_sites(topology: Topology, transports: Collection[str]) -> frozenset[str]:
    attachments = ((site.name, attachment.transport) for site in topology.sites for attachment in site.attachments)
    return frozenset(site for site, transport in attachments if transport in transports)


def read_held_networks(unit: Unit) -> frozenset[str]:
    """Return the IDs of the clusters that created the held networks.

    A network is held if it has a VLAN ID at the site of an unchecked element, or if its transport is attached to the
    site of an unchecked device.
    """
    unchecked = _read_unchecked(unit)
    if not unchecked:
        return frozenset()
    sites = {row.site for row in unchecked}
    device_sites = {row.site for row in unchecked if row.kind in DEVICE_KINDS}
    topology = read_topology(unit)
    attachments = ((site.name, attachment.transport) for site in topology.sites for attachment in site.attachments)
    transports = {transport for site, transport in attachments if site in device_sites}
    claimed = select(ClaimRow.cluster_id).where(ClaimRow.site.in_(sites))
    connected = (
        select(ClaimRow.cluster_id)
        .join(ClusterRow, ClusterRow.id == ClaimRow.cluster_id)
        .where(ClusterRow.transport.in_(transports))
    )
    return frozenset(unit.connection.execute(union(claimed, connected)).scalars())


_READ_VLANS = select(ClaimRow.vlan, ClaimRow.cluster_id).where(ClaimRow.site == bindparam("at"))


def read_held_vlans(unit: Unit, site: str) -> VlanSet:
    """Return the VLAN IDs of held networks at a site."""
    held = read_held_networks(unit)
    if not held:
        return VlanSet()
    claims = unit.connection.execute(_READ_VLANS, {"at": site}).all()
    return VlanSet(claim.vlan for claim in claims if claim.cluster_id in held)


def mark_held_segments(unit: Unit, _name: str, wanted: HostWanted) -> HostWanted:
    """Add the requirement UNCHECKED_NETWORK to a host's segments of held networks.

    An agent keeps existing segments with this requirement, but creates no new segment with this requirement.
    """
    held = read_held_networks(unit)
    if not held:
        return wanted
    return wanted.model_copy(
        update={
            "segments": tuple(
                segment.model_copy(update={"requires": (*segment.requires, UNCHECKED_NETWORK)})
                if segment.id in held
                else segment
                for segment in wanted.segments
            )
        }
    )


def mark_checked(unit: Unit, row: ElementRow) -> None:
    """Record that an element is checked. Idempotent.

    This unit locks everything: if two elements that hold one network were checked at the same time, neither unit would
    see the end of the hold.
    """
    if row.unchecked:
        unit.require_everything()
        with releasing_networks(unit):
            row.unchecked = False


@contextmanager
def releasing_networks(unit: Unit) -> Iterator[None]:
    """Increment the revisions of the elements that wait for a network whose hold ends within the context.

    These are the devices that have not set up the network completely, and all hosts and gateways of the network, whose
    wanted documents change.
    """
    before = read_held_networks(unit)
    yield
    if not before:
        return
    unit.session.flush()
    freed = before - read_held_networks(unit)
    if freed:
        waiting = (unit.session.scalars(_READ_WAITING, {"freed": group}).all() for group in split_ids(sorted(freed)))
        increment_revisions(unit, chain.from_iterable(waiting))


def _is_of(ids: Any) -> ColumnElement[bool]:  # noqa: ANN401 - a parameter of SQLAlchemy
    return or_(ClusterRow.id.in_(ids), ClusterRow.network.in_(ids))


_READ_WAITING = (
    select(PlacementRow.element)
    .join(ClusterRow, ClusterRow.id == PlacementRow.cluster_id)
    .join(ElementRow, ElementRow.name == PlacementRow.element)
    .where(or_(PlacementRow.blocked, ~equals_any(ElementRow.kind, DEVICE_KINDS)))
    .where(PlacementRow.removed_revision.is_(None), _is_of(bindparam("freed", expanding=True)))
    .distinct()
)


def declare_element_clean(unit: Unit, name: str, reason: str) -> None:
    """Accept an administrator's declaration that nobody needs unknown clusters on an element. Idempotent.

    From a device, SBF then deletes each VLAN or circuit with SBF's name (``domain/ownership.py``), whatever its VLAN
    ID. Raise NotFound for an unknown element.
    """
    row = require_element(unit, name)
    has_unknown = row.kind in DEVICE_KINDS and row.known_vlans != ALL_VLAN_IDS
    if row.unchecked or has_unknown:
        record_audit(unit, "element_said_clean", element=name, why=reason)
    if (row.trouble or "").startswith(NOT_READ):
        row.trouble = DECLARED_CLEAN
        increment_versions(unit, ON_ELEMENT, element=name)
    if has_unknown:
        row.known_vlans = ALL_VLAN_IDS
        unit.session.flush()
        increment_revisions(unit, [name])
    mark_checked(unit, row)
