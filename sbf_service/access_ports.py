"""Access ports: each carries one cluster at a time. Pure."""

from collections.abc import Iterable

from sbf_service.paths import ports_of
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.topology import Switch, Topology
from virtcloud.model.values import PortRef


def access_ports_of(topology: Topology, spec: ClusterSpec) -> frozenset[PortRef]:
    """Give the switches' access ports that a cluster goes over. Raises as :func:`~sbf_service.paths.ports_of`."""
    ports = ports_of(topology, spec) & topology.access_ports
    return frozenset(port for port in ports if isinstance(topology.element(port.element), Switch))


def refuse_shared(topology: Topology, users: Iterable[tuple[str, ClusterSpec]]) -> None:
    """Raise Conflict when two of these clusters, each with its key, go over one access port; it is the later's."""
    taken: dict[PortRef, str] = {}
    for key, spec in users:
        for port in sorted(_ports(topology, spec)):
            if port in taken:
                raise Conflict(
                    f"cluster {key} needs access port {port}, which carries one cluster at a time and has "
                    f"{taken[port]}: end that one first, or choose a host on a trunk"
                )
            taken[port] = key


def refuse_trunk(former: Topology, topology: Topology, users: Iterable[tuple[str, ClusterSpec]]) -> None:
    """Raise Conflict when an access port that one of these clusters has would be none any more.

    An untagged number on a trunk is somebody else's, for all that can be seen there, and would never be taken away.
    """
    for key, spec in users:
        for port in sorted(_ports(former, spec)):
            if port not in topology.access_ports:
                raise Conflict(f"cluster {key} has access port {port}, which would be none any more: end it first")


def _ports(topology: Topology, spec: ClusterSpec) -> Iterable[PortRef]:
    """Give nothing for a cluster whose way is gone: it is ending, and where it still is cannot be said."""
    try:
        return access_ports_of(topology, spec)
    except (Conflict, NotFound):
        return ()
