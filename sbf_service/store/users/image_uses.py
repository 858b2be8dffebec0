"""Queries for the images of running clusters, and for the images in hosts' folders.

A host's own image is a file in the host's folder, outside the catalogue.
"""

from collections.abc import Iterator

from sqlalchemy import bindparam, func, select

from sbf_service.log import get_log
from sbf_service.store.clusters.cluster_documents import parse_image_sources, parse_spec
from sbf_service.store.clusters.cluster_queries import IS_UNSETTLED, NOT_ENDED
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.element import ElementKind
from virtcloud.model.values import Name, UserName

log = get_log(__name__)

_IN_USE = (
    select(ClusterRow.key, ClusterRow.owner, ClusterRow.images)
    .where(NOT_ENDED, ClusterRow.images.is_not(None))
    .order_by(ClusterRow.key)
)
_CURRENT_SPEC = func.coalesce(ClusterRow.resolved, ClusterRow.spec).label("spec")
_RUNNING_SPECS = select(ClusterRow.id, ClusterRow.owner, _CURRENT_SPEC, ClusterRow.images).where(NOT_ENDED)
_LOCAL_IMAGES = (
    select(ElementRow.name, ElementRow.local_images)
    .where(ElementRow.present, ElementRow.local_images.is_not(None))
    .order_by(ElementRow.name)
)
_IMAGES_ON_HOST = select(ClusterRow.images).where(
    NOT_ENDED,
    ClusterRow.images.is_not(None),
    ClusterRow.id.in_(
        select(PlacementRow.cluster_id)
        .join(ElementRow, ElementRow.name == PlacementRow.element)
        .where(PlacementRow.element == bindparam("host"), IS_UNSETTLED, PlacementRow.removed_revision.is_(None))
        .where(ElementRow.kind == ElementKind.HOST)
    ),
)


def find_needed_images(unit: Unit, host: str) -> frozenset[Name]:
    """Return the names of the catalogue images that the running clusters on a host use."""
    stored = unit.session.scalars(_IMAGES_ON_HOST, {"host": host})
    return frozenset(name for images in stored if images is not None for name in parse_image_sources(images))


def find_uses(unit: Unit) -> Iterator[tuple[str, str, frozenset[Name]]]:
    """Yield the key, the owner and the image names of each running cluster with catalogue images, sorted by key."""
    for row in unit.session.execute(_IN_USE):
        yield row.key, row.owner, frozenset(parse_image_sources(row.images))


def find_local_users(unit: Unit, name: Name, owner: UserName) -> Iterator[str]:
    """Yield the owner of each running cluster that uses a host's own image with this name.

    Omit the clusters of ``owner``, and unreadable clusters.
    """
    for row in unit.session.execute(_RUNNING_SPECS.where(ClusterRow.owner != owner)):
        try:
            guests, sources = parse_spec(row.spec).guests, parse_image_sources(row.images or "{}")
        except ValueError as error:
            log.fault("cluster_unreadable", error, cluster=row.id)
            continue
        if name in {guest.image for guest in guests} - sources.keys():
            yield row.owner


def find_hosts_with_image(unit: Unit, name: Name) -> Iterator[str]:
    """Yield the hosts whose latest report lists an image with this name in the host's folder."""
    for host, images in unit.session.execute(_LOCAL_IMAGES):
        if name in (images or "").split():
            yield host
