"""The kernel's packet filter between the links of a gateway's networks and the gateway's other interfaces."""

import errno
import threading
from collections.abc import Iterable, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Final, Protocol

from virtcloud.agent import log
from virtcloud.agent.gateway.connection_table import remove_ended_connections
from virtcloud.agent.gateway.fqdn_addresses import FqdnAddresses
from virtcloud.agent.gateway.outside_difference import FORWARD_IPV6, ObservedOutside
from virtcloud.agent.gateway.outside_links import (
    LINKS4,
    LINKS6,
    TABLE,
    admit_none,
    list_outside_interfaces,
    list_published_translations,
    make_outside_table,
)
from virtcloud.agent.gateway.outside_reports import parse_uses
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.nftables import KernelTables
from virtcloud.agent.network.owned_tables import OwnedTable
from virtcloud.model.outside_use import DestinationUse
from virtcloud.model.wanted import Segment

FORWARDING6: Final = Path("/proc/sys/net/ipv6/conf/all/forwarding")
_IPV6: Final = 6
NO_TABLE: Final = frozenset({errno.EPROTONOSUPPORT, errno.EOPNOTSUPP, errno.EINVAL})
"""The errors of a kernel without ctnetlink. Such a kernel lists no connections, so a repetition would also fail."""


class ForwardingKernel(Protocol):
    """The operations of the kernel on the forwarding of packets."""

    def enable_forwarding(self, name: str) -> None:
        """Forward the IPv4 packets that arrive at an interface."""

    def read_forwarding(self, name: str) -> bool | None:
        """Return whether IPv4 packets that arrive at an interface are forwarded, or None for a missing interface."""


class OutsideRouting:
    """The packet filter for the links of all networks to the outside. All operations are idempotent."""

    def __init__(self, kernel: ForwardingKernel, fqdns: FqdnAddresses | None = None) -> None:
        """``fqdns`` has the addresses of FQDNs. Without ``fqdns``, the packet filter admits no addresses of FQDNs."""
        self._kernel = kernel
        self._fqdns = fqdns
        self._list_admitted = fqdns.list_admitted if fqdns is not None else admit_none
        self._tables = KernelTables()
        self._lock = threading.Lock()
        self._segments: tuple[Segment, ...] = ()
        """The networks of the latest wanted document."""
        self._wanted: OwnedTable | None = None
        """The wanted packet filter for `_segments`, or None if no filter is wanted."""
        self._is_cleaned = False
        """Whether the connections of ended publications were removed after the last change of the packet filter.

        The value is also True if this removal failed and a repetition would fail too.
        """

    def read(self, interfaces: Iterable[KernelInterface]) -> ObservedOutside:
        """Return the packet filter, and which of ``interfaces`` forward packets if the filter exists."""
        listing = self._tables.read(*TABLE)
        names = [interface.name for interface in interfaces] if listing is not None else []
        found = {name: self._kernel.read_forwarding(name) for name in names}
        return ObservedOutside(listing, {name: on for name, on in found.items() if on is not None}, _forwards_ipv6())

    def read_uses(self) -> tuple[DestinationUse, ...]:
        """Return the packet filter's counters for each network and destination. Thread-safe.

        For a destination with FQDNs, also return the addresses and the errors of these FQDNs.
        """
        with self._lock:
            listed = [(segment.id, segment.router) for segment in self._segments if segment.router is not None]
        named = {(network, one.name): one for network, router in listed for one in router.named_destinations}
        return tuple(
            use.model_copy(update={"names": self._fqdns.describe(named[use.network, use.destination])})
            if self._fqdns is not None and (use.network, use.destination) in named
            else use
            for use in parse_uses(self._tables.read(*TABLE))
        )

    def receive(self, segments: Sequence[Segment]) -> None:
        """Record the networks of a wanted document, and request the addresses of their FQDNs.

        The packet filter is not changed. If the last removal of the connections of ended publications failed or was
        interrupted, repeat the removal.
        """
        if self._fqdns is not None:
            routers = [segment.router for segment in segments if segment.router is not None]
            destinations = [(router.link.interface, one) for router in routers for one in router.named_destinations]
            self._fqdns.request({fqdn: interface for interface, one in destinations for fqdn in one.fqdns})
        with self._lock:
            self._segments = tuple(segments)
            self._wanted = make_outside_table(segments, self._list_admitted)
            if self._wanted is not None and not self._is_cleaned:
                self._is_cleaned = _remove_ended_connections(segments)

    def correct_sets(self) -> tuple[Segment, ...]:
        """Write the current addresses of FQDNs to the packet filter. Return the networks of the latest wanted document.

        Raise Refused if the kernel refuses a change. Thread-safe.
        """
        with self._lock:
            self._wanted = make_outside_table(self._segments, self._list_admitted)
            if self._wanted is not None:
                self._tables.correct_sets(self._wanted)
            return self._segments

    def restore(self) -> None:
        """Restore the packet filter of the latest wanted document, if the document requires a filter.

        Log a warning if the kernel's filter differed from the required filter. Raise Refused if the kernel refuses the
        filter. Thread-safe.
        """
        with self._lock:
            if self._wanted is None:
                return
            faults = list(self._wanted.find_faults(self._tables.read(*TABLE)))
            if faults:
                self._replace_filter()
                log.warning("packet_filter_restored", faults=", ".join(faults))
            elif self._tables.correct_sets(self._wanted):
                log.warning("packet_filter_restored", faults="the addresses of FQDNs were changed")

    def ensure(self, segments: tuple[Segment, ...]) -> None:
        """Replace the packet filter, and enable forwarding at the gateway's interfaces towards the outside.

        Without linked networks, remove the packet filter. Skip a missing interface, which `find_outside_faults`
        reports. Log a warning if a destination has IPv6 networks and the gateway does not forward IPv6 packets. Raise
        Refused if the kernel refuses the filter.
        """
        with self._lock:
            self._segments = tuple(segments)
            self._wanted = make_outside_table(segments, self._list_admitted)
            self._replace_filter()
        for name in list_outside_interfaces(segments):
            if self._kernel.read_forwarding(name) is not None:
                self._kernel.enable_forwarding(name)
        routers = [segment.router for segment in segments if segment.router is not None]
        destinations = {one.name: one.networks for router in routers for one in router.every_destination}
        needing = [
            name for name, texts in destinations.items() if any(ip_network(text).version == _IPV6 for text in texts)
        ]
        if needing and not _forwards_ipv6():
            log.warning("ipv6_not_forwarded", destinations=", ".join(needing), remedy=FORWARD_IPV6)

    def _replace_filter(self) -> None:
        self._is_cleaned = False
        if self._wanted is None:
            self._tables.remove(*TABLE)
        else:
            self._tables.replace(self._wanted)
        self._is_cleaned = _remove_ended_connections(self._segments)


def _forwards_ipv6() -> bool:
    return not FORWARDING6.exists() or FORWARDING6.read_text().strip() != "0"


def _remove_ended_connections(segments: Iterable[Segment]) -> bool:
    """Remove the connections of ended publications from the connection table. Return False to request a repetition.

    Only log errors: the packet filter drops these connections' packets anyway, and a raised error would end the agent
    again after each restart.
    """
    try:
        number = remove_ended_connections(list_published_translations(segments), (LINKS4, LINKS6))
    except OSError as error:
        log.warning("published_connections_not_removed", error=error)
        return error.errno in NO_TABLE
    except Exception as error:  # noqa: BLE001 - logged with its traceback
        log.internal_error(error)
        return True
    if number:
        log.info("published_connections_removed", number=number)
    return True
