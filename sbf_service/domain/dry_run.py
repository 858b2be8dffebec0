"""Dry runs: the changes that SBF would make on an element, and the element's VLANs and ports in other use. Pure.

An administrator must check these VLANs and ports before SBF manages a device. Dry runs and reconciliations compute
differences with the same functions.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from sbf_service.domain.paths import LiveCluster
from sbf_service.domain.wanted import compute_wanted
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
from virtcloud.model.switch_state import PortVlans, SwitchDifference, SwitchObserved, SwitchWanted, compare_switch
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import HostWanted


def compute_switch_change(wanted: SwitchWanted, carried: PortVlans, managed: VlanSet) -> SwitchDifference:
    """Return the difference between a switch's last observed VLANs and its wanted state.

    The database stores only a part of what SBF reads from a switch. Therefore, a port that carries every VLAN is
    detected only when SBF reads the switch.
    """
    ports = {port: carried.get(port, VlanSet()) & managed for port in wanted.ports}
    return compare_switch(wanted, SwitchObserved(vlans=SwitchWanted(ports=ports).vlans, ports=ports))


def compute_edge_change(wanted: EdgeWanted, carried: Circuits, managed: VlanSet) -> EdgeDifference:
    """Return the difference between an edge's last observed circuits and its wanted state.

    The database stores only a part of what SBF reads from an edge. Therefore, an incomplete circuit is detected only
    when SBF reads the edge.
    """
    circuits = tuple(circuit for circuit in carried if circuit.vlan in managed)
    return compare_edge(wanted, EdgeObserved(circuits=circuits))


def plan_segments(host: Name, topology: Topology, clusters: Iterable[LiveCluster]) -> tuple[PlannedSegment, ...]:
    """Return the segments that a host would set up for these clusters, sorted by the clusters' keys.

    The segments contain no user data of guests: user data can contain secrets, and SBF writes the segments to the audit
    log.
    """
    ordered = sorted(clusters, key=lambda cluster: cluster.key)
    return tuple(segment for cluster in ordered for segment in _plan_cluster_segments(host, topology, cluster))


def _plan_cluster_segments(host: Name, topology: Topology, cluster: LiveCluster) -> list[PlannedSegment]:
    wanted = compute_wanted(host, topology, [cluster])
    segments = wanted.segments if isinstance(wanted, HostWanted) else ()
    guests = tuple(guest.model_copy(update={"user_data": None}) for guest in cluster.spec.guests if guest.host == host)
    return [
        PlannedSegment(key=cluster.key, vlan=segment.vlan, port=segment.port, untagged=segment.untagged, guests=guests)
        for segment in segments
    ]


EXCLUDED_EFFECT = "left unchanged; no cluster of this site can get this VLAN ID"


@dataclass(frozen=True, slots=True)
class ComparedDevice:
    """A device that SBF read for a dry run, with SBF's VLANs (``owned``) and the adopted ports (``adopted``)."""

    element: Name
    site: Name
    observed: DeviceObserved
    difference: DeviceDifference
    owned: VlanSet
    adopted: Collection[PortName] = field(default=())

    @property
    def refused(self) -> list[PortName]:
        """The managed ports in other use that no administrator adopted."""
        in_use = self.observed.in_use if isinstance(self.observed, SwitchObserved) else ()
        return [port for port in in_use if port not in self.adopted]


def find_other_use(device: ComparedDevice) -> tuple[OtherUse, ...]:
    """Return all VLANs and ports in other use on the device, in the order of display."""
    return (*_list_foreign_vlans(device), *_list_ports_in_use(device), *_list_removed_vlans(device))


def _list_foreign_vlans(device: ComparedDevice) -> Iterator[OtherUse]:
    for foreign in device.observed.foreign:
        yield OtherUse(
            element=device.element,
            site=device.site,
            vlans=VlanSet([foreign.vlan]),
            ports=foreign.ports,
            found=f"VLAN {foreign.vlan}: {foreign.use}",
            effect=EXCLUDED_EFFECT,
        )


def _list_ports_in_use(device: ComparedDevice) -> Iterator[OtherUse]:
    untaken = device.observed.untaken if isinstance(device.observed, SwitchObserved) else {}
    for port in device.refused:
        adopt = f"virtcloud element adopt {device.element} {port}"
        yield OtherUse(
            element=device.element,
            site=device.site,
            ports=(port,),
            found=f"managed port {port} is {untaken[port]}",
            effect=f"left unchanged; clusters cannot use the port until an administrator runs '{adopt}'",
        )


def _list_removed_vlans(device: ComparedDevice) -> Iterator[OtherUse]:
    """Yield the managed ports that would lose all VLANs, or VLANs that SBF does not own and that no cluster uses.

    Omit ports in other use that no administrator adopted.
    """
    difference = device.difference
    if not isinstance(difference, SwitchDifference):
        return
    for port, vlans in difference.remove.items():
        others = vlans - device.owned
        if others and port not in device.refused:
            yield OtherUse(
                element=device.element,
                site=device.site,
                vlans=others,
                ports=(port,),
                found=f"port {port} carries VLAN {others}, which no cluster uses",
                effect="removed from the port",
                asks=True,
            )
    for port in (port for port in difference.close if port not in device.refused):
        yield OtherUse(
            element=device.element,
            site=device.site,
            ports=(port,),
            found=f"port {port} carries VLANs outside the pool, or every VLAN",
            effect="SBF removes all VLANs from the port, then adds the VLANs of clusters",
            asks=True,
        )
