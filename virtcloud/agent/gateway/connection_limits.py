"""The limit of TCP connections from one client to the gateway's OpenVPN server.

OpenVPN counts each TCP connection as a device, and closes a connection without data only after two minutes. Without a
limit, one computer could use up the server's `MAX_DEVICES` connections. Therefore the packet filter accepts at most
`PER_SOURCE` open connections from one source: an IPv4 address, or an IPv6 network with prefix length 64. If the kernel
refuses the packet filter, there is no limit, and the agent logs a warning.
"""

from typing import Final

from virtcloud.agent import log
from virtcloud.agent.network.nftables import KernelTables
from virtcloud.agent.network.owned_tables import OwnedChain, OwnedTable
from virtcloud.model.errors import Refused

TABLE: Final = ("inet", "virtcloud_vpn")
PER_SOURCE: Final = 100
"""Limit of open connections from one source. Devices behind one NAT address are one source. UDP has no limit."""
SOURCES: Final = 65536
_SETS: Final = {"sources4": "ipv4_addr", "sources6": "ipv6_addr"}


def make_limits(port: int) -> OwnedTable:
    """Return the packet filter that limits the connections from each source to a TCP port. Pure."""
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
        """Use the packet filter in the network namespace of the thread that calls the methods."""
        self._tables = KernelTables()
        self._is_supported = True

    def find_faults(self, port: int | None) -> tuple[str, ...]:
        """Return the differences from the filter for ``port``, or from no filter if ``port`` is None."""
        if port is None:  # if the kernel refused to replace a former filter, this filter still exists
            return () if self._tables.read(*TABLE) is None else ("no server needs the limits of connections",)
        return tuple(make_limits(port).find_faults(self._tables.read(*TABLE))) if self._is_supported else ()

    def ensure(self, port: int | None) -> None:
        """Replace the filter by the filter for ``port``. If ``port`` is None, remove the filter.

        If the kernel refuses the filter, log a warning. After this refusal, `find_faults` returns () for port numbers.
        """
        if port is None:
            self._tables.remove(*TABLE)
            return
        try:
            self._tables.replace(make_limits(port))
        except Refused as error:
            self._is_supported = False
            log.warning("vpn_connections_not_limited", port=port, error=error)
