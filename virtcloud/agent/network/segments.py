"""A cluster's segment on a machine: a tagged interface on the uplink and a bridge, made, put right, removed, read.

Where the cluster has an access port, the uplink itself is the bridge's port instead of a tagged interface.
Everything may be repeated. What does not bear the cluster's mark is never touched: it raises :class:`Unsafe`.
"""

from collections.abc import Callable, Iterable, Iterator

from virtcloud.agent.difference import ObservedSegment
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import Kernel, KernelInterface, UplinkRecord, UplinkRecords
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.wanted import Segment


class SegmentInterfaces:
    """The segments of this machine."""

    def __init__(self, kernel: Kernel, uplinks: UplinkRecords, *, accepts_filters: bool = False) -> None:
        """Work on ``kernel``; ``uplinks`` has what the host's interfaces were like before they were taken.

        ``accepts_filters``: make segments also where the host's packet filter gets their frames.
        """
        self._kernel = kernel
        self._uplinks = uplinks
        self._accepts_filters = accepts_filters

    def segments(self) -> tuple[ObservedSegment, ...]:
        """Read what bears our mark."""
        return tuple(find_segments(self._kernel.links(), self._uplinks.all(), self._filters()))

    def ensure_segment(self, segment: Segment) -> None:
        """Make the segment's interfaces, or put right what is wrong with them; its guests' ports are put back too.

        Raises :class:`Unsafe` when something of another's stands where they belong, :class:`Refused` when the uplink
        is missing or the kernel says no.
        """
        _check_unfiltered(segment, self._filters())
        links = {link.name: link for link in self._swept(segment.vlan)}
        uplink = _find_uplink(segment, links)
        bridge = names.bridge_name(segment.vlan)
        _check_free(segment, links, uplink)
        self._give_back(segment.id, segment.vlan, links.values(), but=segment.port if segment.untagged else None)
        bridge_index = self._ensure(segment, links.get(bridge), bridge, self._kernel.add_bridge)
        self._kernel.unfilter(bridge_index)
        way_index = self._ensure_way(segment, links, uplink)
        ports = self._guest_ports(segment, links)
        for index in (way_index, bridge_index):  # first of all: a bridge whose MTU was never set follows its ports
            self._kernel.change(index, mtu=uplink.mtu)
        for index in (way_index, *ports):
            self._kernel.change(index, master=bridge_index)
        for index in (way_index, bridge_index):
            self._kernel.change(index, up=True)

    def _filters(self) -> tuple[str, ...]:
        return () if self._accepts_filters else self._kernel.filters()

    def ensure_no_segment(self, cluster: str, vlan: int) -> None:
        """Remove what bears the cluster's mark in this VLAN; nothing there is success.

        Raises :class:`Unsafe` when the bridge has a port that we did not make.
        """
        links = self._swept(vlan)
        ours = [link for link in links if names.cluster_of_alias(link.alias) == cluster and vlan in _vlan_ids(link)]
        for bridge in (link for link in ours if link.kind == "bridge"):
            _check_ports(cluster, bridge, links)
            self._release_unrecorded(bridge, links)
        leftover = [
            link for link in links if names.is_guest_port(link.name) and link.master in {one.index for one in ours}
        ]
        for link in (*sorted(ours, key=lambda one: one.kind != "vlan"), *leftover):
            self._kernel.delete(link.index)
        self._give_back(cluster, vlan, links)

    def _ensure_way(self, segment: Segment, links: dict[str, KernelInterface], uplink: KernelInterface) -> int:
        """Give the index of what leads from the bridge to the switch: a tagged interface, or the uplink itself."""
        if segment.untagged:
            self._record(segment.id, segment.vlan, uplink, taken=bool(uplink.master))
            self._kernel.hush(uplink.index, uplink.name)
            return uplink.index
        tagged = names.tagged_interface_name(segment.port, segment.vlan)
        return self._ensure(
            segment, links.get(tagged), tagged, lambda name: self._kernel.add_vlan(name, uplink, segment.vlan)
        )

    def _record(self, cluster: str, vlan: int, uplink: KernelInterface, *, taken: bool) -> None:
        """Record what an uplink was found like, before it is changed.

        An uplink that was ``taken`` without a record (which was lost) is taken for one that was like a new interface.
        """
        known = self._known(uplink)
        if known is None:
            voice = self._kernel.voice(None if taken else uplink.name)
            known = UplinkRecord(uplink=uplink.name, index=uplink.index, cluster=cluster, vlan=vlan, voice=voice)
        elif (known.cluster, known.vlan) == (cluster, vlan):
            return
        self._uplinks.record(known.model_copy(update={"cluster": cluster, "vlan": vlan}))

    def _known(self, uplink: KernelInterface) -> UplinkRecord | None:
        """Return the record of an uplink; one of a former interface of that name does not count."""
        same = (one for one in self._uplinks.all() if (one.uplink, one.index) == (uplink.name, uplink.index))
        return next(same, None)

    def _release_unrecorded(self, bridge: KernelInterface, links: Iterable[KernelInterface]) -> None:
        """Put the uplink of an untagged segment whose record was lost back like a new interface."""
        for link in links:
            taken = link.master == bridge.index and link.name == names.uplink_of_alias(bridge.alias)
            if taken and self._known(link) is None:
                self._kernel.change(link.index, master=0)
                self._kernel.speak(link.index, link.name, self._kernel.voice(None))

    def _give_back(self, cluster: str, vlan: int, links: Iterable[KernelInterface], but: str | None = None) -> None:
        """Put the uplinks of an untagged segment back as they were found, ``but`` one; then forget what they were like.

        The record goes last: an agent that is killed, or that the kernel refuses something, repeats this.
        """
        by_name = {link.name: link for link in links}
        for found in self._uplinks.all():
            if (found.cluster, found.vlan) != (cluster, vlan) or found.uplink == but:
                continue
            link = by_name.get(found.uplink)
            if link is not None and link.index == found.index:
                if link.master:
                    self._kernel.change(link.index, master=0)
                self._kernel.speak(link.index, link.name, found.voice)
            self._uplinks.forget(found.uplink)

    def _guest_ports(self, segment: Segment, links: dict[str, KernelInterface]) -> list[int]:
        """Give the indices of the ports of wanted guests and of jobs; those of guests that are gone are deleted."""
        wanted = {names.guest_port_name(segment.id, guest.name, segment.vlan) for guest in segment.guests}
        ports = [link for name, link in links.items() if names.is_guest_port(name, segment.vlan)]
        for link in ports:
            if link.name not in wanted:
                self._kernel.delete(link.index)
        jobs = [link for link in links.values() if _is_job_port(link, segment.id, segment.vlan)]
        return [link.index for link in (*ports, *jobs) if link.name in wanted or link in jobs]

    def _ensure(
        self, segment: Segment, existing: KernelInterface | None, name: str, create: Callable[[str], int]
    ) -> int:
        """Give the index of the interface ``name``, created if need be; mark and name come in one message."""
        index = existing.index if existing else create(names.temporary_name(name, segment.vlan))
        if existing is None:
            self._kernel.change(index, name=name, alias=_ownership_alias(segment))
        self._kernel.hush(index, name)
        return index

    def _swept(self, vlan: int) -> list[KernelInterface]:
        """Give all interfaces but those of this VLAN that a crash left between creation and mark: they are deleted."""
        leftovers = {names.temporary_name(names.bridge_name(vlan), vlan), names.temporary_name("", vlan)}
        links = self._kernel.links()
        for link in links:
            if link.name in leftovers:
                self._kernel.delete(link.index)
        return [link for link in links if link.name not in leftovers]


def find_segments(
    links: Iterable[KernelInterface], taken: Iterable[UplinkRecord] = (), filters: tuple[str, ...] = ()
) -> Iterator[ObservedSegment]:
    """PURE. Find the segments that bear our mark, each with what is wrong with it.

    An uplink that is ``taken`` is a part of its segment also when the bridge is gone: it has to be put back.
    ``filters`` are sysctls by which the host's packet filter gets the frames of all bridges.
    """
    by_index = {link.index: link for link in links}
    found = {
        (cluster, vlan)
        for link in by_index.values()
        for cluster in [names.cluster_of_alias(link.alias)]
        if cluster
        for vlan in _vlan_ids(link)
    }
    for one in taken:
        if (one.cluster, one.vlan) not in found:
            yield ObservedSegment(one.cluster, one.vlan, None, ("the bridge is missing",), untagged=True)
    for cluster, vlan in sorted(found):
        ours = [
            link
            for link in by_index.values()
            if names.cluster_of_alias(link.alias) == cluster and vlan in _vlan_ids(link)
        ]
        tagged = next((link for link in ours if link.kind == "vlan"), None)
        bridge = next((link for link in ours if link.kind == "bridge"), None)
        untagged = names.uplink_of_alias(bridge.alias) if bridge else None
        uplink = by_index.get(tagged.parent or 0) if tagged else _find_interface(untagged, by_index.values())
        wrong = _find_faults(vlan, tagged or uplink, bridge, uplink, by_index.values())
        faults = (*wrong, *(f"{one} is set" for one in filters))
        yield ObservedSegment(cluster, vlan, uplink.name if uplink else None, faults, untagged is not None)


def _find_interface(name: str | None, links: Iterable[KernelInterface]) -> KernelInterface | None:
    return next((link for link in links if link.name == name), None)


def _find_faults(
    vlan: int,
    way: KernelInterface | None,
    bridge: KernelInterface | None,
    uplink: KernelInterface | None,
    links: Iterable[KernelInterface],
) -> Iterator[str]:
    """Give what is wrong between a bridge and its uplink; ``way`` is the tagged interface or the uplink itself."""
    if way is None or bridge is None or uplink is None:
        yield "the bridge is missing" if bridge is None else "the tagged interface is missing"
        return
    if way.master != bridge.index:
        yield f"{way.name} is not on {bridge.name}"
    for link in (way, bridge):
        if not link.up:
            yield f"{link.name} is down"
        if link.mtu != uplink.mtu:
            yield f"{link.name} has MTU {link.mtu}, {uplink.name} has {uplink.mtu}"
        if not link.quiet:
            yield f"the host speaks on {link.name}"
    if bridge.filtered:
        yield f"{bridge.name} hands its frames to the host's packet filter"
    for link in links:
        if _is_bridge_port(link, vlan, names.cluster_of_alias(bridge.alias)) and link.master != bridge.index:
            yield f"{link.name} is not on {bridge.name}"


def _is_bridge_port(link: KernelInterface, vlan: int, cluster: str | None) -> bool:
    return names.is_guest_port(link.name, vlan) or _is_job_port(link, cluster, vlan)


def _is_job_port(link: KernelInterface, cluster: str | None, vlan: int) -> bool:
    return names.vlan_of_job_port(link.name) == vlan and names.cluster_of_alias(link.alias) == cluster is not None


def _vlan_ids(link: KernelInterface) -> set[int]:
    """Give the VLAN that an interface of ours belongs to: by its tag, or by the name of a bridge or a job's port."""
    named = names.vlan_of_bridge(link.name) or names.vlan_of_job_port(link.name)
    return {link.vlan if link.kind == "vlan" else named} - {None}  # type: ignore[return-value]


def _check_unfiltered(segment: Segment, filters: Iterable[str]) -> None:
    """Raise Unsafe where frames of all bridges pass through one connection tracking."""
    names_of = tuple(filters)
    if names_of:
        settings = " ".join(f"{one}=0" for one in names_of)
        raise Unsafe(
            f"VLAN {segment.vlan}: this host hands the frames of all bridges to its packet filter "
            f"({', '.join(names_of)}, which Docker sets): clusters with the same addresses would share connections "
            f"there. Set them to 0 "
            f'(sysctl -w {settings}), or accept it: bridged_frames_filtered = "accept" in the agent\'s settings'
        )


def _find_uplink(segment: Segment, links: dict[str, KernelInterface]) -> KernelInterface:
    if segment.port not in links:
        raise Refused(
            f"VLAN {segment.vlan}: wanted on port {segment.port}, but this machine has no such interface; "
            "correct the port in the topology, or name the interface so"
        )
    if not links[segment.port].up:
        raise Refused(f"VLAN {segment.vlan}: port {segment.port} is down; bring it up: ip link set {segment.port} up")
    return links[segment.port]


def _check_free(segment: Segment, links: dict[str, KernelInterface], uplink: KernelInterface) -> None:
    """Refuse to touch what stands in the way and is not this cluster's."""
    mine = {names.tagged_interface_name(segment.port, segment.vlan): "vlan", names.bridge_name(segment.vlan): "bridge"}
    master = next((link for link in links.values() if link.index == uplink.master), None)
    if master is not None and names.cluster_of_alias(master.alias) != segment.id:
        raise Unsafe(
            f"VLAN {segment.vlan}: port {segment.port} is a port of {master.name} (alias {master.alias or 'none'}) "
            f"already; it was left alone. Take it off, or correct the port in the topology"
        )
    if segment.untagged and uplink.addressed:
        raise Unsafe(
            f"VLAN {segment.vlan}: port {segment.port} has an address of this machine, and an access port is the "
            f"cluster's alone; it was left alone. Take the address off it, or correct the port in the topology"
        )
    for link in links.values():
        same_tag = (link.kind, link.parent, link.vlan) == ("vlan", uplink.index, segment.vlan)
        if link.name not in mine and not same_tag:
            continue
        if (
            names.cluster_of_alias(link.alias) != segment.id
            or mine.get(link.name) != link.kind
            or _has_other_uplink(segment, link)
        ):
            raise Unsafe(_format_foreign(segment, link))


def _ownership_alias(segment: Segment) -> str:
    return names.ownership_alias(segment.id, segment.port if segment.untagged else None)


def _has_other_uplink(segment: Segment, link: KernelInterface) -> bool:
    """Say whether this is the cluster's bridge to another uplink, or its tagged interface where none belongs."""
    return link.alias != _ownership_alias(segment) if link.kind == "bridge" else segment.untagged


def _format_foreign(segment: Segment, link: KernelInterface) -> str:
    other = names.cluster_of_alias(link.alias)
    whose = f"belongs to cluster {other}" if other else f"was not made by virtcloud (alias {link.alias or 'none'})"
    return (
        f"VLAN {segment.vlan}: the interface {link.name} ({link.kind or 'no virtual kind'}) {whose}; "
        f"it was left alone. Remove or rename it, or take {segment.vlan} out of the site's pool"
    )


def _check_ports(cluster: str, bridge: KernelInterface, links: Iterable[KernelInterface]) -> None:
    for link in links:
        ours = names.cluster_of_alias(link.alias) == cluster or names.is_guest_port(link.name)
        if link.master == bridge.index and not ours and link.name != names.uplink_of_alias(bridge.alias):
            raise Unsafe(
                f"bridge {bridge.name} has the port {link.name}, which virtcloud did not put there; "
                f"take it off, so that the bridge can be removed: ip link set {link.name} nomaster"
            )
