"""The observed packet filter of a gateway's links to the outside, and the step to the wanted filter. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any, Final

from virtcloud.agent.gateway.outside_links import has_link, list_outside_interfaces, make_outside_table
from virtcloud.agent.network.owned_tables import NO_TABLE
from virtcloud.agent.segment_step import format_faults
from virtcloud.model.message_text import count_of
from virtcloud.model.wanted import Segment

_IPV6: Final = 6
FORWARD_IPV6: Final = (
    "set the sysctl in /etc/sysctl.d, and set accept_ra=2 for interfaces that learn their routes from advertisements"
)


@dataclass(frozen=True, slots=True)
class ObservedOutside:
    """The observed table of the packet filter, and the forwarding of interfaces.

    ``listing`` is the table as JSON of libnftables, or None if there is no table. ``forwarding`` states for each
    interface whether the gateway forwards IPv4 packets that arrive there. ``forwards_ipv6``: the gateway forwards IPv6
    packets.
    """

    listing: Mapping[str, Any] | None = None
    forwarding: Mapping[str, bool] = field(default_factory=dict)
    forwards_ipv6: bool = True


@dataclass(frozen=True, slots=True)
class RouteOutside:
    """Replace the packet filter of ``segments``, the networks that have a link to the outside.

    If ``segments`` is empty, remove the packet filter.
    """

    segments: tuple[Segment, ...]
    faults: tuple[str, ...] = ()
    cluster: str = ""

    def __str__(self) -> str:
        """Describe the step."""
        return f"route {count_of(len(self.segments), 'network')} to the outside{format_faults(self.faults)}"


def find_outside_changes(segments: Iterable[Segment], observed: ObservedOutside) -> Iterator[RouteOutside]:
    """Yield the step that corrects the packet filter, if necessary."""
    linked = tuple(segment for segment in segments if has_link(segment))
    table = make_outside_table(linked)
    if table is None:
        if observed.listing is not None:
            yield RouteOutside((), ("no network needs the packet filter",))
        return
    faults = list(table.find_faults(observed.listing))
    interfaces = list_outside_interfaces(linked)
    faults += [f"{name} does not forward packets" for name in interfaces if observed.forwarding.get(name) is False]
    if faults:
        yield RouteOutside(linked, () if faults == [NO_TABLE] else tuple(faults))


def find_outside_faults(segment: Segment, observed: ObservedOutside) -> Iterator[str]:
    """Yield the faults of a network's way to the outside that only the gateway's administrator can correct.

    Yield no faults while the packet filter is missing, because ``observed`` then lacks the interfaces. Missing IPv6
    forwarding is no fault if the destination also has IPv4 networks or FQDNs.
    """
    if not has_link(segment) or observed.listing is None:
        return
    for name in list_outside_interfaces((segment,)):
        if name not in observed.forwarding:
            yield (
                f"the interface {name}, named by `outside` of this gateway in the topology, is missing: add or rename "
                "the interface, or correct the topology"
            )
    if not observed.forwards_ipv6 and (needing := list(_list_ipv6_uses(segment))):
        yield (
            f"expected net.ipv6.conf.all.forwarding=1 on this gateway, because {', '.join(needing)} need IPv6, got 0: "
            f"{FORWARD_IPV6}"
        )


def _list_ipv6_uses(segment: Segment) -> Iterator[str]:
    for destination in segment.router.destinations if segment.router is not None else ():
        if all(ip_network(text).version == _IPV6 for text in destination.networks):
            yield f"destination {destination.name}"
    for published in segment.publications:
        if published.address.version == _IPV6:
            yield f"port {published.port} of {published.address}"
