"""The observed segments of a host, and the segments' faults. Ownership aliases identify the segments' interfaces."""

from collections.abc import Container, Iterable, Iterator

from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import KernelInterface, UplinkRecord
from virtcloud.agent.observed_host import ObservedSegment


def find_segments(
    interfaces: Iterable[KernelInterface], records: Iterable[UplinkRecord] = (), filters: tuple[str, ...] = ()
) -> Iterator[ObservedSegment]:
    """Yield the segments whose interfaces have an ownership alias, with their faults. Pure.

    ``records`` are the records of untagged segments' uplinks. A segment with a record is yielded even without
    interfaces, because the segment's uplink must be restored. If a killed agent left interfaces without an alias, a
    segment of the cluster "" is yielded for each VLAN ID of these interfaces. ``filters`` are the sysctls that pass
    frames of all bridges to the host's packet filter. Each of these sysctls is a fault of every segment with an
    ownership alias. If only a renamed bridge is left of a cluster, a segment with the VLAN ID 0 is yielded for this
    cluster.
    """
    by_index = {interface.index: interface for interface in interfaces}
    clusters_and_vlans = {
        (cluster, vlan)
        for interface in by_index.values()
        for cluster in [names.cluster_of_alias(interface.alias)]
        if cluster
        for vlan in _vlan_ids(interface)
    }
    untagged = {(record.cluster, record.vlan) for record in records}
    for cluster, vlan in sorted(untagged - clusters_and_vlans):
        yield ObservedSegment(cluster, vlan, None, ("the bridge is missing",), untagged=True)
    yield from _find_remains(by_index.values(), {cluster for cluster, _ in clusters_and_vlans | untagged})
    for cluster, vlan in sorted(clusters_and_vlans):
        owned = find_owned(cluster, vlan, by_index.values())
        tagged = next((interface for interface in owned if _is_tagged_uplink(interface)), None)
        bridge = next((interface for interface in owned if interface.kind == "bridge"), None)
        untagged_uplink = names.uplink_of_alias(bridge.alias) if bridge else None
        uplink = by_index.get(tagged.parent or 0) if tagged else _find_interface(untagged_uplink, by_index.values())
        interface_faults = _find_faults(vlan, tagged or uplink, bridge, uplink, by_index.values())
        renamed = _describe_renamed(cluster, vlan, by_index.values())
        faults = (*interface_faults, *(f"{sysctl} is set" for sysctl in filters), *renamed)
        ports = (interface for interface in by_index.values() if names.is_guest_port(interface.name, vlan))
        yield ObservedSegment(
            cluster,
            vlan,
            uplink.name if uplink else untagged_uplink,
            faults,
            untagged_uplink is not None or (tagged is None and bridge is None and (cluster, vlan) in untagged),
            {interface.name: interface.mtu for interface in (tagged, bridge, *ports) if interface is not None},
            uplink.mtu if uplink else None,
            tuple(sorted(interface.name for interface in owned if is_job_port(interface, cluster, vlan))),
            renamed,
        )


def _describe_renamed(cluster: str, vlan: int, interfaces: Iterable[KernelInterface]) -> tuple[str, ...]:
    found = find_renamed(cluster, vlan, interfaces)
    return tuple(f"{bridge.name} is a renamed bridge of the cluster" for bridge in found)


def _find_remains(interfaces: Iterable[KernelInterface], known: Container[str]) -> Iterator[ObservedSegment]:
    """Yield the segments of renamed bridges of clusters that are not in ``known``, and of incomplete interfaces."""
    listed = list(interfaces)
    renamed = (interface for interface in listed if is_renamed(interface) and not find_foreign_ports(interface, listed))
    clusters = {names.cluster_of_alias(interface.alias) or "" for interface in renamed}
    for cluster in sorted(cluster for cluster in clusters if cluster not in known):
        yield ObservedSegment(cluster, 0, None, ("a renamed bridge of the cluster",))
    for vlan in sorted({vlan_of_incomplete(interface) or 0 for interface in listed} - {0}):
        yield ObservedSegment("", vlan, None, ("a killed agent left an interface without an alias",))


def find_owned(cluster: str, vlan: int, interfaces: Iterable[KernelInterface]) -> list[KernelInterface]:
    """Return the interfaces with the cluster's ownership alias and this VLAN ID."""
    return [interface for interface in find_owned_by(cluster, interfaces) if vlan in _vlan_ids(interface)]


def is_renamed(interface: KernelInterface) -> bool:
    """Return whether an interface is a cluster's bridge that another program renamed."""
    is_bridge = interface.kind == "bridge" and names.cluster_of_alias(interface.alias) is not None
    return is_bridge and names.vlan_of_bridge(interface.name) is None


def find_renamed(cluster: str, vlan: int, interfaces: Iterable[KernelInterface]) -> list[KernelInterface]:
    """Return the cluster's renamed bridges, except bridges with a port of the cluster in another VLAN.

    Also omit bridges with a foreign port: another program uses these bridges, so they stay.
    """
    listed = list(interfaces)
    elsewhere = {one.master for one in find_owned_by(cluster, listed) if _vlan_ids(one) - {vlan}}
    renamed = (one for one in find_owned_by(cluster, listed) if is_renamed(one) and one.index not in elsewhere)
    return [one for one in renamed if not find_foreign_ports(one, listed)]


def find_foreign_ports(bridge: KernelInterface, interfaces: Iterable[KernelInterface]) -> list[KernelInterface]:
    """Return the ports of a cluster's bridge that belong neither to the cluster nor to a guest."""
    cluster, uplink = names.cluster_of_alias(bridge.alias), names.uplink_of_alias(bridge.alias)
    ports = (interface for interface in interfaces if interface.master == bridge.index and interface.name != uplink)
    return [
        port for port in ports if names.cluster_of_alias(port.alias) != cluster and not names.is_guest_port(port.name)
    ]


def find_owned_by(cluster: str, interfaces: Iterable[KernelInterface]) -> list[KernelInterface]:
    """Return the interfaces with the cluster's ownership alias."""
    return [interface for interface in interfaces if names.cluster_of_alias(interface.alias) == cluster]


def vlan_of_incomplete(interface: KernelInterface) -> int | None:
    """Return the VLAN ID of an interface that a killed agent left without an alias, or None for another interface."""
    return None if interface.alias else names.vlan_of_incomplete(interface.name)


def _is_tagged_uplink(interface: KernelInterface) -> bool:
    return interface.kind == "vlan" and names.vlan_of_vpn_port(interface.name) is None


def _find_interface(name: str | None, interfaces: Iterable[KernelInterface]) -> KernelInterface | None:
    return next((interface for interface in interfaces if interface.name == name), None)


def _find_faults(
    vlan: int,
    port: KernelInterface | None,
    bridge: KernelInterface | None,
    uplink: KernelInterface | None,
    interfaces: Iterable[KernelInterface],
) -> Iterator[str]:
    """Yield the faults of a segment. ``port`` is the tagged interface, or the uplink of an untagged segment."""
    if port is None or bridge is None or uplink is None:
        yield "the bridge is missing" if bridge is None else "the tagged interface is missing"
        return
    if port.master != bridge.index:
        yield f"{port.name} is not on {bridge.name}"
    for interface in (port, bridge):
        if not interface.up:
            yield f"{interface.name} is down"
        if not interface.host_ip_disabled:
            yield f"the host's IP stack uses {interface.name}"
    if bridge.packet_filtered:
        yield f"{bridge.name} passes its frames to the host's packet filter"
    for interface in interfaces:
        if _is_bridge_port(interface, vlan, names.cluster_of_alias(bridge.alias)) and interface.master != bridge.index:
            yield f"{interface.name} is not on {bridge.name}"


def _is_bridge_port(interface: KernelInterface, vlan: int, cluster: str | None) -> bool:
    return names.is_guest_port(interface.name, vlan) or is_job_port(interface, cluster, vlan)


def is_job_port(interface: KernelInterface, cluster: str | None, vlan: int) -> bool:
    """Return whether an interface is a port of a job or session on the cluster's bridge."""
    return (
        names.vlan_of_job_port(interface.name) == vlan
        and names.cluster_of_alias(interface.alias) == cluster is not None
    )


def _vlan_ids(interface: KernelInterface) -> set[int]:
    """Return a set with the VLAN ID of a segment's interface.

    For a tagged interface, the set contains the ID of the tag. For an untagged interface, the set contains the ID in
    the interface's name, or is empty if the name contains no VLAN ID.
    """
    name = interface.name
    ports = names.vlan_of_job_port, names.vlan_of_server_port, names.vlan_of_gateway_port
    parsers = (names.vlan_of_bridge, *ports, names.vlan_of_outside_link)
    in_name = next((vlan for parse in parsers if (vlan := parse(name)) is not None), None)
    return {interface.vlan if interface.kind == "vlan" else in_name} - {None}  # type: ignore[return-value]
