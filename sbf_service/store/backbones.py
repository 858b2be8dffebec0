"""Which transports an edge has to do with: those it is attached to, and those of which it may still carry something."""

from sqlalchemy import select

from sbf_service.edges import transports_at
from sbf_service.store.carried import circuits_carried
from sbf_service.store.revisions import element_row
from sbf_service.store.session import Unit
from sbf_service.store.standing import UNSETTLED, on_element
from sbf_service.store.tables import ClusterRow
from virtcloud.model.topology import Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name


def transports_on(unit: Unit, topology: Topology, edge: Name) -> tuple[Transport, ...]:
    """Give them in the topology's order: what was taken to another edge is still cleaned away on this one."""
    clusters = select(ClusterRow.transport).where(UNSETTLED, on_element(edge))
    carried = {one.transport for one in circuits_carried(element_row(unit, edge)) or ()}
    names = {one.name for one in transports_at(topology, edge)} | carried | set(unit.session.scalars(clusters))
    return tuple(one for one in topology.transports if one.on_edges and one.name in names)
