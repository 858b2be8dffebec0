"""What a new topology may not take away: elements and ports that a cluster uses, or that may still carry it."""

from collections.abc import Iterable, Iterator

from sqlalchemy import select

from sbf_service.store.carried import circuits_carried, ports_carried
from sbf_service.store.session import Unit
from sbf_service.store.standing import UNSETTLED, clusters_where, parts_of
from sbf_service.store.tables import ElementRow
from sbf_service.store.transports import detached, transport_faults
from sbf_service.wanted import LiveCluster, ports_for
from virtcloud.model.element import kind_of
from virtcloud.model.errors import Conflict
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortRef
from virtcloud.model.views import Progress


def refuse_loss(unit: Unit, former: Topology, topology: Topology, live: Iterable[LiveCluster]) -> None:
    """Raise :class:`Conflict` that names what would vanish and who needs it."""
    for fault in _faults(unit, former, topology, live):
        raise Conflict(fault)


def _lost_sites(topology: Topology, live: Iterable[LiveCluster]) -> Iterator[str]:
    """Name networks that reach a site where nothing may carry them yet."""
    known = {site.name for site in topology.sites}
    for cluster in live:
        for site in (one for one in cluster.network.spec.sites if one not in known):
            yield f"cluster {cluster.network.key} is to reach site {site}, which would vanish: end the cluster first"


def _faults(unit: Unit, former: Topology, topology: Topology, live: Iterable[LiveCluster]) -> Iterator[str]:
    yield from transport_faults(unit, former, topology)
    yield from _lost_sites(topology, live)
    yield from detached(topology, live)
    for element, user in _needed_elements(unit):
        if _is_lost(former, topology, element):
            yield f"{user} needs {element}, which would vanish or change its kind or site: end the cluster first"
    for port, user in _needed_ports(unit, former, live):
        if port.element in topology.elements and port.port not in topology.elements[port.element].ports:
            yield f"{user} needs port {port}, which would vanish: end the cluster first"


def _needed_elements(unit: Unit) -> Iterator[tuple[Name, str]]:
    rows = clusters_where(unit, UNSETTLED)
    parts = parts_of(unit, [row.id for row in rows])
    for row in rows:
        for part in parts.get(row.id, ()):
            if part.progress is not Progress.REMOVED:
                yield part.element, f"cluster {row.key} ({row.state})"


def _needed_ports(unit: Unit, former: Topology, live: Iterable[LiveCluster]) -> Iterator[tuple[PortRef, str]]:
    for cluster in live:
        for port in sorted(ports_for(former, cluster)):
            yield port, f"cluster {cluster.key}"
    for row in unit.session.scalars(select(ElementRow).where(ElementRow.present).order_by(ElementRow.name)):
        for name, vlans in (ports_carried(row) or {}).items():
            if vlans:
                yield PortRef(f"{row.name}:{name}"), f"VLAN {vlans}, last seen there,"
        for one in circuits_carried(row) or ():
            yield PortRef(f"{row.name}:{one.port}"), f"VLAN {one.vlan}, last seen there,"


def _is_lost(former: Topology, topology: Topology, element: Name) -> bool:
    if element not in topology.elements:
        return True
    before, after = former.site_of[element].name, topology.site_of[element].name
    return before != after or kind_of(former.element(element)) is not kind_of(topology.element(element))
