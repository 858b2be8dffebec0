"""Identification of guests by the metadata service: each IP address belongs to a fixed MAC address. Pure.

The filters of guests (`guest_filters`) drop a guest's frames whose source MAC address is not the guest's. The network
namespace of the metadata service binds each IP address to one guest's MAC address, in both directions:

* Rules of nftables drop requests whose source MAC address and source IP address do not belong together. These rules
  are necessary because, by default, the filters of guests accept any source IP address, even another guest's.
* Permanent neighbour entries (ip-neighbour(8)) map each IP address to the guest's MAC address, so the service's answers
  go to this guest. A guest cannot redirect the answers by ARP or neighbour discovery.

The rules also limit the rate of each guest's new connections, so a guest that floods the service does not delay other
guests. The rules drop fragments, because a guest could hide the flags of a connection's first packet in fragments.
Sources: nft(8), RFC 4291 (link-local addresses).
"""

from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address, ip_interface
from typing import Final

from virtcloud.agent.network.guest_filters import link_local_address
from virtcloud.model.wanted import GuestWanted, Segment

PORT: Final = 80
CONNECTIONS_PER_S, BURST = 20, 100
"""Limits of each guest's new connections: per second, and in a burst. cloud-init opens about 30 at a boot."""
_IPV4: Final = 4


def find_guests(segment: Segment) -> dict[str, GuestWanted]:
    """Return the guest that each IP address identifies.

    A guest has the addresses of its spec, and the link-local address derived from its MAC address. An address of two
    guests identifies no guest. If two guests have the same MAC address, the addresses of these guests identify no
    guest.
    """
    macs = Counter(guest.mac for guest in segment.guests)
    pairs = [(address, guest) for guest in segment.guests for address in _list_addresses(guest)]
    times = Counter(address for address, _ in pairs)
    return {address: guest for address, guest in pairs if times[address] == macs[guest.mac] == 1}


def list_neighbours(segment: Segment) -> tuple[tuple[str, str], ...]:
    """Return (IP address, MAC address) for each address that identifies a guest, sorted."""
    return tuple(sorted((address, str(guest.mac)) for address, guest in find_guests(segment).items()))


def render_rules(neighbours: tuple[tuple[str, str], ...]) -> str:
    """Return rules (nft(8)) that accept TCP packets to `PORT` only from these pairs of addresses."""
    pairs4 = [f"{mac} . {address}" for address, mac in neighbours if ip_address(address).version == _IPV4]
    pairs6 = [f"{mac} . {address}" for address, mac in neighbours if ip_address(address).version != _IPV4]
    limit = f"limit rate over {CONNECTIONS_PER_S}/second burst {BURST} packets"
    return f"""\
table bridge metadata {{
 set guests4 {{ type ether_addr . ipv4_addr; {_elements(pairs4)} }}
 set guests6 {{ type ether_addr . ipv6_addr; {_elements(pairs6)} }}
 set connections {{ type ether_addr; size 65535; flags dynamic; }}
 chain identified {{
  ip frag-off & 0x3fff != 0 drop
  exthdr frag exists drop
  tcp flags & (syn | ack) == syn update @connections {{ ether saddr {limit} }} drop
  accept
 }}
 chain input {{
  type filter hook input priority 0; policy accept;
  ether type != {{ ip, ip6 }} accept
  meta l4proto != tcp accept
  tcp dport != {PORT} accept
  ether saddr . ip saddr @guests4 goto identified
  ether saddr . ip6 saddr @guests6 goto identified
  drop
 }}
}}
"""


def _list_addresses(guest: GuestWanted) -> Iterator[str]:
    yield from {str(ip_interface(address).ip) for address in guest.addresses}
    yield str(link_local_address(guest.mac))


def _elements(pairs: list[str]) -> str:
    return f"elements = {{ {', '.join(pairs)} }};" if pairs else ""
