"""Rules of the catalogue of images: who may use an image, and which names and sizes an image may have. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

from pydantic import Field

from virtcloud.model.access import Role
from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, BeyondLimit, Conflict, NotAdmitted, NotFound, QuotaExceeded
from virtcloud.model.image import Architecture, CatalogueImage
from virtcloud.model.message_text import count_of, to_mib
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, UserName

MIB: Final = 1 << 20
SHOWN_KEYS: Final = 3
ARCHITECTURES: Final = (
    "aarch64 alpha armv5tejl armv5tel armv6l armv7l armv8l i386 i486 i586 i686 ia64 loongarch64 m68k mips mips64 "
    "parisc parisc64 ppc ppc64 ppc64le riscv32 riscv64 s390 s390x sh4 sparc sparc64 x86_64"
)
"""The architectures that QEMU or Debian support, as printed by ``uname -m``."""


class ImageLimits(Document):
    """The table ``[images]`` of the settings."""

    folder: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="Folder of the uploaded images. Replicas that share one database need a common folder; without a "
        "common folder, users add images with a URL. Default: the folder `catalogue` beside the file of an SQLite "
        "database; for PostgreSQL, `/var/lib/virtcloud/catalogue`. SBF's systemd unit must permit a folder outside "
        "`/var/lib/virtcloud` (`ReadWritePaths=`).",
    )
    size: Annotated[int, Field(ge=1, lt=2**53)] = Field(64 * 1024**3, description="Largest size of one image in bytes.")


def check_architecture(architecture: Architecture) -> None:
    """Raise BadInput for an architecture that is not in ``ARCHITECTURES``."""
    if architecture not in ARCHITECTURES.split():
        raise BadInput(
            f"architecture {architecture}: expected an architecture as 'uname -m' prints it on a host "
            f"({ARCHITECTURES}), got another name: for Debian's amd64 use x86_64, for arm64 use "
            "aarch64"
        )


def may_use(image: CatalogueImage, user: str) -> bool:
    """Return whether a user may create guests from an image."""
    return image.everybody or user == image.owner or user in image.shared_with


def check_usable(image: CatalogueImage, user: UserName) -> None:
    """Raise NotAdmitted if a user may not create guests from an image."""
    if not may_use(image, user):
        raise NotAdmitted(
            f"image {image.name} belongs to {image.owner}, who has not shared it with {user}: choose another image "
            f"(virtcloud image list), or ask {image.owner} for: virtcloud image share {image.name} {user}"
        )


def check_name_allowed(
    name: Name, role: Role, topology_names: Iterable[Name], local_users: Iterable[str], hosts: Iterable[str] = ()
) -> None:
    """Raise NotAdmitted if a caller may not add an image of this name. Only the role ``user`` is restricted.

    On a host, an image of the catalogue replaces the host's own image of the same name. A user must not replace an
    image that other users use or may use.

    ``topology_names``: the images that sites and hosts list for users. ``local_users``: the other users who run guests
    from a host's own image of this name. ``hosts``: the hosts with such an image.
    """
    if role is not Role.USER:
        return
    if name in set(topology_names):
        raise NotAdmitted(
            f"image {name}: a site lists an image of this name for its users: choose another name, or ask an operator "
            "to add the image"
        )
    if any(True for _ in local_users):
        raise NotAdmitted(
            f"image {name}: clusters of other users run guests from hosts' own images of this name: choose another name"
        )
    host = next(iter(hosts), None)
    if host is not None:
        raise NotAdmitted(
            f"image {name}: host {host} has an image of this name in its folder, and the new image would replace the "
            "host's image for all users: choose another name, or ask an operator to add the image"
        )


def list_topology_names(topology: Topology) -> Iterator[Name]:
    """Yield the names of the images that sites and hosts list for users."""
    for site in topology.sites:
        yield from site.images or ()
        for host in site.hosts:
            yield from host.images or ()


def check_size(limits: ImageLimits, size: int) -> None:
    """Raise BeyondLimit for an image that is larger than the limit ``images.size``."""
    if size > limits.size:
        raise BeyondLimit(
            f"image: expected at most {limits.size} bytes, got {size}; the limit is 'images.size' in the settings of "
            "this SBF"
        )


def check_image_quota(owner: str, used: int, added: int, limit_mb: int | None, uploading: int = 0) -> None:
    """Raise QuotaExceeded if the images of ``owner`` at SBF would exceed the quota.

    - ``used``: the total size of the owner's stored images, in bytes.
    - ``added``: the size of the new image, in bytes.
    - ``limit_mb``: the quota in MiB, or None for no limit.
    - ``uploading``: the total size of the owner's other images that are being uploaded, in bytes.
    """
    if limit_mb is None or used + uploading + added <= limit_mb * MIB:
        return
    if used + added <= limit_mb * MIB:
        raise QuotaExceeded(
            f"{owner} stores {to_mib(used)} MiB of images and is uploading {to_mib(uploading)} MiB, and the new image "
            f"has {to_mib(added)} MiB (limit of all together {limit_mb} MiB): try again after the other uploads, "
            "remove an image (virtcloud image remove), or add the image with a URL"
        )
    raise QuotaExceeded(
        f"{owner} already stores {to_mib(used)} MiB of images, and the new image has {to_mib(added)} MiB "
        f"(limit of both together {limit_mb} MiB): remove an image (virtcloud image remove), or add the image "
        "with a URL"
    )


def check_unused(name: Name, users: Sequence[str | None]) -> None:
    """Raise Conflict if clusters use an image.

    ``users`` contains the key of each cluster, or None for a cluster that the caller may not see.
    """
    if not users:
        return
    keys = [key for key in users if key is not None]
    shown, rest, hidden = keys[:SHOWN_KEYS], len(keys) - SHOWN_KEYS, len(users) - len(keys)
    texts = [", ".join(shown)] if shown else []
    texts += [f"{rest} more"] if rest > 0 else []
    texts += [f"{count_of(hidden, 'cluster')} of other users"] if hidden else []
    raise Conflict(f"image {name} is used by {' and '.join(texts)}: remove the image when these clusters have ended")


def make_unknown_image_error(name: Name) -> NotFound:
    """Return the error for an image that does not exist, or that the caller may not see."""
    return NotFound(f"image {name} is not known; list the images: virtcloud image list")
