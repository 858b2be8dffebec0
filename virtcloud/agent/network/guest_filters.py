"""PURE. The filters of guests' bridge ports, as a table of nftables in the family ``bridge``.

The table drops frames that a guest must not send. It contains the same few rules for any number of guests. The set
``ports`` contains the guests' bridge ports. The set ``guests`` contains each port with the guest's MAC address, so that
one look-up finds out whether a frame has the right source. A guest that another version of the agent started is not in
the sets: only its source address is not checked. The first rule accepts most frames, because each rule costs time.

=============================  ==============================================================================
frames that are dropped        reason
=============================  ==============================================================================
other source MAC addresses     switches and bridges would send the frames of another guest to this guest
802.1Q and 802.1ad tags        a switch could accept a second tag as another cluster's VLAN
802.3 frames without a type    spanning tree, CDP, VTP, DTP and LACP configure switches. A switch with BPDU guard
(LLC), link-local protocols    disables the host's port, and therefore all clusters of the host.
broadcasts above a rate        a broadcast storm fills the links that the cluster shares with other clusters
=============================  ==============================================================================

Sources: IEEE 802.1Q-2018, table 8-1 (link-local addresses); nft(8).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

FAMILY, TABLE = "bridge", "virtcloud"
GUEST_PORTS = "vc*"
"""The names of guests' bridge ports, and of no other interface on a bridge (see ``names``)."""
BROADCASTS_PER_S = 1000
"""Broadcast frames per second that a guest may send. The frames of one second may be sent at once."""
_BROADCAST_LIMIT = f"limit rate over {BROADCASTS_PER_S}/second burst {BROADCASTS_PER_S} packets"
INGRESS, GUEST = "ingress", "guest"
_INGRESS_HOOK = "type filter hook prerouting priority -300; policy accept;"
_INGRESS_RULES = (f'iifname "{GUEST_PORTS}" jump {GUEST}',)
_GUEST_RULES = (
    "iifname . ether saddr @guests ether type { ip, arp, ip6 } ether daddr & 01:00:00:00:00:00 == 0 accept",
    "iifname @ports iifname . ether saddr != @guests drop",
    "ether type { 8021q, 8021ad, 0x9100, 0x9200 } drop",
    "ether type < 0x0600 drop",
    "ether type { 0x8808, 0x8809, 0x888e, 0x88cc, 0x88e5, 0x8902 } drop",
    "ether daddr 01:80:c2:00:00:00-01:80:c2:00:00:3f drop",
    "ether daddr 01:00:0c:cc:cc:cc-01:00:0c:cd:cd:cd drop",
    f"ether daddr ff:ff:ff:ff:ff:ff update @broadcasts {{ iifname {_BROADCAST_LIMIT} }} drop",
)
RULES: Mapping[str, tuple[str, ...]] = {INGRESS: _INGRESS_RULES, GUEST: _GUEST_RULES}
"""The rules of each chain, in the syntax of nft(8)."""
GuestPort = tuple[str, str]
"""A guest's bridge port and the guest's MAC address."""


@dataclass(frozen=True, slots=True)
class ObservedFilters:
    """The table on a host.

    ``ports`` is the content of the set ``guests``. ``faults`` describes each difference from the rules of this version.
    """

    ports: frozenset[GuestPort] = frozenset()
    faults: tuple[str, ...] = ()


def render_table(ports: Iterable[GuestPort], rules: Mapping[str, tuple[str, ...]] = RULES) -> str:
    """Return commands that replace the table in one transaction. Without ports, the commands delete the table."""
    delete = f"table {FAMILY} {TABLE} {{ }}\ndelete table {FAMILY} {TABLE}\n"
    guests = sorted(ports)
    if not guests:
        return delete
    listed_ports = ", ".join(f'"{port}"' for port, _ in guests)
    listed_guests = ", ".join(f'"{port}" . {mac}' for port, mac in guests)
    chains = "".join(_render_chain(name, chain_rules) for name, chain_rules in rules.items())
    return (
        f"{delete}table {FAMILY} {TABLE} {{\n"
        f" set ports {{ type ifname; elements = {{ {listed_ports} }}; }}\n"
        f" set guests {{ typeof iifname . ether saddr; elements = {{ {listed_guests} }}; }}\n"
        f" set broadcasts {{ type ifname; size 65535; flags dynamic; }}\n{chains}}}\n"
    )


def parse_table(listing: Mapping[str, Any]) -> ObservedFilters:
    """Parse the table as ``nft --json list table`` prints it (libnftables-json(5))."""
    found = [next(iter(item.items())) for item in listing["nftables"]]
    sets: dict[str, list[Any]] = {one["name"]: one.get("elem", []) for kind, one in found if kind == "set"}
    guests = frozenset((str(port), str(mac)) for port, mac in (one["concat"] for one in sets.get("guests", [])))
    faults = list(_find_faults(found))
    if set(sets.get("ports", [])) != {port for port, _ in guests}:
        faults.append("the set ports was changed")
    return ObservedFilters(guests, tuple(faults))


def _render_chain(name: str, rules: Iterable[str]) -> str:
    hook = f" {_INGRESS_HOOK}" if name == INGRESS else ""
    lines = "".join(f'  {rule} comment "{_digest(rule)}"\n' for rule in rules)
    return f" chain {name} {{{hook}\n{lines} }}\n"


def _find_faults(found: list[tuple[str, Any]]) -> Iterator[str]:
    hooks = {one["name"]: (one.get("hook"), one.get("policy")) for kind, one in found if kind == "chain"}
    for name, rules in RULES.items():
        observed = [one.get("comment") for kind, one in found if kind == "rule" and one["chain"] == name]
        if observed != [_digest(rule) for rule in rules]:
            yield f"the rules of chain {name} were changed"
    if hooks.get(INGRESS) != ("prerouting", "accept"):
        yield f"chain {INGRESS} does not receive the frames"


def _digest(rule: str) -> str:
    """Return the comment of a rule, by which the agent recognizes the rules of its version."""
    return sha256(rule.encode()).hexdigest()[:12]
