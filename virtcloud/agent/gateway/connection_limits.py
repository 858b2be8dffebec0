"""Limits of TCP connections with the gateway's OpenVPN server, for each address of a client.

OpenVPN counts silent connections as devices until they end after a minute. Without a limit, one computer outside could
fill the server. The packet filter resets further connections of the same IPv4 address, or of the same IPv6 network of
64 bits, in which a computer chooses its addresses. A kernel without nftables for IP has no limits, which is logged.
"""

from typing import Final

from virtcloud.agent import log
from virtcloud.agent.network.nftables import KernelTables
from virtcloud.agent.network.owned_tables import OwnedChain, OwnedTable
from virtcloud.model.errors import Refused

TABLE: Final = ("inet", "virtcloud_vpn")
PER_SOURCE: Final = 100
"""Connections from one source at the same time. Devices behind one translated address share it, and may use UDP."""
SOURCES: Final = 65536
_SETS: Final = {"sources4": "ipv4_addr", "sources6": "ipv6_addr"}


def make_limits(port: int) -> OwnedTable:
    """Return the packet filter that limits the connections to a TCP port. Pure."""
    keys = {"sources4": "ip saddr", "sources6": "ip6 saddr and ffff:ffff:ffff:ffff::"}
    rules = tuple(
        f"tcp dport {port} ct state new add @{name} {{ {key} ct count over {PER_SOURCE} }} reject with tcp reset"
        for name, key in keys.items()
    )
    sets = tuple(f"set {name} {{ type {kind}; flags dynamic; size {SOURCES}; }}" for name, kind in _SETS.items())
    return OwnedTable(*TABLE, {"input": OwnedChain(rules, "filter hook input priority -5; policy accept")}, sets=sets)


class ConnectionLimits:
    """The packet filter of the gateway's OpenVPN server. All operations are idempotent."""

    def __init__(self) -> None:
        """Use the tables of the network namespace in which a method is called."""
        self._tables = KernelTables()
        self._is_supported = True

    def find_faults(self, port: int | None) -> tuple[str, ...]:
        """Return the differences of the filter. Without a port, there must be no filter."""
        if not self._is_supported:
            return ()
        listing = self._tables.read(*TABLE)
        if port is None:
            return () if listing is None else ("no server needs the limits of connections",)
        return tuple(make_limits(port).find_faults(listing))

    def ensure(self, port: int | None) -> None:
        """Replace the filter, or remove it without a port. That the kernel lacks such filters is logged once."""
        if port is None:
            self._tables.remove(*TABLE)
            return
        try:
            self._tables.replace(make_limits(port))
        except Refused as error:
            self._is_supported = False
            log.warning("vpn_connections_not_limited", port=port, error=error)
