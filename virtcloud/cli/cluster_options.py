"""What ``cluster create`` is given, made into a spec.

PURE. A cluster's spec from the flags of ``cluster create``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from itertools import islice
from typing import IO

from pydantic import ValidationError

from virtcloud.model.cluster import ClusterSpec, Guest
from virtcloud.model.document import explain_validation_error, list_validation_errors, read_document
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Address, Name
from virtcloud.model.views import ClusterView, SiteView
from virtcloud.model.vlans import VlanSet


def build_guests(
    hosts: Sequence[str], per_host: int, image: str, network: str | None, prefix: str = "g"
) -> tuple[Guest, ...]:
    """Give the guests g1, g2, … host by host, with the addresses of ``network`` in order, from the one given on.

    Raises :class:`BadInput` when a name is malformed or the network is too small.
    """
    places = [Name(host) for host in hosts for _ in range(per_host)]
    addresses = [()] * len(places) if network is None else _addresses(network, len(places))
    return tuple(
        Guest(name=Name(f"{prefix}{number}"), host=host, image=Name(image), addresses=given)
        for number, (host, given) in enumerate(zip(places, addresses, strict=True), 1)
    )


def validate_spec(**keys: object) -> ClusterSpec:
    """Make a spec; keys that are None are left to their defaults. Raises :class:`BadInput` with every fault."""
    try:
        return ClusterSpec.model_validate({key: value for key, value in keys.items() if value is not None})
    except ValidationError as error:
        raise BadInput(
            "\n".join(
                f"{'.'.join(map(str, one['loc'])) or 'spec'}: {explain_validation_error(one)}"
                for one in list_validation_errors(error)
            )
        ) from error


def find_unreachable_sites(view: ClusterView, sites: Iterable[SiteView]) -> Iterator[str]:
    """Yield a sentence for each site whose pool has none of the VLAN IDs of the network ``view``."""
    numbers = set(view.vlans.values())
    for site in sites:
        if site.name not in view.vlans and numbers and not numbers & set(site.free):
            yield (
                f"site {site.name} cannot join the network of cluster {view.key}, unless its transport translates VLAN "
                f"IDs: VLAN {VlanSet(numbers)} is not free there; --reach {site.name} at creation reserves an ID there"
            )


def _addresses(network: str, count: int) -> list[tuple[Address, ...]]:
    if "/" not in network:
        raise BadInput(f"expected a network such as 10.0.0.0/24 or fd00::/64, with its prefix length, got {network!r}")
    try:
        first = ip_interface(network)
        parsed = first.network
    except ValueError as error:
        raise BadInput(f"expected a network such as 10.0.0.0/24, got {network!r}: {error}") from error
    found: list[tuple[Address, ...]] = [
        (Address(f"{address}/{parsed.prefixlen}"),) for address in islice(_from(first), count)
    ]
    if len(found) < count:
        raise BadInput(f"network {network} has {len(found)} addresses, {count} guests need one each; give a larger one")
    return found


def _from(first: IPv4Interface | IPv6Interface) -> Iterator[object]:
    """Give addresses for hosts, from the one given on; from the first one of all, where only a network is given."""
    network = first.network
    if first.ip == network.network_address:
        return iter(network.hosts())
    last = int(network.broadcast_address) - (network.version == 4)  # noqa: PLR2004 - IPv6 has no broadcast address
    return (type(first.ip)(number) for number in range(int(first.ip), last + 1))


@dataclass(frozen=True, slots=True)
class ClusterOptions:
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


def build_spec(wishes: ClusterOptions, caller: Callable[[], str]) -> ClusterSpec:
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
        return validate_spec(**spec.model_dump() | {key: value for key, value in over.items() if value is not None})
    guests = build_guests(wishes.hosts, wishes.guests_per_host, _image(wishes), wishes.network, wishes.guest_prefix)
    return validate_spec(**over | {"owner": wishes.owner or caller()}, hosts=wishes.hosts, guests=guests)


def _image(wishes: ClusterOptions) -> str:
    """Return the image of the guests. Raise BadInput when there are guests and no image was named."""
    if wishes.image is None and wishes.guests_per_host and wishes.hosts:
        raise BadInput(
            "expected --image NAME (or VIRTCLOUD_IMAGE) for the guests, got none; 'virtcloud image list' on a host "
            "lists its images, and --guests-per-host 0 makes a network without guests"
        )
    return wishes.image or ""
