"""What would be changed on an element, from what it was last seen to carry. Pure; the mechanism's own difference."""

from collections.abc import Iterable

from sbf_service.wanted import LiveCluster, PortsOn, ports_on, wanted
from virtcloud.model.edge import Circuits, EdgeCarried, EdgeDifference, EdgeWanted, edge_difference
from virtcloud.model.preview import SegmentPlan
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import (
    HostWanted,
    PortVlans,
    SwitchCarried,
    SwitchDifference,
    SwitchWanted,
    switch_difference,
)


def change_of(must: SwitchWanted, carried: PortVlans, managed: VlanSet) -> SwitchDifference:
    """Say what makes a switch that carries this carry what it must.

    Only what was kept of the last reading is known: ports that carry every VLAN are found when it is read again.
    """
    ports = {port: carried.get(port, VlanSet()) & managed for port in must.ports}
    return switch_difference(must, SwitchCarried(vlans=SwitchWanted(ports=ports).vlans, ports=ports))


def edge_change_of(must: EdgeWanted, carried: Circuits, managed: VlanSet) -> EdgeDifference:
    """Say what makes an edge that carries these circuits carry what it must.

    Only what was kept of the last reading is known: what is not whole is found when it is read again.
    """
    ours = tuple(one for one in carried if one.vlan in managed)
    return edge_difference(must, EdgeCarried(circuits=ours))


def plans(
    host: Name, topology: Topology, clusters: Iterable[LiveCluster], ports: PortsOn = ports_on
) -> tuple[SegmentPlan, ...]:
    """Return what a host would have to set up for these clusters, in the order of their keys."""
    ordered = sorted(clusters, key=lambda cluster: cluster.key)
    return tuple(plan for cluster in ordered for plan in _plans(host, topology, cluster, ports))


def _plans(host: Name, topology: Topology, cluster: LiveCluster, ports: PortsOn) -> list[SegmentPlan]:
    must = wanted(host, topology, [cluster], ports)
    segments = must.segments if isinstance(must, HostWanted) else ()
    guests = tuple(guest for guest in cluster.spec.guests if guest.host == host)
    return [
        SegmentPlan(key=cluster.key, vlan=one.vlan, port=one.port, untagged=one.untagged, guests=guests)
        for one in segments
    ]
