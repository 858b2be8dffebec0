"""The segments of clusters on a host.

A tagged segment is a bridge and a tagged interface on the uplink. An untagged segment is a bridge whose port is the
uplink itself. All operations are idempotent. An operation raises Unsafe if it would change an interface that lacks the
cluster's ownership alias.
"""

from collections.abc import Callable, Collection, Iterable

from virtcloud.agent.difference import expected_mtu, list_job_ports
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import Kernel, KernelInterface, UplinkRecord, UplinkRecords
from virtcloud.agent.network.observed_segments import (
    find_owned,
    find_renamed,
    find_segments,
    is_job_port,
    vlan_of_incomplete,
)
from virtcloud.agent.network.segment_checks import (
    alias_of_segment,
    check_free,
    check_ports,
    check_unfiltered,
    find_uplink,
)
from virtcloud.agent.observed_host import ObservedSegment
from virtcloud.model.wanted import GuestWanted, Segment


class SegmentInterfaces:
    """The interfaces of all segments of this host."""

    def __init__(
        self,
        kernel: Kernel,
        uplinks: UplinkRecords,
        *,
        accepts_filters: bool = False,
    ) -> None:
        """Create an object for the interfaces of ``kernel``. ``uplinks`` records the states of uplinks before changes.

        If ``accepts_filters`` is true, create segments even if the host's packet filter receives the frames of all
        bridges.
        """
        self._kernel = kernel
        self._uplinks = uplinks
        self._accepts_filters = accepts_filters

    def list_interfaces(self) -> list[KernelInterface]:
        """Return all interfaces of the host."""
        return self._kernel.list_interfaces()

    def read(self, interfaces: Iterable[KernelInterface] | None = None) -> tuple[ObservedSegment, ...]:
        """Return the segments whose interfaces have an ownership alias, and the remains of a killed agent.

        ``interfaces`` are all interfaces of the host, read immediately before this call. If ``interfaces`` is None,
        read the interfaces.
        """
        listed = self._kernel.list_interfaces() if interfaces is None else interfaces
        return tuple(find_segments(listed, self._uplinks.all(), self._unaccepted_filters()))

    def ensure_segment(self, segment: Segment, interfaces: Iterable[KernelInterface] | None = None) -> None:
        """Create a segment's interfaces, or correct their faults. Attach the ports of the segment's guests and jobs.

        Delete the ports of unwanted guests and jobs, and renamed bridges of the cluster (`find_renamed`).

        ``interfaces`` are all interfaces of the host, possibly read before other segments were created. If
        ``interfaces`` is None, read the interfaces, which is slow on a host with many segments.

        Raise Unsafe if an interface of another cluster, or a foreign interface, conflicts with the segment. Also raise
        Unsafe if the uplink of an untagged segment has an address of the host. Without ``accepts_filters``, raise
        Unsafe if the host's packet filter receives the frames of all bridges. Raise Refused if the uplink is missing or
        down, or if the kernel refuses a change.
        """
        check_unfiltered(segment, self._unaccepted_filters())
        existing = {interface.name: interface for interface in self._remove_leftovers(segment.vlan, interfaces)}
        uplink = find_uplink(segment, existing)
        bridge = names.bridge_name(segment.vlan)
        check_free(segment, existing, uplink)
        self._restore_uplinks(
            segment.id, segment.vlan, existing.values(), keep=segment.port if segment.untagged else None
        )
        # Set the bridge's MTU before ports are attached: otherwise, the kernel uses the smallest MTU of the ports.
        mtu = expected_mtu(segment, uplink.mtu)
        bridge_index = self._ensure_interface(segment, existing.get(bridge), bridge, mtu, self._kernel.add_bridge)
        if bridge in existing:  # on a new bridge, the options that pass frames to the packet filter are already 0
            self._kernel.disable_packet_filter(bridge_index)
        port_index = self._ensure_uplink_port(segment, existing, uplink, mtu)
        for index in self._remove_unwanted_ports(segment, existing):
            self._kernel.change(index, master=bridge_index)
        # The uplink of an untagged segment is up, unless an administrator has set it down since the interfaces were
        # read.
        self._kernel.change(port_index, master=bridge_index, **({} if segment.untagged else {"up": True}))
        if segment.host_services:
            self._kernel.isolate(port_index)
        self._kernel.change(bridge_index, up=True)
        for renamed in find_renamed(segment.id, segment.vlan, existing.values()):
            self._kernel.delete(renamed.index)

    def ensure_guest_mtus(self, segment: Segment, guests: Iterable[GuestWanted]) -> None:
        """Set the MTU of the guests' ports, if the cluster has an MTU. Thread-safe.

        Only these ports and the uplink are read, because a full reading takes 1 ms per interface. Raise Refused if the
        kernel refuses the change.
        """
        uplink_mtu = None if segment.mtu is None else self._kernel.read_mtu(segment.port)
        if uplink_mtu is None:
            return
        mtu = expected_mtu(segment, uplink_mtu)
        for guest in guests:
            port = names.guest_port_name(segment.id, guest.name, segment.vlan)
            if self._kernel.read_mtu(port) not in {None, mtu}:
                self._kernel.set_mtu(port, mtu)

    def ensure_no_guest_ports(self, ports: Collection[str]) -> None:
        """Delete guests' ports by name. Ignore names of absent ports.

        A guest with one of these ports may still run, because its hypervisor did not answer or could not stop the
        guest. The port is deleted nevertheless: the caller replaces the host's filters afterwards, and the new filters
        do not cover this port. Without the port, the guest has no network.
        """
        if any(self._kernel.read_mtu(port) is not None for port in ports):
            for interface in self._kernel.list_interfaces():
                if interface.name in ports:
                    self._kernel.delete(interface.index)

    def _unaccepted_filters(self) -> tuple[str, ...]:
        return () if self._accepts_filters else self._kernel.packet_filter_sysctls()

    def ensure_no_segment(self, cluster: str, vlan: int) -> None:
        """Remove the cluster's interfaces in this VLAN. Each of these interfaces may be absent.

        Also delete interfaces of this VLAN that a killed agent left. If ``cluster`` is "", delete only these
        interfaces. If ``cluster`` is not "", also delete bridges of the cluster that another program renamed and that
        have no foreign port. If ``vlan`` is 0, the ports of guests stay, because the next bridge of a wanted cluster
        gets these ports.

        Raise Unsafe if the bridge has a foreign port.
        """
        interfaces = self._remove_leftovers(vlan)
        if not cluster:
            return
        renamed = find_renamed(cluster, vlan, interfaces)
        owned = [*find_owned(cluster, vlan, interfaces), *renamed]
        for bridge in (interface for interface in owned if interface.kind == "bridge"):
            check_ports(bridge, interfaces)
            self._restore_unrecorded(bridge, interfaces)
        masters = {interface.index for interface in owned}
        leftover = [
            interface
            for interface in interfaces
            if vlan and names.is_guest_port(interface.name) and interface.master in masters
        ]
        for interface in (*sorted(owned, key=lambda interface: interface.kind != "vlan"), *leftover):
            self._kernel.delete(interface.index)
        self._restore_uplinks(cluster, vlan, interfaces)

    def _ensure_uplink_port(
        self, segment: Segment, interfaces: dict[str, KernelInterface], uplink: KernelInterface, mtu: int
    ) -> int:
        if segment.untagged:
            self._record_uplink(segment.id, segment.vlan, uplink, is_attached=bool(uplink.master))
            self._kernel.disable_host_ip(uplink.index, uplink.name)
            return uplink.index
        tagged = names.tagged_interface_name(segment.port, segment.vlan)
        return self._ensure_interface(
            segment, interfaces.get(tagged), tagged, mtu, lambda name: self._kernel.add_vlan(name, uplink, segment.vlan)
        )

    def _record_uplink(self, cluster: str, vlan: int, uplink: KernelInterface, *, is_attached: bool) -> None:
        """Record an uplink's state before the uplink is changed.

        If the uplink is already attached but has no record, record the default state of new interfaces.
        """
        record = self._find_record(uplink)
        if record is None:
            settings = self._kernel.read_host_ip(None if is_attached else uplink.name)
            record = UplinkRecord(uplink=uplink.name, index=uplink.index, cluster=cluster, vlan=vlan, host_ip=settings)
        elif (record.cluster, record.vlan) == (cluster, vlan):
            return
        self._uplinks.record(record.model_copy(update={"cluster": cluster, "vlan": vlan}))

    def _find_record(self, uplink: KernelInterface) -> UplinkRecord | None:
        matching = (
            record for record in self._uplinks.all() if (record.uplink, record.index) == (uplink.name, uplink.index)
        )
        return next(matching, None)

    def _restore_unrecorded(self, bridge: KernelInterface, interfaces: Iterable[KernelInterface]) -> None:
        """Set an untagged segment's uplink to the default state of new interfaces, unless the uplink has a record."""
        for interface in interfaces:
            is_uplink = interface.master == bridge.index and interface.name == names.uplink_of_alias(bridge.alias)
            if is_uplink and self._find_record(interface) is None:
                self._kernel.change(interface.index, master=0)
                self._kernel.restore_host_ip(interface.index, interface.name, self._kernel.read_host_ip(None))

    def _restore_uplinks(
        self, cluster: str, vlan: int, interfaces: Iterable[KernelInterface], keep: str | None = None
    ) -> None:
        """Restore a segment's recorded uplinks, except ``keep``, and remove their records.

        A record is removed only after the restoration, so the next call repeats a failed restoration. An uplink that is
        a port of a foreign bridge stays a port of this bridge.
        """
        by_name = {interface.name: interface for interface in interfaces}
        owned = {interface.index for interface in by_name.values() if names.cluster_of_alias(interface.alias)}
        for record in self._uplinks.all():
            if (record.cluster, record.vlan) != (cluster, vlan) or record.uplink == keep:
                continue
            interface = by_name.get(record.uplink)
            if interface is not None and interface.index == record.index:
                if interface.master in owned:
                    self._kernel.change(interface.index, master=0)
                self._kernel.restore_host_ip(interface.index, interface.name, record.host_ip)
            self._uplinks.forget(record.uplink)

    def _remove_unwanted_ports(self, segment: Segment, interfaces: dict[str, KernelInterface]) -> list[int]:
        """Delete the ports of unwanted guests and jobs. Return the indexes of the wanted guests' and jobs' ports."""
        wanted = {names.guest_port_name(segment.id, guest.name, segment.vlan) for guest in segment.guests}
        wanted |= list_job_ports(segment)
        ports = [
            interface
            for name, interface in interfaces.items()
            if names.is_guest_port(name, segment.vlan) or is_job_port(interface, segment.id, segment.vlan)
        ]
        for interface in ports:
            if interface.name not in wanted:
                self._kernel.delete(interface.index)
        return [interface.index for interface in ports if interface.name in wanted]

    def _ensure_interface(
        self, segment: Segment, existing: KernelInterface | None, name: str, mtu: int, create: Callable[[str], int]
    ) -> int:
        """Create the interface ``name`` if ``existing`` is None. Set the interface's MTU, and return its index.

        One netlink message sets name and alias, so a new interface never has this name without an alias.
        """
        index = existing.index if existing else create(names.temporary_name(name, segment.vlan))
        identity = {} if existing else {"name": name, "alias": alias_of_segment(segment)}
        self._kernel.change(index, **identity, mtu=mtu)
        self._kernel.disable_host_ip(index, name)
        return index

    def _remove_leftovers(self, vlan: int, listed: Iterable[KernelInterface] | None = None) -> list[KernelInterface]:
        """Delete interfaces of this VLAN that a killed agent left. Return all other interfaces of the host."""
        interfaces = self._kernel.list_interfaces() if listed is None else listed
        for interface in interfaces:
            if vlan_of_incomplete(interface) == vlan:
                self._kernel.delete(interface.index)
        return [interface for interface in interfaces if vlan_of_incomplete(interface) != vlan]
