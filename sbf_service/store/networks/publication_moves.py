"""Moves of publications from a gateway with a stale agent to another gateway of the cluster's sites.

The address of a publication changes; the port stays the same if it is free at the new gateway.
"""

from collections.abc import Iterator
from typing import Final

from sqlalchemy import bindparam, select

from sbf_service.domain.publications import list_publishing_sites, make_publisher_role
from sbf_service.log import get_log
from sbf_service.store.access.vpn_grants import connect_gateways
from sbf_service.store.clusters.cluster_documents import parse_current_spec
from sbf_service.store.clusters.live_clusters import make_live_clusters, read_networks
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.networks.certified_networks import find_uncertified
from sbf_service.store.networks.cluster_gateways import find_alive_gateways
from sbf_service.store.networks.publications import describe_target
from sbf_service.store.networks.publisher_choice import Publisher, find_publisher, prefer_router
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import equals_any
from sbf_service.store.tables.gateway_tables import PublicationRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.guest_spec import Guest
from virtcloud.model.values import Name

_READ: Final = (
    select(PublicationRow, ClusterRow)
    .join(ClusterRow, ClusterRow.id == PublicationRow.cluster_id)
    .where(PublicationRow.gateway == bindparam("gateway"), equals_any(ClusterRow.state, WANTED_STATES))
    .order_by(PublicationRow.protocol, PublicationRow.port)
)
_READ_DEAD: Final = (
    select(PublicationRow.gateway)
    .join(ElementRow, ElementRow.name == PublicationRow.gateway)
    .where(ElementRow.reachable.is_(False))
    .distinct()
    .order_by(PublicationRow.gateway)
)

log = get_log(__name__)


def move_publications(unit: Unit, gateway: Name) -> None:
    """Move the publications of a gateway with a stale agent, if another gateway can publish the guests.

    A suspended publication moves only within its site. A publication that cannot move stays. So may all publications of
    a network with an unreadable cluster.
    """
    for publication, row in unit.session.execute(_READ, {"gateway": gateway}).all():
        try:
            guest = next((one for one in parse_current_spec(row).guests if one.name == publication.guest), None)
            if guest is not None:
                _move(unit, row, publication, guest)
        except ValueError as error:
            log.fault("publication_not_moved", error, cluster=row.id, gateway=gateway)


def take_over_publications(unit: Unit, gateway: Name) -> None:
    """Move publications from gateways with stale agents to ``gateway`` or to other gateways, where possible.

    Call this when the agent of ``gateway`` is no longer stale, or when ``gateway`` is new or has changed.
    """
    for dead in unit.connection.execute(_READ_DEAD).scalars().all():
        if dead != gateway:
            move_publications(unit, Name(dead))


def _move(unit: Unit, row: ClusterRow, publication: PublicationRow, guest: Guest) -> None:
    for site in _list_sites(unit, row, publication):
        try:
            with unit.session.begin_nested() as savepoint:
                if _move_to_site(unit, row, publication, guest, site):
                    return
                savepoint.rollback()  # otherwise, the cluster would stay connected to gateways that it does not use
        except VirtcloudError as error:
            log.warning("publication_not_moved", cluster=row.id, gateway=publication.gateway, site=site, why=str(error))


def _list_sites(unit: Unit, row: ClusterRow, publication: PublicationRow) -> Iterator[Name]:
    """Yield the sites whose gateways may publish the guest, first the site of the current gateway."""
    topology = read_topology(unit)
    (cluster,) = make_live_clusters(unit, [row])
    present = topology.site_of.get(Name(publication.gateway))
    publishing = list_publishing_sites(topology)
    if present is not None and present.name in publishing:
        yield present.name
    for site in publishing:
        is_other = site in cluster.vlans and (present is None or site != present.name)
        if is_other and not publication.suspended and find_uncertified(unit, row.network or row.id, site) is None:
            yield site


def _move_to_site(unit: Unit, row: ClusterRow, publication: PublicationRow, guest: Guest, site: Name) -> bool:
    """Move a publication to the first gateway of ``site`` that can publish the guest, and whose agent is not stale.

    Return False if no gateway with such an agent has a free port.

    Raise NoGateway, NoAddressFree, Conflict or BadInput if the gateways of the site cannot publish the guest.
    """
    topology, network = read_topology(unit), read_networks(unit, [row])[row.network or row.id]
    alive = find_alive_gateways(unit) - {publication.gateway}
    if not any(gateway.name in alive for gateway in topology.site(site).gateways):
        return False
    names = connect_gateways(unit, row, make_publisher_role(topology, site))
    ordered = prefer_router(unit, network.id, names)
    possible = (name for name in ordered if name in alive and not _has_same(unit, publication, name))
    found = find_publisher(unit, network, guest, possible, publication.protocol, publication.port)
    if found is not None:
        _record_move(unit, row, publication, found)
    return found is not None


def _has_same(unit: Unit, publication: PublicationRow, gateway: Name) -> bool:
    one = PublicationRow
    same = select(one.port).where(
        one.gateway == gateway,
        one.cluster_id == publication.cluster_id,
        one.guest == publication.guest,
        one.guest_port == publication.guest_port,
        one.protocol == publication.protocol,
    )
    return unit.connection.execute(same).first() is not None


def _record_move(unit: Unit, row: ClusterRow, publication: PublicationRow, chosen: Publisher) -> None:
    former, former_port = publication.gateway, publication.port
    publication.gateway, publication.port, publication.guest_address = chosen
    publication.moved_from = former
    row.version += 1
    unit.changed.add(f"cluster:{row.key}")
    unit.session.flush()
    increment_revisions(unit, [former, chosen.gateway])
    why = (
        f"{describe_target(publication)} from port {former_port} of {former} to port {chosen.port} of {chosen.gateway}"
    )
    record_audit(unit, "publication_moved", element=former, why=why, cluster_id=row.id)
