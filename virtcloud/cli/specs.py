"""What ``cluster create`` is given, made into a spec."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from virtcloud.cli.flags import guests_of, spec_of
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.documents import read_document
from virtcloud.model.errors import BadInput


@dataclass(frozen=True, slots=True)
class Wishes:
    """The flags."""

    hosts: tuple[str, ...]
    guests_per_host: int
    image: str | None
    guest_prefix: str
    network: str
    file: IO[str] | None
    owner: str | None
    name: str | None
    joins: str | None
    shares_with: tuple[str, ...]
    sites: tuple[str, ...]
    vlan: int | None
    lease: float | None
    deadline: float | None


def read_spec(wishes: Wishes, caller: Callable[[], str]) -> ClusterSpec:
    """Return the spec of the file or of the flags; other flags override the file's keys.

    ``caller`` returns the user whom SBF takes the caller for: the owner where no other is named.
    Raise :class:`BadInput` when both or neither are given, or when either is malformed.
    """
    if wishes.file is None and not (wishes.hosts or wishes.sites):
        raise BadInput("expected either --host (at least one), --reach SITE or --spec FILE, got none")
    if wishes.file is not None and wishes.hosts:
        raise BadInput("expected either --host or --spec FILE, got both")
    over = {
        "owner": wishes.owner,
        "name": wishes.name,
        "joins": wishes.joins,
        "shares_with": wishes.shares_with or None,
        "sites": wishes.sites or None,
        "vlan": wishes.vlan,
        "lease_s": wishes.lease,
        "deadline_s": wishes.deadline,
    }
    if wishes.file:
        spec = read_document(wishes.file.read(), wishes.file.name, ClusterSpec)
        return spec_of(**spec.model_dump() | {key: value for key, value in over.items() if value is not None})
    guests = guests_of(wishes.hosts, wishes.guests_per_host, _image(wishes), wishes.network, wishes.guest_prefix)
    return spec_of(**over | {"owner": wishes.owner or caller()}, hosts=wishes.hosts, guests=guests)


def _image(wishes: Wishes) -> str:
    """Return the image of the guests. Raise BadInput when there are guests and no image was named."""
    if wishes.image is None and wishes.guests_per_host and wishes.hosts:
        raise BadInput(
            "expected --image NAME (or VIRTCLOUD_IMAGE) for the guests, got none; 'virtcloud image list' on a host "
            "lists its images, and --guests-per-host 0 makes a network without guests"
        )
    return wishes.image or ""
