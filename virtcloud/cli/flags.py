"""PURE. A cluster's spec from the flags of ``cluster create``."""

from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from itertools import islice

from pydantic import ValidationError

from virtcloud.model.cluster import ClusterSpec, Guest
from virtcloud.model.errors import BadInput
from virtcloud.model.faults import explain, faults
from virtcloud.model.values import Address, Name
from virtcloud.model.views import ClusterView, SiteView
from virtcloud.model.vlans import VlanSet


def guests_of(
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


def spec_of(**keys: object) -> ClusterSpec:
    """Make a spec; keys that are None are left to their defaults. Raises :class:`BadInput` with every fault."""
    try:
        return ClusterSpec.model_validate({key: value for key, value in keys.items() if value is not None})
    except ValidationError as error:
        raise BadInput(
            "\n".join(f"{'.'.join(map(str, one['loc'])) or 'spec'}: {explain(one)}" for one in faults(error))
        ) from error


def unreached(view: ClusterView, sites: Iterable[SiteView]) -> Iterator[str]:
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
