"""The checks before a segment is changed: a usable uplink, and no conflict with another interface. Pure."""

from collections.abc import Iterable

from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.observed_segments import find_foreign_ports
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.wanted import Segment


def check_unfiltered(segment: Segment, filters: Iterable[str]) -> None:
    """Raise Unsafe if the host's packet filter receives the frames of all bridges.

    The filter would track the connections of all clusters in one table, but clusters may have the same addresses.
    """
    sysctls = tuple(filters)
    if sysctls:
        settings = " ".join(f"{sysctl}=0" for sysctl in sysctls)
        raise Unsafe(
            f"VLAN {segment.vlan}: this host passes the frames of all bridges to its packet filter "
            f"({', '.join(sysctls)}; Docker sets these sysctls), where clusters with the same addresses would share "
            f"tracked connections. Set the sysctls to 0 (sysctl -w {settings}), or accept the filter: "
            'bridged_frames_filtered = "accept" in the agent\'s settings'
        )


def find_uplink(segment: Segment, interfaces: dict[str, KernelInterface]) -> KernelInterface:
    """Return the uplink of a segment. Raise Refused if the uplink is missing or down."""
    if segment.port not in interfaces:
        raise Refused(
            f"VLAN {segment.vlan}: wanted on port {segment.port}, but this host has no such interface; "
            "correct the port in the topology, or rename the interface"
        )
    if not interfaces[segment.port].up:
        raise Refused(f"VLAN {segment.vlan}: port {segment.port} is down; bring it up: ip link set {segment.port} up")
    return interfaces[segment.port]


def check_free(segment: Segment, interfaces: dict[str, KernelInterface], uplink: KernelInterface) -> None:
    """Raise Unsafe if the segment's uplink, VLAN ID or interface names are in other use.

    Other use is use by another cluster, by another uplink of the segment's cluster, or by the host itself.
    """
    own_names = {
        names.tagged_interface_name(segment.port, segment.vlan): "vlan",
        names.bridge_name(segment.vlan): "bridge",
    }
    master = next((interface for interface in interfaces.values() if interface.index == uplink.master), None)
    if master is not None and names.cluster_of_alias(master.alias) != segment.id:
        raise Unsafe(
            f"VLAN {segment.vlan}: port {segment.port} is already a port of {master.name} (alias "
            f"{master.alias or 'none'}); left unchanged. Detach the port, or correct the port in the topology"
        )
    if segment.untagged and uplink.addressed:
        raise Unsafe(
            f"VLAN {segment.vlan}: port {segment.port} has an address of this host, but an access port is used by one "
            f"cluster only; left unchanged. Remove the address, or correct the port in the topology"
        )
    for interface in interfaces.values():
        same_tag = (interface.kind, interface.parent, interface.vlan) == ("vlan", uplink.index, segment.vlan)
        if interface.name not in own_names and not same_tag:
            continue
        if (
            names.cluster_of_alias(interface.alias) != segment.id
            or own_names.get(interface.name) != interface.kind
            or _has_other_uplink(segment, interface)
        ):
            raise Unsafe(_format_foreign(segment, interface))


def alias_of_segment(segment: Segment) -> str:
    """Return the ownership alias of the segment's interfaces."""
    return names.ownership_alias(segment.id, segment.port if segment.untagged else None)


def _has_other_uplink(segment: Segment, interface: KernelInterface) -> bool:
    """Return whether an interface of the cluster belongs to an uplink that is not the segment's uplink.

    An untagged segment has no tagged interface; its bridge's alias contains the uplink.
    """
    return interface.alias != alias_of_segment(segment) if interface.kind == "bridge" else segment.untagged


def _format_foreign(segment: Segment, interface: KernelInterface) -> str:
    other = names.cluster_of_alias(interface.alias)
    origin = (
        f"belongs to cluster {other}" if other else f"was not created by virtcloud (alias {interface.alias or 'none'})"
    )
    return (
        f"VLAN {segment.vlan}: the interface {interface.name} ({interface.kind or 'no virtual kind'}) {origin}; left "
        f"unchanged. Remove or rename the interface, or remove VLAN ID {segment.vlan} from the site's pool"
    )


def check_ports(bridge: KernelInterface, interfaces: Iterable[KernelInterface]) -> None:
    """Raise Unsafe if a cluster's bridge has a foreign port."""
    for port in find_foreign_ports(bridge, interfaces):
        raise Unsafe(
            f"bridge {bridge.name} left unchanged, because its port {port.name} was not created by virtcloud; "
            f"detach the port: ip link set {port.name} nomaster"
        )
