"""Rules of publications: which networks may be published, at which sites, and at which ports. Pure.

A site is responsible for the services at its addresses: an administrator of the site must have certified the images of
all guests of a published network.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_interface
from typing import Final

from sbf_service.domain.gateway_access import GatewayRole
from virtcloud.model.element import Gateway
from virtcloud.model.errors import BadInput, NoGateway, NoPortFree, NotAdmitted
from virtcloud.model.gateway_access import GATEWAY_PUBLICATIONS, UDP_PUBLICATIONS, PublishedPort, PublishedProtocol
from virtcloud.model.guest_spec import Guest
from virtcloud.model.image import ImageSource
from virtcloud.model.topology import Topology
from virtcloud.model.values import Address, ClusterKey, Name
from virtcloud.model.wanted import HostWanted

SHOWN_GUESTS: Final = 5


@dataclass(frozen=True, slots=True)
class ImagedGuest:
    """A guest of a network. ``source`` is the source of its image, or None for a host's own image.

    ``quarantined``: the guest's cluster has ended, but an element has not confirmed the removal.
    """

    cluster: ClusterKey
    name: Name
    image: Name
    source: ImageSource | None
    quarantined: bool = False


def publishes(gateway: Gateway) -> bool:
    """Return whether users may publish guests at a gateway."""
    return gateway.outside is not None and gateway.outside.publish_ports is not None


def make_publisher_role(topology: Topology, site: Name | None) -> GatewayRole:
    """Return the role of the gateways at ``site`` that publish ports.

    Raise NoGateway if no gateway at ``site`` publishes ports.
    """
    sites = list_publishing_sites(topology)
    if site is None or site not in sites:
        raise NoGateway(
            f"site {site} publishes no ports: no gateway there has `publish_ports`; sites that publish ports: "
            f"{', '.join(sites) or 'none'}"
        )
    names = frozenset(gateway.name for gateway in topology.site(site).gateways)
    return GatewayRole(f"`publish_ports` at site {site}", lambda gateway: publishes(gateway) and gateway.name in names)


def list_publishing_sites(topology: Topology) -> list[Name]:
    """Return the sites whose gateways publish ports, in the topology's order."""
    return [site.name for site in topology.sites if any(publishes(gateway) for gateway in site.gateways)]


_ENDED: Final = "; the cluster has ended, but the guest may still run"


def describe_uncertified(
    guests: Iterable[ImagedGuest], certified: Mapping[Name, ImageSource], site: Name
) -> str | None:
    """Return the reason why a network may not be published at a site, or None.

    ``certified`` are the catalogue's images that are certified for the site. A host's own image is never certified,
    whatever its name.
    """
    faults = [
        f"{guest.name} of cluster {guest.cluster} (image {guest.image}{_ENDED * guest.quarantined})"
        for guest in guests
        if guest.source is None or certified.get(guest.image) != guest.source
    ]
    if not faults:
        return None
    rest = f" and {len(faults) - SHOWN_GUESTS} more" if len(faults) > SHOWN_GUESTS else ""
    return f"guests without an image that is certified for site {site}: {', '.join(faults[:SHOWN_GUESTS])}{rest}"


def make_not_certified(key: str, reason: str) -> NotAdmitted:
    """Return the error for a cluster whose guests may not be published at a site."""
    return NotAdmitted(
        f"cluster {key} may not be published: {reason}; use images that an administrator of the site certified "
        "(virtcloud image list), or publish the guest through your own computer: virtcloud access router"
    )


def choose_addresses(
    guest: Guest, gateway: Gateway, own: Iterable[Address]
) -> tuple[IPv4Address | IPv6Address, IPv4Address | IPv6Address]:
    """Return a gateway's outside address and a guest's address of the same IP version, IPv4 if possible.

    ``own`` are the gateway's addresses in the network. Raise BadInput if the guest has no suitable address.
    """
    outside = {address.version: address for address in (gateway.outside.addresses if gateway.outside else ())}
    subnets = [ip_interface(text).network for text in own]
    for address in sorted(map(ip_interface, guest.addresses), key=lambda one: one.version):
        if address.version in outside and any(address.ip in subnet for subnet in subnets):
            return outside[address.version], address.ip
    texts = " and ".join(str(address) for address in outside.values())
    raise BadInput(
        f"guest {guest.name}: expected an address in a subnet of the network, with the IP version of "
        f"gateway {gateway.name}'s outside address ({texts}); got {' and '.join(guest.addresses) or 'none'}"
    )


def choose_port(gateway: Gateway, taken: Collection[int], preferred: int | None = None) -> int | None:
    """Return a free port of a gateway's ``publish_ports``: ``preferred`` if possible, otherwise the lowest free port.

    Return None if all ports are in ``taken``.
    """
    found = gateway.outside.publish_ports if gateway.outside else None
    ports = found.ports if found is not None else range(0)
    if preferred in ports and preferred not in taken:
        return preferred
    return next((port for port in ports if port not in taken), None)


def make_no_port(gateways: Iterable[Gateway]) -> NoPortFree:
    """Return the error for gateways without a free port."""
    ranges = [f"{one.name}: {one.outside.publish_ports}" for one in gateways if one.outside]
    return NoPortFree(
        f"expected a free port to publish a guest, got none ({', '.join(ranges)}): end a publication with 'virtcloud "
        "cluster unpublish', choose another site, or ask an administrator for a larger range `publish_ports`"
    )


@dataclass(frozen=True, slots=True)
class ActivePublication:
    """A publication of a guest's port. ``network`` is the ID of the cluster that created the network."""

    network: str
    published: PublishedPort


def describe_outdated(gateway: Gateway | None, port: int, version: int) -> str | None:
    """Return the reason why the topology does not allow a publication at a port, or None.

    ``gateway`` is None if the topology does not contain the gateway. ``version`` is the IP version of the publication.
    """
    link = gateway.outside if gateway is not None else None
    if link is None or link.publish_ports is None or port not in link.publish_ports.ports:
        return f"the topology no longer publishes port {port} of this gateway"
    if version not in {address.version for address in link.addresses}:
        return f"the topology no longer has an IPv{version} address of this gateway"
    return None


def add_publications(wanted: HostWanted, publications: Iterable[ActivePublication]) -> HostWanted:
    """Add publications to a gateway's wanted state, and return the result."""
    by_network: dict[str, list[PublishedPort]] = {}
    for publication in publications:
        by_network.setdefault(publication.network, []).append(publication.published)
    return wanted.model_copy(
        update={
            "segments": tuple(
                segment.model_copy(
                    update={
                        "publications": tuple(by_network[segment.id]),
                        "requires": (*segment.requires, *_list_requirements(by_network[segment.id])),
                    }
                )
                if segment.id in by_network
                else segment
                for segment in wanted.segments
            )
        }
    )


def _list_requirements(publications: Iterable[PublishedPort]) -> tuple[str, ...]:
    has_udp = any(one.protocol is PublishedProtocol.UDP for one in publications)
    return (GATEWAY_PUBLICATIONS, *((UDP_PUBLICATIONS,) if has_udp else ()))


def list_imaged_guests(
    key: ClusterKey, guests: Iterable[Guest], images: Mapping[Name, ImageSource]
) -> Iterator[ImagedGuest]:
    """Yield the guests of a cluster, with the sources of their images in the catalogue (``images``)."""
    for guest in guests:
        yield ImagedGuest(key, guest.name, guest.image, images.get(guest.image))
