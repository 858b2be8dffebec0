"""The catalogue of images, with shares and certifications."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from sqlalchemy import bindparam, delete, or_, select

from sbf_service.domain.image_rules import (
    check_image_quota,
    check_name_allowed,
    check_unused,
    check_usable,
    list_topology_names,
    make_unknown_image_error,
    may_use,
)
from sbf_service.domain.page_cursors import KEY_OF_NAME, CursorFormat
from sbf_service.store.networks.certified_networks import make_image_source, suspend_uncertified
from sbf_service.store.pages import Page, PageOrder, PagePart, make_page, read_page
from sbf_service.store.tables.columns import NAME_TYPE, split_ids
from sbf_service.store.tables.user_tables import CertificationRow, ImageRow, ImageShareRow
from sbf_service.store.topology.current_topology import read_topology, read_topology_version
from sbf_service.store.unit_of_work import Unit, record_audit
from sbf_service.store.users.image_uses import find_hosts_with_image, find_local_users, find_needed_images, find_uses
from sbf_service.store.users.quotas import IS_STORED, find_limits, read_stored_bytes
from sbf_service.store.vlans.allocation import CanSeeOwner
from virtcloud.model.access import QuotaLimits, Role
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import NameTaken
from virtcloud.model.image import (
    CatalogueImage,
    Certification,
    ImageShares,
    ImageSource,
)
from virtcloud.model.values import Name, UserName

_READ_NAMED = (
    select(ImageRow)
    .where(ImageRow.name.in_(bindparam("names", type_=NAME_TYPE, expanding=True)))
    .order_by(ImageRow.name)
)
BY_NAME: Final = PageOrder(CursorFormat("images", KEY_OF_NAME), (ImageRow.name,))
R = TypeVar("R", ImageShareRow, CertificationRow)


@dataclass(frozen=True, slots=True)
class NewImage:
    """An image that a caller adds as owner, and the quota in SBF's settings."""

    name: Name
    owner: UserName
    role: Role
    source: ImageSource
    quota: QuotaLimits


def find_same_image(unit: Unit, new: NewImage, uploading: int = 0) -> CatalogueImage | None:
    """Return the owner's image with this name and content, or None.

    ``uploading`` is the number of bytes that the owner uploads for other images. Raise NameTaken if another image has
    this name. Raise NotAdmitted or QuotaExceeded if the owner may not add the image.
    """
    row = unit.session.get(ImageRow, new.name)
    if row is not None:
        (image,) = _make_images(unit, [row])
        if image.owner == new.owner and image.source == new.source:
            return image
        raise NameTaken(_describe_taken(image, new))
    _check_allowed(unit, new, uploading)
    return None


def check_addition(unit: Unit, new: NewImage) -> None:
    """Check, before an upload, that the caller may add an image. Raise the errors of :func:`find_same_image`.

    Also raise NameTaken if the owner has an image with this name, because the new content is not known yet.
    """
    row = unit.session.get(ImageRow, new.name)
    if row is not None:
        owner = "you" if row.owner == new.owner else "another user"
        raise NameTaken(f"image {new.name} exists: {owner} added it; choose another name")
    _check_allowed(unit, new)


def _check_allowed(unit: Unit, new: NewImage, uploading: int = 0) -> None:
    topology_names = list_topology_names(read_topology(unit)) if read_topology_version(unit) is not None else ()
    check_name_allowed(
        new.name,
        new.role,
        topology_names,
        find_local_users(unit, new.name, new.owner),
        find_hosts_with_image(unit, new.name),
    )
    if new.source.is_stored:
        limit_mb = find_limits(unit, new.owner, new.quota).images_mb
        check_image_quota(new.owner, read_stored_bytes(unit, new.owner), new.source.size, limit_mb, uploading)


def add_image(unit: Unit, new: NewImage, place_file: Callable[[], None] = lambda: None) -> tuple[CatalogueImage, bool]:
    """Add an image. Idempotent. Return the image, and whether the image is new.

    ``place_file`` moves the uploaded file to its final path. It is called after all checks, even for an image in the
    catalogue, whose file may be missing. Raise the errors of :func:`find_same_image`.
    """
    if (found := find_same_image(unit, new)) is not None:
        place_file()
        return found, False
    values = new.source.model_dump(mode="json")
    unit.session.add(ImageRow(name=new.name, owner=new.owner, everybody=False, added_at=unit.now, **values))
    record_audit(unit, "image_added", why=f"{new.name} of {new.owner}: {_describe_source(new.source)}")
    unit.session.flush()
    place_file()
    return get_image(unit, new.name), True


def read_image_page(
    unit: Unit, part: PagePart, *, owner: str | None = None, user: str | None = None
) -> Page[CatalogueImage]:
    """Return a page of images, sorted by name. Raise BadInput for an invalid cursor.

    ``owner`` limits the result to an owner's images. ``user`` limits the result to images that this user may use.
    """
    rows = select(ImageRow)
    if owner is not None:
        rows = rows.where(ImageRow.owner == owner)
    if user is not None:
        shared = select(ImageShareRow.image).where(ImageShareRow.user == user)
        rows = rows.where(or_(ImageRow.owner == user, ImageRow.everybody, ImageRow.name.in_(shared)))
    return read_page(unit, rows, BY_NAME, part).convert(lambda found: _make_images(unit, found))


def read_needed_page(unit: Unit, part: PagePart, host: str) -> Page[CatalogueImage]:
    """Return a page of the catalogue images that the running clusters on a host use, sorted by name.

    Raise BadInput for an invalid cursor.
    """
    after = "" if part.cursor is None else str(BY_NAME.cursors.parse(part.cursor)[0])
    names = sorted(name for name in find_needed_images(unit, host) if name > after)
    page = make_page(names, part.limit, lambda last: BY_NAME.cursors.format([last]))
    return page.convert(lambda found: _make_images(unit, unit.session.scalars(_READ_NAMED, {"names": found}).all()))


def get_image(unit: Unit, name: Name) -> CatalogueImage:
    """Return an image. Raise NotFound for an unknown name."""
    return _make_images(unit, [_require_row(unit, name)])[0]


def share_image(unit: Unit, name: Name, shares: ImageShares) -> CatalogueImage:
    """Change the users who may use an image; idempotent. Running clusters are not affected.

    Raise NotFound for an unknown image.
    """
    row, before = _require_row(unit, name), get_image(unit, name)
    users = (set(before.shared_with) - set(shares.remove)) | (set(shares.add) - {before.owner})
    everybody = before.everybody if shares.everybody is None else shares.everybody
    if (users, everybody) == (set(before.shared_with), before.everybody):
        return before
    row.everybody = everybody
    unit.session.execute(delete(ImageShareRow).where(ImageShareRow.image == name))
    unit.session.add_all(ImageShareRow(image=name, user=user) for user in sorted(users))
    readers = "everybody" if everybody else ", ".join(sorted(users)) or "nobody else"
    record_audit(unit, "image_shared", why=f"{name} of {row.owner}: {readers}")
    unit.session.flush()
    return get_image(unit, name)


def certify_image(unit: Unit, name: Name, site: Name) -> CatalogueImage:
    """Certify an image for a site. Idempotent: an existing certification stays.

    Raise NotFound for an unknown image or site.
    """
    read_topology(unit).site(site)
    _require_row(unit, name)
    if unit.session.get(CertificationRow, (name, site)) is None:
        unit.session.add(CertificationRow(image=name, site=site, by=unit.who, at=unit.now))
        record_audit(unit, "image_certified", why=f"{name} for site {site}")
        unit.session.flush()
    return get_image(unit, name)


def revoke_certification(unit: Unit, name: Name, site: Name) -> CatalogueImage:
    """Remove an image's certification for a site. Idempotent.

    Also suspend the publications (published ports of guests) that need this certification. Raise NotFound for an
    unknown image.
    """
    _require_row(unit, name)
    row = unit.session.get(CertificationRow, (name, site))
    if row is not None:
        unit.session.delete(row)
        record_audit(unit, "certification_revoked", why=f"{name} for site {site}")
        unit.session.flush()
        suspend_uncertified(unit)
    return get_image(unit, name)


def remove_image(unit: Unit, name: Name, sees: CanSeeOwner) -> CatalogueImage:
    """Remove an image, and return the image. Raise NotFound for an unknown name.

    Raise Conflict, with the clusters whose owner the caller may see (``sees``), if clusters use the image.
    """
    image = get_image(unit, name)
    check_unused(name, [key if sees(owner) else None for key, owner, names in find_uses(unit) if name in names])
    for table in (ImageShareRow, CertificationRow):
        unit.session.execute(delete(table).where(table.image == name))
    unit.session.delete(_require_row(unit, name))
    record_audit(unit, "image_removed", why=f"{name} of {image.owner}: {_describe_source(image.source)}")
    unit.session.flush()
    return image


def find_usable_sources(unit: Unit, spec: ClusterSpec) -> dict[Name, ImageSource]:
    """Return the sources of a new cluster's catalogue images, by name.

    Raise NotAdmitted if the cluster's owner may not use an image.
    """
    names = sorted({guest.image for guest in spec.guests})
    images = _make_images(unit, unit.session.scalars(_READ_NAMED, {"names": names}).all()) if names else []
    for image in images:
        check_usable(image, spec.owner)
    return {image.name: image.source for image in images}


def list_stored_checksums(unit: Unit) -> frozenset[str]:
    """Return the checksums of all images whose files SBF stores."""
    return frozenset(unit.session.scalars(select(ImageRow.sha256).where(*IS_STORED)))


def _require_row(unit: Unit, name: Name) -> ImageRow:
    row = unit.session.get(ImageRow, name)
    if row is None:
        raise make_unknown_image_error(name)
    return row


def _make_images(unit: Unit, rows: Sequence[ImageRow]) -> list[CatalogueImage]:
    shares = _group_by_image(unit, ImageShareRow, rows)
    certifications = _group_by_image(unit, CertificationRow, rows)
    return [_make_image(row, shares.get(row.name, []), certifications.get(row.name, [])) for row in rows]


def _group_by_image(unit: Unit, table: type[R], rows: Sequence[ImageRow]) -> dict[str, list[R]]:
    found: dict[str, list[R]] = defaultdict(list)
    for group in split_ids(row.name for row in rows):
        for row in unit.session.scalars(select(table).where(table.image.in_(group))):
            found[row.image].append(row)
    return found


def _make_image(
    row: ImageRow, shares: Sequence[ImageShareRow], certifications: Sequence[CertificationRow]
) -> CatalogueImage:
    source = make_image_source(row)
    return CatalogueImage(
        name=Name(row.name),
        owner=UserName(row.owner),
        kind=source.kind,
        source=source,
        added_at=row.added_at,
        everybody=row.everybody,
        shared_with=tuple(sorted(UserName(share.user) for share in shares)),
        certified=tuple(
            Certification(site=Name(found.site), by=found.by, at=found.at)
            for found in sorted(certifications, key=lambda found: found.site)
        ),
    )


def _describe_taken(image: CatalogueImage, new: NewImage) -> str:
    if not may_use(image, new.owner):
        return f"the name {new.name} is taken by another user's image: choose another name"
    owner = "you" if image.owner == new.owner else image.owner
    return (
        f"image {image.name} exists: {owner} added {_describe_source(image.source)}, and the new image is "
        f"{_describe_source(new.source)}: choose another name, or remove the image first (virtcloud image remove)"
    )


def _describe_source(source: ImageSource) -> str:
    origin = source.url or source.file or "a file"
    return f"{origin}, {source.format}, {source.architecture}, {source.size} bytes, sha256 {source.sha256}"
