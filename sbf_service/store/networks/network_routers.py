"""Gateways that are routers of networks: their choice, their replacement, and their description in wanted documents.

If the agent of a network's router becomes stale, SBF chooses another gateway of the network.
"""

from collections.abc import Iterable, Mapping

from sqlalchemy import bindparam, insert, or_, select, update

from sbf_service.domain.gateway_access import OUTSIDE_LINK, add_routers, describe_lost_link, make_router
from sbf_service.store.clusters.cluster_documents import parse_current_spec
from sbf_service.store.clusters.cluster_queries import find_clusters
from sbf_service.store.clusters.transitions import ClusterSelection, increment_versions
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.networks.cluster_gateways import find_alive_gateways, read_cluster_gateways
from sbf_service.store.networks.gateway_addresses import assign_possible_addresses, ensure_gateway_addresses
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import NAME_TYPE, equals_any, split_ids
from sbf_service.store.tables.gateway_tables import NetworkRouterRow, OutsideUseRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.tables.vpn_tables import ClusterGatewayRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.wanted import HostWanted

_READ = select(NetworkRouterRow.network_id).where(NetworkRouterRow.gateway == bindparam("gateway"))
_READ_OF = _READ.where(NetworkRouterRow.network_id.in_(bindparam("networks", type_=NAME_TYPE, expanding=True)))
_READ_GATEWAYS = select(NetworkRouterRow.network_id, NetworkRouterRow.gateway).where(
    NetworkRouterRow.network_id.in_(bindparam("networks", type_=NAME_TYPE, expanding=True))
)
_OF_ROUTER = ClusterSelection(or_(ClusterRow.id.in_(_READ), ClusterRow.network.in_(_READ)))
_READ_ROUTERS = (
    select(NetworkRouterRow.gateway, ElementRow.reachable)
    .join(ElementRow, ElementRow.name == NetworkRouterRow.gateway)
    .join(ClusterGatewayRow, ClusterGatewayRow.cluster_id == NetworkRouterRow.network_id)
    .where(ClusterGatewayRow.gateway == bindparam("gateway"))
    .distinct()
)
_REPLACE = (
    update(NetworkRouterRow)
    .where(NetworkRouterRow.network_id == bindparam("network"))
    .values(gateway=bindparam("new_gateway"))
)
_DELETE_NAMES = (
    update(OutsideUseRow)
    .where(OutsideUseRow.network_id == bindparam("network"), OutsideUseRow.gateway == bindparam("former"))
    .values(names=None)
)


def start_router(unit: Unit, network: ClusterRow, gateways: Iterable[Name]) -> None:
    """Choose a router for a new network, and assign addresses to all ``gateways`` that have a link to the outside."""
    candidates = _list_candidates(read_topology(unit), gateways)
    for gateway in candidates:
        ensure_gateway_addresses(unit, network, gateway)
    unit.connection.execute(insert(NetworkRouterRow), {"network_id": network.id, "gateway": candidates[0]})
    increment_revisions(unit, candidates[:1])


def replace_routers(unit: Unit, gateway: Name) -> None:
    """Choose another router for each network whose router is ``gateway``.

    Call this if the gateway's agent is stale, or if the gateway has no link to the outside. The new router is another
    gateway of the network with a link to the outside, with an agent that is not stale, and with addresses in the
    network. The gateway may get these addresses now. If there is no such gateway, the router stays the same. Delete the
    FQDNs in the latest report of a replaced router, whose agent may send no further report about the network.
    """
    networks = unit.connection.execute(_READ, {"gateway": gateway}).scalars().all()
    alive = find_alive_gateways(unit) - {gateway} if networks else frozenset()
    wanted = ClusterRow.id.in_(networks), equals_any(ClusterRow.state, WANTED_STATES)
    for row in find_clusters(unit, *wanted) if alive else ():
        gateways = read_cluster_gateways(unit, [row.id]).get(row.id, ())
        others = [name for name in _list_candidates(read_topology(unit), gateways) if name in alive]
        new = next((name for name in others if assign_possible_addresses(unit, row, name)), None)
        if new is not None:
            unit.connection.execute(_REPLACE, {"network": row.id, "new_gateway": new})
            unit.connection.execute(_DELETE_NAMES, {"network": row.id, "former": gateway})
            increment_revisions(unit, [gateway, new])
            record_audit(unit, "router_replaced", element=gateway, why=f"{new} replaces {gateway}", cluster_id=row.id)


def announce_link(unit: Unit, gateway: Name) -> None:
    """Increment the versions of the clusters whose router is ``gateway``.

    Their views show whether the gateway has a link to the outside.
    """
    increment_versions(unit, _OF_ROUTER, gateway=gateway)


def describe_lost_routers(unit: Unit, networks: Iterable[str]) -> Mapping[str, str]:
    """Return the fault of each network whose router has no link to the outside, by network ID."""
    found: dict[str, str] = {}
    for group in split_ids(networks):
        for network, gateway in unit.connection.execute(_READ_GATEWAYS, {"networks": group}):
            fault = describe_lost_link(read_topology(unit), Name(gateway))
            if fault is not None:
                found[network] = fault
    return found


def take_over_routers(unit: Unit, gateway: Name) -> None:
    """Replace the unusable routers of the networks to which ``gateway`` belongs.

    A router is unusable if its agent is stale, or if it has no outside link. :func:`replace_routers` replaces an
    unusable router in all its networks, also by gateways other than ``gateway``. Call this when the agent of
    ``gateway`` is no longer stale, or when ``gateway`` gets an outside link or is connected to another network.
    """
    topology = read_topology(unit)
    for other, is_reachable in unit.connection.execute(_READ_ROUTERS, {"gateway": gateway}).all():
        if not is_reachable or not OUTSIDE_LINK.has(topology, Name(other)):
            replace_routers(unit, Name(other))


def add_network_routers(unit: Unit, name: str, wanted: HostWanted) -> HostWanted:
    """Add the description of the router to each segment whose router is the gateway ``name``.

    If ``name`` is no network's router, return the wanted state unchanged.
    """
    topology = read_topology(unit)
    gateway = topology.gateways.get(Name(name))
    if gateway is None or gateway.outside is None or not wanted.segments:
        return wanted
    parameters = {"gateway": name, "networks": [segment.id for segment in wanted.segments]}
    networks = unit.connection.execute(_READ_OF, parameters).scalars().all()
    rows = find_clusters(unit, ClusterRow.id.in_(networks)) if networks else ()
    destinations = topology.site_of[gateway.name].destinations
    routers = {row.id: make_router(parse_current_spec(row), gateway.outside, destinations) for row in rows}
    return add_routers(wanted, routers)


def _list_candidates(topology: Topology, gateways: Iterable[Name]) -> list[Name]:
    return [name for name in gateways if OUTSIDE_LINK.has(topology, name)]
