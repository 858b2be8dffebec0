"""Publications: each publication is a port of a gateway that leads to a port of a guest.

The owner of a cluster publishes and unpublishes ports of the cluster's guests.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from ipaddress import ip_address

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import aliased

from sbf_service.domain.admission import RequestLimits
from sbf_service.domain.publications import (
    ActivePublication,
    add_publications,
    describe_outdated,
    list_publishing_sites,
    make_no_port,
    make_not_certified,
    make_publisher_role,
)
from sbf_service.store.access.vpn_grants import connect_gateways
from sbf_service.store.clusters.cluster_documents import parse_current_spec
from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.clusters.live_clusters import make_live_clusters, read_networks
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.networks.certified_networks import find_uncertified
from sbf_service.store.networks.cluster_gateways import find_alive_gateways
from sbf_service.store.networks.publisher_choice import find_publisher, prefer_router
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import equals_any
from sbf_service.store.tables.gateway_tables import PublicationRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.errors import BeyondLimit, Conflict, NotFound
from virtcloud.model.gateway_access import PublishedPort, PublishedProtocol
from virtcloud.model.guest_spec import Guest
from virtcloud.model.message_text import count_of
from virtcloud.model.publication import PublicationRequest, PublicationView
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.wanted import HostWanted

_NETWORK = aliased(ClusterRow)
_OF_CLUSTER = (
    select(PublicationRow)
    .where(PublicationRow.cluster_id == bindparam("cluster"))
    .order_by(PublicationRow.guest, PublicationRow.guest_port, PublicationRow.protocol, PublicationRow.gateway)
)
_READ_ACTIVE = (
    select(PublicationRow, ClusterRow.lease_ends, _NETWORK.id, _NETWORK.lease_ends)
    .join(ClusterRow, ClusterRow.id == PublicationRow.cluster_id)
    .join(_NETWORK, _NETWORK.id == func.coalesce(ClusterRow.network, ClusterRow.id))
    .where(PublicationRow.gateway == bindparam("gateway"), PublicationRow.suspended.is_(None))
    .where(equals_any(ClusterRow.state, WANTED_STATES))
    .order_by(PublicationRow.port, PublicationRow.protocol)
)


def publish(
    unit: Unit, key: str, request: PublicationRequest, limits: RequestLimits, cluster_id: str | None = None
) -> PublicationView:
    """Publish a port of a guest. Idempotent.

    End the port's suspensions at the site, and the publications that the topology no longer allows. Add a publication
    if none is left. If two gateways of the site publish the port after a move, return the publication of the first.

    Raise NotFound for an unknown cluster or guest. Raise Conflict if the cluster is ending or has ended. Raise
    NotAdmitted if the image of a guest of the network is not certified for the site. Raise NoGateway if the site
    publishes no ports. Raise NoPortFree if all ports are taken. Raise NoAddressFree if a subnet has no address for the
    gateway. Raise BadInput if the guest has no address that the gateway can publish. Raise BeyondLimit if the cluster
    has too many publications.
    """
    row = require_cluster(unit, key, cluster_id)
    if row.state not in WANTED_STATES:
        raise Conflict(f"cluster {key} is {row.state}, and its guests can no longer be published: create a new cluster")
    guest = next((one for one in parse_current_spec(row).guests if one.name == request.guest), None)
    if guest is None:
        raise NotFound(f"cluster {key} has no guest {request.guest}: see 'virtcloud cluster show {key}'")
    present = _group_by_site(unit, _read(unit, row, request))
    site = _choose_site(unit, row, request.site, present)
    found = present.get(site) or present.get(None, [])  # None: the gateway was removed from the topology
    kept = [one for one in found if _find_outdated(unit, one) is None]
    for outdated in (one for one in found if one not in kept):
        _end(unit, row, outdated)
    if not kept:
        _check_count(unit, row, limits)
        kept = [_add(unit, row, guest, request.model_copy(update={"site": site}))]
        _record(unit, row, kept[0], "guest_published")
    for publication in kept:
        _resume(unit, row, publication)
    return _make_view(unit, row, kept[0])


def _group_by_site(
    unit: Unit, publications: Iterable[PublicationRow]
) -> Mapping[Name | None, Sequence[PublicationRow]]:
    """Return the publications by the site of their gateway.

    A site can have several publications of one port, if SBF has moved one there.
    """
    found: dict[Name | None, list[PublicationRow]] = {}
    for publication in publications:
        found.setdefault(_site_of(unit, publication), []).append(publication)
    return found


def _resume(unit: Unit, row: ClusterRow, publication: PublicationRow) -> None:
    if publication.suspended is not None:
        publication.suspended = None
        _record(unit, row, publication, "guest_published")


def unpublish(
    unit: Unit, key: str, request: PublicationRequest, cluster_id: str | None = None
) -> list[PublicationView]:
    """End a guest port's publications at ``request.site``, or at all sites if ``request.site`` is None. Idempotent.

    Return the ended publications. Raise NotFound for an unknown cluster.
    """
    row = require_cluster(unit, key, cluster_id)
    found = [one for one in _read(unit, row, request) if request.site in {None, _site_of(unit, one)}]
    views = [_make_view(unit, row, one) for one in found]
    for publication in found:
        _end(unit, row, publication)
    return views


def _end(unit: Unit, row: ClusterRow, publication: PublicationRow) -> None:
    unit.session.delete(publication)
    _record(unit, row, publication, "guest_unpublished")


def list_publications(unit: Unit, key: str, cluster_id: str | None = None) -> list[PublicationView]:
    """Return the publications of a cluster. Raise NotFound for an unknown cluster."""
    row = require_cluster(unit, key, cluster_id)
    return [_make_view(unit, row, one) for one in unit.session.scalars(_OF_CLUSTER, {"cluster": row.id})]


def add_published_ports(unit: Unit, name: str, wanted: HostWanted) -> HostWanted:
    """Return ``wanted`` with the publications of the gateway ``name``.

    Return ``wanted`` unchanged if the element is not a gateway with an outside link, or if ``wanted`` has no segments.
    """
    gateway = read_topology(unit).gateways.get(Name(name))
    if gateway is None or gateway.outside is None or not wanted.segments:
        return wanted
    addresses, found = {address.version: address for address in gateway.outside.addresses}, []
    for row, ends, network, network_ends in unit.session.execute(_READ_ACTIVE, {"gateway": name}):
        guest_address = ip_address(row.guest_address)
        if describe_outdated(gateway, row.port, guest_address.version) is None:
            published = PublishedPort(
                address=addresses[guest_address.version],
                port=row.port,
                interface=gateway.outside.interface,
                guest=Name(row.guest),
                guest_address=guest_address,
                guest_port=row.guest_port,
                protocol=PublishedProtocol(row.protocol),
                expires_at=min(ends, network_ends),
            )
            found.append(ActivePublication(network, published))
    return add_publications(wanted, found)


def describe_target(publication: PublicationRow) -> str:
    """Return the published guest and port as a text, such as ``"node1:80"``."""
    protocol = "" if publication.protocol == PublishedProtocol.TCP else f"/{publication.protocol}"
    return f"{publication.guest}:{publication.guest_port}{protocol}"


def _choose_site(unit: Unit, row: ClusterRow, requested: Name | None, present: Collection[Name | None]) -> Name:
    """Return the requested site, or the cluster's first site that can publish the guests.

    Sites with a publication of the port (``present``) come first, so that a repeated call finds a publication that SBF
    has moved. The candidates are the requested site or, without a request, all sites of the cluster. Raise NoGateway if
    no candidate publishes ports. Raise NotAdmitted if no candidate that publishes ports has certified the images of all
    guests of the network.
    """
    (cluster,) = make_live_clusters(unit, [row])
    publishing = list_publishing_sites(read_topology(unit))
    possible = sorted((site for site in publishing if site in cluster.vlans), key=lambda site: site not in present)
    sites = [requested] if requested else possible
    reasons = []
    for site in sites or list(cluster.vlans)[:1]:
        make_publisher_role(read_topology(unit), site)
        reason = find_uncertified(unit, row.network or row.id, site)
        if reason is None:
            return site
        reasons.append(reason)
    raise make_not_certified(row.key, "; ".join(reasons))


def _check_count(unit: Unit, row: ClusterRow, limits: RequestLimits) -> None:
    count = len(unit.session.scalars(_OF_CLUSTER, {"cluster": row.id}).all())
    if count >= limits.publications:
        raise BeyondLimit(
            f"cluster {row.key} already has {count_of(count, 'publication')} (limit {limits.publications}): end one "
            "with 'virtcloud cluster unpublish'; the limit is 'limits.publications' in the settings of this SBF"
        )


def _add(unit: Unit, row: ClusterRow, guest: Guest, request: PublicationRequest) -> PublicationRow:
    """Add a publication at the site's first gateway that has a free port and can publish the guest.

    Gateways whose agents are not stale come first, and among them the network's router.
    """
    topology, network = read_topology(unit), read_networks(unit, [row])[row.network or row.id]
    names = connect_gateways(unit, row, make_publisher_role(topology, request.site))
    alive = find_alive_gateways(unit)
    ordered = sorted(prefer_router(unit, network.id, names), key=lambda one: one not in alive)
    found = find_publisher(unit, network, guest, ordered, request.protocol)
    if found is None:
        raise make_no_port(topology.gateways[name] for name in names)
    added = PublicationRow(
        gateway=found.gateway,
        port=found.port,
        cluster_id=row.id,
        guest=guest.name,
        guest_address=found.guest_address,
        guest_port=request.port,
        protocol=request.protocol,
        created_at=unit.now,
        created_by=unit.who,
    )
    unit.session.add(added)
    return added


def _read(unit: Unit, row: ClusterRow, request: PublicationRequest) -> Sequence[PublicationRow]:
    found = _OF_CLUSTER.where(
        PublicationRow.guest == request.guest,
        PublicationRow.guest_port == request.port,
        PublicationRow.protocol == request.protocol,
    )
    return unit.session.scalars(found, {"cluster": row.id}).all()


def _site_of(unit: Unit, publication: PublicationRow) -> Name | None:
    site = read_topology(unit).site_of.get(Name(publication.gateway))
    return None if site is None else site.name


def _record(unit: Unit, row: ClusterRow, publication: PublicationRow, event: str) -> None:
    row.version += 1
    unit.changed.add(f"cluster:{row.key}")
    unit.session.flush()
    increment_revisions(unit, [publication.gateway])
    why = f"{describe_target(publication)} at port {publication.port}"
    record_audit(unit, event, element=publication.gateway, why=why, cluster_id=row.id)


def _make_view(unit: Unit, row: ClusterRow, publication: PublicationRow) -> PublicationView:
    gateway = read_topology(unit).gateways.get(Name(publication.gateway))
    version = ip_address(publication.guest_address).version
    link = gateway.outside if gateway is not None else None
    network = read_networks(unit, [row])[row.network or row.id]
    return PublicationView(
        cluster=ClusterKey(row.key),
        cluster_id=row.id,
        guest=Name(publication.guest),
        guest_port=publication.guest_port,
        protocol=PublishedProtocol(publication.protocol),
        moved_from=None if publication.moved_from is None else Name(publication.moved_from),
        site=_site_of(unit, publication),
        gateway=Name(publication.gateway),
        address=next((one for one in (link.addresses if link else ()) if one.version == version), None),
        port=publication.port,
        created_at=publication.created_at,
        created_by=publication.created_by,
        suspended=publication.suspended or _find_outdated(unit, publication),
        lease_ends=min(row.lease_ends, network.lease_ends),
    )


def _find_outdated(unit: Unit, publication: PublicationRow) -> str | None:
    gateway = read_topology(unit).gateways.get(Name(publication.gateway))
    return describe_outdated(gateway, publication.port, ip_address(publication.guest_address).version)
