"""Descriptions of the faults of a host that no step of the agent corrects. Pure.

The owners of the affected clusters can read the descriptions. The agent reports these faults for as long as they last:
a cluster with such a fault is incomplete.

If a running guest has lost its port, the agent does not attach a new port. QEMU cannot connect an existing network card
to another tap. The agent would have to remove the card and add it again, and the guest would have to cooperate in the
removal. In a container, only the guest knows its addresses and routes. Therefore the guest needs a reset. The agent
does not reset a running guest by itself, because the guest's memory would be lost.
"""

from collections.abc import Callable, Iterator
from typing import Final

from virtcloud.agent.gateway.outside_difference import find_outside_faults
from virtcloud.agent.host_conclusions import map_cluster_keys
from virtcloud.agent.network import names
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.step_application import ClusterErrors
from virtcloud.model.wanted import GuestWanted, HostWanted, Segment

PORT_S: Final = 10.0
"""Time in seconds for which a running guest may lack its port: a container that reboots has no port for a moment."""


class LastingFaults:
    """The lasting faults at the end of each round of the reconciler."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without a reading. ``clock`` returns seconds."""
        self._clock = clock
        self._without_port = dict[tuple[str, str], float]()
        """The time of the first reading without a port, by network ID and name of the running guest."""

    def describe(self, wanted: HostWanted, observed: ObservedHost) -> ClusterErrors:
        """Return the faults by cluster ID. Call this method once for each round, with the round's last reading.

        Report a missing port only after all readings have lacked the port for `PORT_S` seconds.
        """
        now, missing = self._clock(), list(_find_guests_without_port(wanted, observed))
        guests = [(segment.id, guest.name) for segment, guest in missing]
        self._without_port = {guest: self._without_port.get(guest, now) for guest in guests}
        keys, found = map_cluster_keys(wanted), dict[str, list[str]]()
        for segment, guest in missing:
            if now - self._without_port[segment.id, guest.name] >= PORT_S:
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
