"""The suspension of publications whose network has guests with uncertified images.

A site may publish ports only of networks whose guests all have images that are certified for the site. The transaction
that adds an uncertified guest or revokes a certification also suspends the network's publications at the site. A
suspended publication keeps its port, and stays suspended until the owner publishes the guest again.
"""

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import bindparam, func, or_, select

from sbf_service.domain.publications import describe_uncertified, list_imaged_guests
from sbf_service.log import get_log
from sbf_service.store.clusters.cluster_documents import parse_current_spec, parse_image_sources
from sbf_service.store.clusters.cluster_queries import UNSETTLED, find_clusters
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.gateway_tables import PublicationRow
from sbf_service.store.tables.user_tables import CertificationRow, ImageRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.image import Architecture, HostFile, ImageFormat, ImageSource, ImageUrl, Sha256
from virtcloud.model.values import ClusterKey, Name

log = get_log(__name__)

_NETWORK = func.coalesce(ClusterRow.network, ClusterRow.id)
_READ_ACTIVE = (
    select(PublicationRow, ClusterRow, _NETWORK)
    .join(ClusterRow, ClusterRow.id == PublicationRow.cluster_id)
    .where(PublicationRow.suspended.is_(None))
    .order_by(PublicationRow.gateway, PublicationRow.port)
)
_READ_CERTIFIED = (
    select(ImageRow)
    .join(CertificationRow, CertificationRow.image == ImageRow.name)
    .where(CertificationRow.site == bindparam("site"))
)


def find_uncertified(unit: Unit, network: str, site: Name) -> str | None:
    """Return the reason why a network must not be published at a site, or None.

    ``network`` is the ID of the cluster that created the network. Guests of ended clusters count until every element
    has confirmed the removal: they may still run.
    """
    rows = find_clusters(unit, UNSETTLED, or_(ClusterRow.id == network, ClusterRow.network == network))
    guests = [
        replace(guest, quarantined=row.quarantined)
        for row in rows
        for guest in list_imaged_guests(
            ClusterKey(row.key), parse_current_spec(row).guests, parse_image_sources(row.images or "{}")
        )
    ]
    return describe_uncertified(guests, _read_certified(unit, site), site)


def suspend_uncertified(unit: Unit, network: str | None = None) -> None:
    """Suspend each publication whose network has a guest with an image that is not certified for the gateway's site.

    ``network`` limits the suspension to one network. Images that SBF cannot read are not certified.
    """
    statement = _READ_ACTIVE if network is None else _READ_ACTIVE.where(_NETWORK.in_([network]))
    found = unit.session.execute(statement).all()
    site_of = read_topology(unit).site_of if found else {}
    reasons: dict[tuple[str, Name], str | None] = {}
    for publication, row, network_id in found:
        site = site_of.get(Name(publication.gateway))
        if site is None:
            continue  # the gateway was removed from the topology and publishes no ports
        if (network_id, site.name) not in reasons:
            reasons[network_id, site.name] = _find_reason(unit, network_id, site.name)
        reason = reasons[network_id, site.name]
        if reason is not None:
            _suspend(unit, publication, row, reason)


def _find_reason(unit: Unit, network: str, site: Name) -> str | None:
    try:
        return find_uncertified(unit, network, site)
    except ValueError as error:
        log.fault("network_not_read", error, cluster=network, site=site)
        return "SBF cannot read the images of the network's guests: ask the operator of SBF to read its log"


def _suspend(unit: Unit, publication: PublicationRow, row: ClusterRow, reason: str) -> None:
    publication.suspended = reason
    row.version += 1
    unit.changed.add(f"cluster:{row.key}")
    unit.session.flush()
    increment_revisions(unit, [publication.gateway])
    target = f"{publication.guest}:{publication.guest_port}/{publication.protocol}"
    why = f"{target} at port {publication.port}: {reason}"
    record_audit(unit, "publication_suspended", element=publication.gateway, why=why, cluster_id=row.id)


def _read_certified(unit: Unit, site: Name) -> Mapping[Name, ImageSource]:
    rows = unit.session.scalars(_READ_CERTIFIED, {"site": site}).all()
    return {Name(row.name): make_image_source(row) for row in rows}


def make_image_source(row: ImageRow) -> ImageSource:
    """Return the source of an image in the catalogue."""
    return ImageSource(
        sha256=Sha256(row.sha256),
        size=row.size,
        format=ImageFormat(row.format),
        architecture=Architecture(row.architecture),
        url=None if row.url is None else ImageUrl(row.url),
        file=None if row.file is None else HostFile(row.file),
    )
