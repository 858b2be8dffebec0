"""The roles of gateways, and their routers and addresses in wanted documents. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.element import Gateway
from virtcloud.model.errors import NotFound
from virtcloud.model.gateway_access import (
    GATEWAY_ADDRESSES,
    GATEWAY_FQDNS,
    GATEWAY_ROUTER,
    Destination,
    GatewayRouter,
    OutsideLink,
)
from virtcloud.model.nfs import NFS
from virtcloud.model.topology import Topology
from virtcloud.model.values import Address, Name
from virtcloud.model.wanted import HostWanted, Segment


@dataclass(frozen=True, slots=True)
class GatewayRole:
    """A task of gateways.

    ``remedy`` is the advice to a user whose cluster's sites have no gateway with this role. Its ``{site}`` is replaced
    with a site that has such a gateway, or with SITE.
    """

    description: str
    fits: Callable[[Gateway], bool]
    remedy: str = (
        "Create the cluster with a host at the site of a gateway, or ask an administrator to set up a gateway "
        "(docs/how-to/set-up-a-gateway.md)"
    )

    def has(self, topology: Topology, gateway: Name) -> bool:
        """Return whether the topology contains this gateway and the gateway has this role."""
        found = topology.gateways.get(gateway)
        return found is not None and self.fits(found)


VPN_SERVER: Final = GatewayRole("an OpenVPN server", lambda gateway: gateway.vpn is not None)
SSH_SERVER: Final = GatewayRole("an sshd for users", lambda gateway: gateway.ssh is not None)
OUTSIDE_LINK: Final = GatewayRole("a link to the outside", lambda gateway: gateway.outside is not None)
FILE_SERVER: Final = GatewayRole(
    f"the service {NFS}",
    lambda gateway: gateway.nfs is not None,
    "Extend the cluster to such a site, with --reach {site}",
)


def list_roles(spec: ClusterSpec) -> tuple[GatewayRole, ...]:
    """Return each role for which a new cluster with this spec needs a gateway."""
    return (*((VPN_SERVER,) if spec.vpn else ()), *((OUTSIDE_LINK,) if spec.router == "gateway" else ()))


def check_destinations(topology: Topology, spec: ClusterSpec, sites: Collection[Name]) -> None:
    """Raise NotFound if a spec names a destination that no site of the cluster has.

    Ignore removed sites in ``sites``: a network keeps its VLAN ID at a site that an administrator removed after the
    site's clusters ended.
    """
    known = {one.name for site in topology.sites if site.name in sites for one in site.destinations}
    for name in spec.outside:
        if name not in known:
            texts = ", ".join(sorted(known)) or "none"
            raise NotFound(f"destination {name} is not known at the sites of the cluster; known destinations: {texts}")


def make_router(spec: ClusterSpec, link: OutsideLink, destinations: Iterable[Destination]) -> GatewayRouter:
    """Return the part of a gateway's wanted document for a network that has the gateway as router.

    The router allows those of the site's ``destinations`` that ``spec`` names.
    """
    allowed = tuple(destination for destination in destinations if destination.name in spec.outside)
    return GatewayRouter(
        addresses=spec.router_addresses or (),
        link=link,
        destinations=tuple(destination for destination in allowed if not destination.fqdns),
        named_destinations=tuple(destination for destination in allowed if destination.fqdns),
    )


def describe_lost_link(topology: Topology, router: Name) -> str | None:
    """Return why a network's router ``router`` has no link to the outside, or None if the router has a link."""
    if OUTSIDE_LINK.has(topology, router):
        return None
    site = topology.site_of.get(router)
    if site is None:
        place, loss, adviser = "", "is no longer in the topology", "an operator"
    else:
        place, loss = f" at {site.name}", "no longer has a link to the outside"
        adviser = f"the administrator of {site.name}"
    return (
        f"guests reach nothing outside their network: the router, gateway {router}{place}, {loss}, and no "
        f"other gateway of the network can replace it; ask {adviser}"
    )


def add_routers(wanted: HostWanted, routers: Mapping[str, GatewayRouter]) -> HostWanted:
    """Return a gateway's wanted state with ``routers``, which has routers by network ID."""
    segments = tuple(
        _add_router(segment, routers[segment.id]) if segment.id in routers else segment for segment in wanted.segments
    )
    return wanted.model_copy(update={"segments": segments})


def _add_router(segment: Segment, router: GatewayRouter) -> Segment:
    requires = (GATEWAY_ROUTER, GATEWAY_FQDNS) if router.named_destinations else (GATEWAY_ROUTER,)
    return segment.model_copy(update={"router": router, "requires": (*segment.requires, *requires)})


def add_gateway_addresses(wanted: HostWanted, addresses: Mapping[str, tuple[Address, ...]]) -> HostWanted:
    """Return a gateway's wanted state with ``addresses``, which has addresses by network ID."""
    segments = tuple(_add_to_segment(segment, addresses.get(segment.id, ())) for segment in wanted.segments)
    return wanted.model_copy(update={"segments": segments})


def _add_to_segment(segment: Segment, addresses: tuple[Address, ...]) -> Segment:
    if not addresses:
        return segment
    added = {"gateway_addresses": addresses, "requires": (*segment.requires, GATEWAY_ADDRESSES)}
    return segment.model_copy(update=added)
