"""The faults of a host that no step of the agent corrects, for the owners of the clusters concerned. Pure.

The agent reports these faults for as long as they last: a cluster with such a fault is incomplete.

The agent does not attach a new port to a running guest. QEMU cannot use another tap for a network card, so the guest
would have to take part in the removal of its card. In a container, only the guest knows its addresses and routes.
Therefore the guest needs a reset. The agent does not reset a running guest by itself, because its memory would be lost.
"""

from collections.abc import Iterator

from virtcloud.agent.gateway.outside_difference import find_outside_faults
from virtcloud.agent.host_conclusions import map_cluster_keys
from virtcloud.agent.network import names
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.step_application import ClusterErrors
from virtcloud.model.wanted import GuestWanted, HostWanted, Segment


class LastingFaults:
    """The lasting faults at the end of each round of the reconciler."""

    def __init__(self) -> None:
        """Start without a reading."""
        self._without_port = frozenset[tuple[str, str]]()
        """The running guests without a port at the last reading, by network ID and name."""

    def describe(self, wanted: HostWanted, observed: ObservedHost) -> ClusterErrors:
        """Return the faults by cluster ID. Call this method once for each round, with the round's last reading.

        Report a missing port only if the previous round found it missing too: the agent reads the guests before their
        ports, and a container that reboots has no port for a moment.
        """
        former, missing = self._without_port, list(_find_guests_without_port(wanted, observed))
        self._without_port = frozenset((segment.id, guest.name) for segment, guest in missing)
        keys, found = map_cluster_keys(wanted), dict[str, list[str]]()
        for segment, guest in missing:
            if (segment.id, guest.name) in former:
                cluster = guest.cluster or segment.id
                port = names.guest_port_name(segment.id, guest.name, segment.vlan)
                found.setdefault(cluster, []).append(
                    f"guest {guest.name} runs without a network: expected its port {port} on the host, found none "
                    "(another program deleted the port, or root deleted eth0 in the container); reset the guest: "
                    f"virtcloud guest reset {keys.get(cluster, cluster)} {guest.name}"
                )
        for segment in wanted.segments:
            for fault in find_outside_faults(segment, observed.outside):
                found.setdefault(segment.id, []).append(fault)
        return {cluster: "; ".join(faults) for cluster, faults in found.items()}


def _find_guests_without_port(wanted: HostWanted, observed: ObservedHost) -> Iterator[tuple[Segment, GuestWanted]]:
    """Yield the running guests without a port, of those networks whose bridge exists."""
    running = {(guest.cluster, guest.guest) for guest in observed.guests if guest.running}
    interfaces = {(segment.cluster, segment.vlan): segment.mtus for segment in observed.segments}
    for segment in wanted.segments:
        present = interfaces.get((segment.id, segment.vlan), {})
        for guest in segment.guests if names.bridge_name(segment.vlan) in present else ():
            port = names.guest_port_name(segment.id, guest.name, segment.vlan)
            if (segment.id, guest.name) in running and port not in present:
                yield segment, guest
