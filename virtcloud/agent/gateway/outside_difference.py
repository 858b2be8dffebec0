"""The observed packet filter of a gateway's links to the outside, and the step to the wanted filter. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from virtcloud.agent.gateway.outside_links import has_link, list_outside_interfaces, make_outside_table
from virtcloud.agent.network.owned_tables import NO_TABLE
from virtcloud.agent.segment_step import format_faults
from virtcloud.model.message_text import count_of
from virtcloud.model.wanted import Segment


@dataclass(frozen=True, slots=True)
class ObservedOutside:
    """The observed table of the packet filter, and the forwarding of interfaces.

    ``listing`` is the table as JSON of libnftables, or None if there is no table. ``forwarding`` maps each interface to
    whether the gateway forwards IPv4 packets that arrive there.
    """

    listing: Mapping[str, Any] | None = None
    forwarding: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouteOutside:
    """Replace the packet filter of the networks that have a link to the outside.

    ``segments`` are these networks. If ``segments`` is empty, remove the packet filter.
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
