"""Checks of the ports that a new topology removes, attaches to another transport, or gives another access link.

A port may carry VLANs of clusters that no longer need it, until its switch or edge has confirmed the removal. SBF knows
these VLANs from the last observed state, which may lack VLANs while the device has unsaved changes.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import BindParameter, bindparam, select

from sbf_service.domain.network_conflicts import QUARANTINE_REMEDY
from sbf_service.domain.paths import LiveCluster, find_cluster_ports
from sbf_service.domain.topology_change import TopologyChange, join_faults
from sbf_service.store.elements.observed_state import parse_observed_circuits, parse_observed_ports
from sbf_service.store.networks.networks import read_clusters_on
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import NAME_TYPE, equals_any, split_ids
from sbf_service.store.tables.tables import ElementRow, SiteRow
from sbf_service.store.tables.vlan_tables import ClaimRow
from sbf_service.store.topology.topology_elements import is_other_device
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlans.pools import read_cluster_keys
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element import Switch
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Attachment, Site
from virtcloud.model.values import Name, PortRef, VlanId
from virtcloud.model.vlans import VlanSet

OR_REMOVE = (
    ", or, if the device will never return, end the clusters on it, declare their VLAN IDs clean, and remove the "
    "device from the topology in the same change"
)
_TRANSPORT = bindparam("transport", type_=NAME_TYPE)
_AT_SITE = ClaimRow.site == bindparam("site", type_=NAME_TYPE)
_READ_USERS = (
    select(ClusterRow)
    .join(ClaimRow, ClaimRow.cluster_id == ClusterRow.id)
    .where(_AT_SITE, ClaimRow.transport == _TRANSPORT)
    .order_by(ClusterRow.key)
)
_READ_ENDING = _READ_USERS.where(~equals_any(ClusterRow.state, WANTED_STATES))
_READ_OTHER_VLANS = select(ClaimRow.vlan).where(_AT_SITE, ClaimRow.transport.is_distinct_from(_TRANSPORT))
"""The VLAN IDs of a site's networks on other transports, and of networks without a transport."""
_NAMES: BindParameter[Any] = bindparam("names", expanding=True)
_READ_CLAIMED_SITES = select(SiteRow.name).where(
    SiteRow.name.in_(_NAMES), select(ClaimRow.vlan).where(ClaimRow.site == SiteRow.name).exists()
)
_READ_ELEMENTS = select(ElementRow).where(ElementRow.name.in_(_NAMES)).order_by(ElementRow.name)


def list_reattached_ports(unit: Unit, former: Topology, topology: Topology, sites: Iterable[Name]) -> Iterator[str]:
    """Yield an error for each port that would pass the VLAN of a network to a transport that the network does not use.

    SBF reserves the VLAN ID of a network only on the network's own transport (decision 96). A newly attached switch
    port may carry a network's VLAN in these cases:

    - The port was attached to the network's transport.
    - The VLAN was last observed on the port. The port can also have lost its attachment in an earlier topology.
    - The switch has unsaved changes, so that the recorded observed state may lack VLANs.

    Networks whose transport has no port at the site any more are considered only while they are ending:
    :func:`.topology_losses.list_detached_clusters` finds the networks of running clusters.
    """
    attached = [
        (site, one)
        for site in (topology.sites_by_name[name] for name in sorted(topology.sites_by_name.keys() & set(sites)))
        for one in site.attachments
        if one.transport not in _list_former_transports(former, site.name, one.port)
        and not topology.transport(one.transport).on_edges
    ]
    rows = _read_elements(unit, {one.port.element for _, one in attached})
    for site, one in attached:
        users = list(_list_former_users(unit, former, site, one))
        yield from users or _list_other_vlans(unit, rows.get(one.port.element), site.name, one)


def _list_former_transports(former: Topology, site: Name, port: PortRef) -> list[Name]:
    attachments = former.sites_by_name[site].attachments if site in former.sites_by_name else ()
    return [one.transport for one in attachments if one.port == port]


def _list_former_users(unit: Unit, former: Topology, site: Site, new: Attachment) -> Iterator[str]:
    for transport in _list_former_transports(former, site.name, new.port):
        if former.transport(transport).on_edges:
            continue
        is_kept = transport in {one.transport for one in site.attachments}
        query = _READ_USERS if is_kept else _READ_ENDING
        for row in unit.session.scalars(query, {"site": site.name, "transport": transport}):
            remedy = QUARANTINE_REMEDY if row.quarantined else "wait until the cluster has ended"
            if row.state in WANTED_STATES:
                remedy = "first remove the port's attachment, and attach the port when the switch has removed the VLAN"
            yield (
                f"cluster {row.key} ({row.state}) may still use transport {transport} at site {site.name}, and port "
                f"{new.port} would become a port of transport {new.transport}: {remedy}"
            )


def _list_other_vlans(unit: Unit, switch: ElementRow | None, site: Name, new: Attachment) -> Iterator[str]:
    """Yield an error if a newly attached port may carry the VLAN of a network that does not use the transport.

    ``switch`` is the row of the port's switch, or None for a new switch.
    """
    ports = {} if switch is None else parse_observed_ports(switch) or {}
    seen, is_unsaved = ports.get(new.port.port, VlanSet()), switch is not None and switch.unsaved_since is not None
    if not seen and not is_unsaved:
        return
    others = VlanSet(unit.connection.scalars(_READ_OTHER_VLANS, {"site": site, "transport": new.transport}))
    networks = f"networks that do not use transport {new.transport}"
    if found := seen & others:
        yield (
            f"VLAN {found} of {networks} was last observed on port {new.port}, which would become a port of this "
            "transport: remove the port's former use, and attach the port when the switch has removed the VLAN"
        )
    elif is_unsaved and others:
        yield (
            f"switch {new.port.element} has unsaved changes, so port {new.port}, which would become a port of "
            f"transport {new.transport}, may carry VLANs of {networks}: attach the port when the switch has saved the "
            f"changes{OR_REMOVE}"
        )


def list_lost_ports(unit: Unit, change: TopologyChange, live: Iterable[LiveCluster]) -> Iterator[str]:
    """Yield an error for each port that the new topology lacks and that a cluster uses or may still use."""
    if not change.lost_ports:
        return
    rows = _read_elements(unit, {port.element for port in change.lost_device_ports})
    used: set[PortRef] = set()
    for port, use in _list_port_uses(change, live, rows.values()):
        if port in change.lost_ports:
            used.add(port)
            yield f"{use} port {port}, which would vanish: end the cluster first"
    unsaved = _find_unsaved(unit, change, rows.values())
    for port in sorted(port for port in change.lost_device_ports - used if port.element in unsaved):
        row = rows[port.element]
        yield (
            f"{row.kind} {row.name} has unsaved changes, so port {port}, which would vanish, may carry VLANs of "
            f"clusters: remove the port when the {row.kind} has saved the changes{OR_REMOVE}"
        )


def check_access_links_kept(unit: Unit, change: TopologyChange) -> None:
    """Raise Conflict if the link of an access port changes while the port may still carry a cluster's VLAN.

    The former link, the new link, or both are access links. Until SBF has configured the switch, guests of another
    cluster at the new end could receive the frames of this VLAN.
    """
    changed = [port for port in sorted(_list_access_ports(change)) if _has_other_link(change, port)]
    rows = _read_elements(unit, {port.element for port in changed})
    users = read_clusters_on(unit, map(Name, rows)) if changed else []
    keys = {site: read_cluster_keys(unit, site) for site in sorted({row.site for row in rows.values()})}
    observed = {name: parse_observed_ports(row) or {} for name, row in rows.items()}
    unsaved = _find_unsaved(unit, change, rows.values())
    faults: list[str] = []
    for port in changed:
        site = rows[port.element].site
        if seen := observed[port.element].get(port.port, VlanSet()) & keys[site].keys():
            others = seen.difference(_list_staying_vlans(change.topology, port, Name(site), users))
            faults += (_describe_observed(vlan, keys[site][vlan], port) for vlan in sorted(others))
        elif port in change.former.peers and port.element in unsaved:
            faults.append(
                f"switch {port.element} has unsaved changes, so port {port}, whose access link would change, may carry "
                f"VLANs of clusters: change the link when the switch has saved the changes{OR_REMOVE}"
            )
    if faults:
        raise Conflict(join_faults(faults))


def _list_access_ports(change: TopologyChange) -> set[PortRef]:
    ports = change.former.access_ports | change.topology.access_ports
    if not ports:
        return set()  # the search for the switches would compare every element of a large topology
    before, after = change.former.elements, change.topology.elements
    switches = {
        name
        for name in change.common_elements
        if isinstance(after[name], Switch) and not is_other_device(before[name], after[name])
    }
    return {port for port in ports if port.element in switches and port.port in after[port.element].ports}


def _has_other_link(change: TopologyChange, port: PortRef) -> bool:
    before, after = ((one.peers.get(port), port in one.access_ports) for one in (change.former, change.topology))
    return before != after


def _list_staying_vlans(
    topology: Topology, port: PortRef, site: Name, users: Iterable[LiveCluster]
) -> set[VlanId | None]:
    return {one.vlans.get(site) for one in users if not one.quarantined and _uses(topology, one, port)}


def _describe_observed(vlan: VlanId, key: str, port: PortRef) -> str:
    return (
        f"VLAN {vlan} of cluster {key} was last observed on port {port}, whose access link would change: end the "
        f"cluster if it still runs, and change the link when the switch has removed the VLAN{OR_REMOVE}"
    )


def _uses(topology: Topology, cluster: LiveCluster, port: PortRef) -> bool:
    try:
        return port in find_cluster_ports(topology, cluster)
    except (Conflict, NotFound):
        return False


def _find_unsaved(unit: Unit, change: TopologyChange, rows: Iterable[ElementRow]) -> set[str]:
    before, after = change.former.elements, change.topology.elements
    unsaved = [
        row
        for row in rows
        if row.kind in DEVICE_KINDS  # a host's row can have the pending save of a former switch of this name
        and row.unsaved_since is not None
        and not is_other_device(before[Name(row.name)], after[Name(row.name)])
    ]
    sites = split_ids(sorted({row.site for row in unsaved}))
    claimed = {site for group in sites for site in unit.connection.scalars(_READ_CLAIMED_SITES, {"names": group})}
    return {row.name for row in unsaved if row.site in claimed}


def _list_port_uses(
    change: TopologyChange, live: Iterable[LiveCluster], rows: Iterable[ElementRow]
) -> Iterator[tuple[PortRef, str]]:
    """Yield each port in use, and a text about its use. In a message, the port follows this text."""
    for cluster in live:
        for port in sorted(find_cluster_ports(change.former, cluster)):
            yield port, f"cluster {cluster.key} needs"
    for row in rows:
        for name, vlans in (parse_observed_ports(row) or {}).items():
            if vlans:
                yield PortRef(f"{row.name}:{name}"), f"VLAN {vlans} was last observed on"
        for circuit in parse_observed_circuits(row) or ():
            yield PortRef(f"{row.name}:{circuit.port}"), f"VLAN {circuit.vlan} was last observed on"


def _read_elements(unit: Unit, names: Iterable[Name]) -> dict[str, ElementRow]:
    groups = split_ids(sorted(names))
    return {row.name: row for group in groups for row in unit.session.scalars(_READ_ELEMENTS, {"names": group})}
