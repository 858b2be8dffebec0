"""Whether a network can be joined over a transport without being moved. Pure.

Access ports: each carries one cluster at a time. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sbf_service.domain.paths import find_path_ports
from sbf_service.domain.wanted import LiveCluster
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.element import Switch
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.topology import Site, Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortRef


def check_paths_unchanged(topology: Topology, network: LiveCluster, transport: Transport | None) -> None:
    """Raise Conflict when a network of one site has another way there than the one that leads to this transport."""
    if transport is None:
        return
    before, after = (find_path_ports(topology, network.spec, on) for on in (None, transport.name))
    if before != after:
        lost = ", ".join(sorted(before - after))
        raise Conflict(
            f"network {network.key} would be moved to other ports to meet transport {transport.name} (off {lost}): "
            f"choose a host at its own site"
        )


def check_sites_attached(network: LiveCluster, sites: Iterable[Site]) -> None:
    """Raise Conflict for a site to which the transport that a network is on does not lead."""
    for site in sites:
        if network.transport not in {one.transport for one in site.attachments}:
            raise Conflict(
                f"network {network.key} is joined by transport {network.transport}, to which site {site.name} is not "
                f"attached: choose a host at another site"
            )


@dataclass(frozen=True, slots=True)
class AccessPortUser:
    """A cluster as far as it matters here: ``network`` says which clusters share their ports, ``joined`` a member's."""

    key: str
    spec: ClusterSpec
    network: str
    transport: Name | None = None
    joined: ClusterSpec | None = None


def find_access_ports(topology: Topology, user: AccessPortUser) -> frozenset[PortRef]:
    """Return the switches' access ports on a cluster's paths; raises as ``find_path_ports``."""
    ports = find_path_ports(topology, user.spec, user.transport, user.joined) & topology.access_ports
    return frozenset(port for port in ports if isinstance(topology.element(port.element), Switch))


def check_ports_exclusive(topology: Topology, users: Iterable[AccessPortUser]) -> None:
    """Raise Conflict when two of these clusters, of two networks, go over one access port; it is the later's."""
    taken: dict[PortRef, AccessPortUser] = {}
    for user in users:
        for port in sorted(_find_known_ports(topology, user)):
            if port in taken and taken[port].network != user.network:
                raise Conflict(
                    f"cluster {user.key} needs access port {port}, which carries one cluster at a time and has "
                    f"{taken[port].key}: end that one first, or choose a host on a trunk"
                )
            taken.setdefault(port, user)


def check_ports_stay_access(former: Topology, topology: Topology, users: Iterable[AccessPortUser]) -> None:
    """Raise Conflict when an access port that one of these clusters has would be none any more.

    An untagged number on a trunk is somebody else's, for all that can be seen there, and would never be taken away.
    """
    for user in users:
        for port in sorted(_find_known_ports(former, user)):
            if port not in topology.access_ports:
                raise Conflict(f"cluster {user.key} has access port {port}, which would be none any more: end it first")


def _find_known_ports(topology: Topology, user: AccessPortUser) -> Iterable[PortRef]:
    """Give nothing for a cluster whose way is gone: it is ending, and where it still is cannot be said."""
    try:
        return find_access_ports(topology, user)
    except (Conflict, NotFound):
        return ()
