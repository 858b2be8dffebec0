"""Dry runs: the difference that a change would make on an element, and the VLANs and ports in other use on it. Pure.

The differences are computed as for reconciliation. :func:`find_other_use` lists what an administrator must check before
a change. Each kind of finding has its own function, which yields :class:`OtherUse`.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from sbf_service.domain.paths import LiveCluster
from sbf_service.domain.wanted import FindPorts, compute_wanted, find_ports_on
from virtcloud.model.changes import OtherUse, PlannedSegment
from virtcloud.model.edge import (
    Circuits,
    DeviceDifference,
    DeviceObserved,
    EdgeDifference,
    EdgeObserved,
    EdgeWanted,
    compare_edge,
)
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import HostWanted, PortVlans, SwitchDifference, SwitchObserved, SwitchWanted, compare_switch


def compute_switch_change(wanted: SwitchWanted, carried: PortVlans, managed: VlanSet) -> SwitchDifference:
    """Return the difference between a switch's last observed VLANs and its wanted state.

    The database stores only a part of the last reading. Ports that carry every VLAN are therefore not detected before
    the next reading.
    """
    ports = {port: carried.get(port, VlanSet()) & managed for port in wanted.ports}
    return compare_switch(wanted, SwitchObserved(vlans=SwitchWanted(ports=ports).vlans, ports=ports))


def compute_edge_change(wanted: EdgeWanted, carried: Circuits, managed: VlanSet) -> EdgeDifference:
    """Return the difference between an edge's last observed circuits and its wanted state.

    The database stores only a part of the last reading. Incomplete circuits are therefore not detected before the next
    reading.
    """
    managed_circuits = tuple(one for one in carried if one.vlan in managed)
    return compare_edge(wanted, EdgeObserved(circuits=managed_circuits))


def plan_segments(
    host: Name, topology: Topology, clusters: Iterable[LiveCluster], ports: FindPorts = find_ports_on
) -> tuple[PlannedSegment, ...]:
    """Return the segments that a host would set up for these clusters, sorted by the clusters' keys."""
    ordered = sorted(clusters, key=lambda cluster: cluster.key)
    return tuple(plan for cluster in ordered for plan in _plan_cluster_segments(host, topology, cluster, ports))


def _plan_cluster_segments(
    host: Name, topology: Topology, cluster: LiveCluster, ports: FindPorts
) -> list[PlannedSegment]:
    wanted = compute_wanted(host, topology, [cluster], ports)
    segments = wanted.segments if isinstance(wanted, HostWanted) else ()
    guests = tuple(guest for guest in cluster.spec.guests if guest.host == host)
    return [
        PlannedSegment(key=cluster.key, vlan=one.vlan, port=one.port, untagged=one.untagged, guests=guests)
        for one in segments
    ]


EXCLUDED_EFFECT = "left as it is; no cluster of this site gets this VLAN ID"


@dataclass(frozen=True, slots=True)
class ComparedDevice:
    """A device that was read for a dry run. ``owned`` are SBF's VLANs on the device, ``adopted`` its adopted ports."""

    element: Name
    site: Name
    carried: DeviceObserved
    difference: DeviceDifference
    owned: VlanSet
    adopted: Collection[PortName] = field(default=())

    @property
    def refused(self) -> list[PortName]:
        """The managed ports in other use that no administrator adopted."""
        in_use = self.carried.in_use if isinstance(self.carried, SwitchObserved) else ()
        return [port for port in in_use if port not in self.adopted]


def find_other_use(found: ComparedDevice) -> tuple[OtherUse, ...]:
    """Return all VLANs and ports in other use on the device, in the order of display."""
    return (*_list_foreign_vlans(found), *_list_ports_in_use(found), *_list_removed_vlans(found))


def _list_foreign_vlans(found: ComparedDevice) -> Iterator[OtherUse]:
    """Yield the pool's VLANs that SBF does not own or that unmanaged ports carry. SBF does not change these VLANs."""
    for one in found.carried.foreign:
        yield OtherUse(
            element=found.element,
            site=found.site,
            vlans=VlanSet([one.vlan]),
            ports=one.ports,
            found=f"VLAN {one.vlan}: {one.use}",
            effect=EXCLUDED_EFFECT,
        )


def _list_ports_in_use(found: ComparedDevice) -> Iterator[OtherUse]:
    """Yield managed ports in other use that no administrator adopted. SBF does not change these ports."""
    untaken = found.carried.untaken if isinstance(found.carried, SwitchObserved) else {}
    for port in found.refused:
        adopt = f"virtcloud element adopt {found.element} {port}"
        yield OtherUse(
            element=found.element,
            site=found.site,
            ports=(port,),
            found=f"managed port {port} is {untaken[port]}",
            effect=f"left as it is, and no cluster can use it, until '{adopt}'",
        )


def _list_removed_vlans(found: ComparedDevice) -> Iterator[OtherUse]:
    """Yield managed ports that carry all VLANs, or VLANs of no cluster. The change would remove these VLANs."""
    difference = found.difference
    if not isinstance(difference, SwitchDifference):
        return
    for port, vlans in difference.remove.items():
        others = vlans - found.owned
        if others and port not in found.refused:
            yield OtherUse(
                element=found.element,
                site=found.site,
                vlans=others,
                ports=(port,),
                found=f"port {port} carries VLAN {others}, which no cluster has",
                effect="taken off the port",
                asks=True,
            )
    for port in (one for one in difference.close if one not in found.refused):
        yield OtherUse(
            element=found.element,
            site=found.site,
            ports=(port,),
            found=f"port {port} carries VLANs outside the pool, or every VLAN",
            effect="the port gets its own list of VLAN IDs",
            asks=True,
        )
