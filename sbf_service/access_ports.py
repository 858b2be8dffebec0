"""Access ports: each carries one cluster at a time. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from sbf_service.paths import ports_of
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.element import Switch
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortRef


@dataclass(frozen=True, slots=True)
class User:
    """A cluster as far as it matters here: ``network`` says which clusters share their ports, ``joined`` a member's."""

    key: str
    spec: ClusterSpec
    network: str
    transport: Name | None = None
    joined: ClusterSpec | None = None


def access_ports_of(topology: Topology, user: User) -> frozenset[PortRef]:
    """Give the switches' access ports that a cluster goes over. Raises as :func:`~sbf_service.paths.ports_of`."""
    ports = ports_of(topology, user.spec, user.transport, user.joined) & topology.access_ports
    return frozenset(port for port in ports if isinstance(topology.element(port.element), Switch))


def refuse_shared(topology: Topology, users: Iterable[User]) -> None:
    """Raise Conflict when two of these clusters, of two networks, go over one access port; it is the later's."""
    taken: dict[PortRef, User] = {}
    for user in users:
        for port in sorted(_ports(topology, user)):
            if port in taken and taken[port].network != user.network:
                raise Conflict(
                    f"cluster {user.key} needs access port {port}, which carries one cluster at a time and has "
                    f"{taken[port].key}: end that one first, or choose a host on a trunk"
                )
            taken.setdefault(port, user)


def refuse_trunk(former: Topology, topology: Topology, users: Iterable[User]) -> None:
    """Raise Conflict when an access port that one of these clusters has would be none any more.

    An untagged number on a trunk is somebody else's, for all that can be seen there, and would never be taken away.
    """
    for user in users:
        for port in sorted(_ports(former, user)):
            if port not in topology.access_ports:
                raise Conflict(f"cluster {user.key} has access port {port}, which would be none any more: end it first")


def _ports(topology: Topology, user: User) -> Iterable[PortRef]:
    """Give nothing for a cluster whose way is gone: it is ending, and where it still is cannot be said."""
    try:
        return access_ports_of(topology, user)
    except (Conflict, NotFound):
        return ()
