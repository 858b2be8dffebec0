"""A cluster's segment on a machine: a tagged interface on the uplink and a bridge, made, put right, removed, read.

Everything may be repeated. What does not bear the cluster's mark is never touched: it raises :class:`Unsafe`.
"""

from collections.abc import Callable, Iterable, Iterator

from virtcloud.agent import names
from virtcloud.agent.carried import CarriedSegment
from virtcloud.agent.ports import Kernel, Link
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.wanted import Segment


class Links:
    """The segments of this machine."""

    def __init__(self, kernel: Kernel) -> None:
        """Work on ``kernel``."""
        self._kernel = kernel

    def segments(self) -> tuple[CarriedSegment, ...]:
        """Read what bears our mark."""
        return tuple(carried_segments(self._kernel.links()))

    def ensure_segment(self, segment: Segment) -> None:
        """Make the segment's interfaces, or put right what is wrong with them; its guests' ports are put back too.

        Raises :class:`Unsafe` when something of another's stands where they belong, :class:`Refused` when the uplink
        is missing or the kernel says no.
        """
        links = {link.name: link for link in self._swept(segment.vlan)}
        uplink = _uplink(segment, links)
        tagged, bridge = names.tagged_interface(segment.port, segment.vlan), names.bridge(segment.vlan)
        _check_free(segment, links, uplink)
        bridge_index = self._ensure(segment, links.get(bridge), bridge, self._kernel.add_bridge)
        tagged_index = self._ensure(
            segment, links.get(tagged), tagged, lambda name: self._kernel.add_vlan(name, uplink, segment.vlan)
        )
        ports = self._guest_ports(segment, links)
        for index in (tagged_index, bridge_index):  # first of all: a bridge whose MTU was never set follows its ports
            self._kernel.change(index, mtu=uplink.mtu)
        for index in (tagged_index, *ports):
            self._kernel.change(index, master=bridge_index)
        for index in (tagged_index, bridge_index):
            self._kernel.change(index, up=True)

    def ensure_no_segment(self, cluster: str, vlan: int) -> None:
        """Remove what bears the cluster's mark in this VLAN; nothing there is success.

        Raises :class:`Unsafe` when the bridge has a port that we did not make.
        """
        links = self._swept(vlan)
        ours = [link for link in links if names.marked(link.alias) == cluster and vlan in _vlans(link)]
        for bridge in (link for link in ours if link.kind == "bridge"):
            _check_ports(cluster, bridge, links)
        leftover = [
            link for link in links if names.is_guest_port(link.name) and link.master in {one.index for one in ours}
        ]
        for link in (*sorted(ours, key=lambda one: one.kind != "vlan"), *leftover):
            self._kernel.delete(link.index)

    def _guest_ports(self, segment: Segment, links: dict[str, Link]) -> list[int]:
        """Give the indices of the ports of wanted guests; those of guests that are gone are deleted."""
        wanted = {names.guest_port(segment.id, guest.name, segment.vlan) for guest in segment.guests}
        ports = [link for name, link in links.items() if names.is_guest_port(name, segment.vlan)]
        for link in ports:
            if link.name not in wanted:
                self._kernel.delete(link.index)
        return [link.index for link in ports if link.name in wanted]

    def _ensure(self, segment: Segment, existing: Link | None, name: str, create: Callable[[str], int]) -> int:
        """Give the index of the interface ``name``, created if need be; mark and name come in one message."""
        index = existing.index if existing else create(names.unmarked(name, segment.vlan))
        if existing is None:
            self._kernel.change(index, name=name, alias=names.mark(segment.id))
        self._kernel.hush(index, name)
        return index

    def _swept(self, vlan: int) -> list[Link]:
        """Give all interfaces but those of this VLAN that a crash left between creation and mark: they are deleted."""
        leftovers = {names.unmarked(names.bridge(vlan), vlan), names.unmarked("", vlan)}
        links = self._kernel.links()
        for link in links:
            if link.name in leftovers:
                self._kernel.delete(link.index)
        return [link for link in links if link.name not in leftovers]


def carried_segments(links: Iterable[Link]) -> Iterator[CarriedSegment]:
    """PURE. Find the segments that bear our mark, each with what is wrong with it."""
    by_index = {link.index: link for link in links}
    found = {
        (cluster, vlan)
        for link in by_index.values()
        for cluster in [names.marked(link.alias)]
        if cluster
        for vlan in _vlans(link)
    }
    for cluster, vlan in sorted(found):
        ours = [link for link in by_index.values() if names.marked(link.alias) == cluster and vlan in _vlans(link)]
        tagged = next((link for link in ours if link.kind == "vlan"), None)
        bridge = next((link for link in ours if link.kind == "bridge"), None)
        uplink = by_index.get(tagged.parent or 0) if tagged else None
        faults = tuple(_faults(tagged, bridge, uplink, by_index.values()))
        yield CarriedSegment(cluster, vlan, uplink.name if uplink else None, faults)


def _faults(tagged: Link | None, bridge: Link | None, uplink: Link | None, links: Iterable[Link]) -> Iterator[str]:
    if tagged is None or bridge is None or uplink is None:
        yield "the bridge is missing" if bridge is None else "the tagged interface is missing"
        return
    if tagged.master != bridge.index:
        yield f"{tagged.name} is not on {bridge.name}"
    for link in (tagged, bridge):
        if not link.up:
            yield f"{link.name} is down"
        if link.mtu != uplink.mtu:
            yield f"{link.name} has MTU {link.mtu}, {uplink.name} has {uplink.mtu}"
        if not link.quiet:
            yield f"the host speaks on {link.name}"
    for link in links:
        if names.is_guest_port(link.name, tagged.vlan) and link.master != bridge.index:
            yield f"{link.name} is not on {bridge.name}"


def _vlans(link: Link) -> set[int]:
    """Give the VLAN that an interface of ours belongs to: a tag, or a bridge's name."""
    return {link.vlan if link.kind == "vlan" else names.vlan_of_bridge(link.name)} - {None}  # type: ignore[return-value]


def _uplink(segment: Segment, links: dict[str, Link]) -> Link:
    if segment.port not in links:
        raise Refused(
            f"VLAN {segment.vlan}: wanted on port {segment.port}, but this machine has no such interface; "
            "correct the port in the topology, or name the interface so"
        )
    if not links[segment.port].up:
        raise Refused(f"VLAN {segment.vlan}: port {segment.port} is down; bring it up: ip link set {segment.port} up")
    return links[segment.port]


def _check_free(segment: Segment, links: dict[str, Link], uplink: Link) -> None:
    """Refuse to touch what stands in the way and is not this cluster's."""
    mine = {names.tagged_interface(segment.port, segment.vlan): "vlan", names.bridge(segment.vlan): "bridge"}
    for link in links.values():
        same_tag = (link.kind, link.parent, link.vlan) == ("vlan", uplink.index, segment.vlan)
        if link.name not in mine and not same_tag:
            continue
        if names.marked(link.alias) != segment.id or mine.get(link.name) != link.kind:
            raise Unsafe(_foreign(segment, link))


def _foreign(segment: Segment, link: Link) -> str:
    other = names.marked(link.alias)
    whose = f"belongs to cluster {other}" if other else f"was not made by virtcloud (alias {link.alias or 'none'})"
    return (
        f"VLAN {segment.vlan}: the interface {link.name} ({link.kind or 'no virtual kind'}) {whose}; "
        f"it was left alone. Remove or rename it, or take {segment.vlan} out of the site's pool"
    )


def _check_ports(cluster: str, bridge: Link, links: Iterable[Link]) -> None:
    for link in links:
        if link.master == bridge.index and not (names.marked(link.alias) == cluster or names.is_guest_port(link.name)):
            raise Unsafe(
                f"bridge {bridge.name} has the port {link.name}, which virtcloud did not put there; "
                f"take it off, so that the bridge can be removed: ip link set {link.name} nomaster"
            )
