"""The bridge ports of guests and devices, and the nftables table that filters the frames at these ports. Pure.

Devices are the users' computers that a gateway connects to the network by VPN. `guest_filter_rules` contains the rules.
This module computes the elements of the table's sets, and renders the table.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses, ip_interface, ip_network
from typing import NamedTuple

from virtcloud.agent.network.guest_filter_rules import (
    FAMILY,
    INGRESS,
    INGRESS_HOOK,
    OWN_ADDRESSES,
    RATE_SETS,
    RULES,
    SETS,
    TABLE,
    WITHOUT_EXTENSIONS,
    SetElement,
    is_verdict_map,
)
from virtcloud.agent.network.owned_tables import digest_rule
from virtcloud.model.cluster import GuestService


class GuestPort(NamedTuple):
    """A guest's bridge port, and the frames that the guest may send through the port.

    ``mac`` is the only allowed source MAC address. ``addresses`` are the only allowed IP addresses (with prefix
    lengths), besides the link-local IPv6 address of ``mac``. If ``addresses`` is None, all IP addresses are allowed. If
    ``mac`` is None, the guest may use all addresses, answer as a DHCP server and send router advertisements. If
    ``served`` is true, the guest must not claim the addresses of the hosts' server (`guest_filter_rules.SERVER4` and
    `SERVER6`).
    """

    port: str
    mac: str | None
    addresses: tuple[str, ...] | None = None
    serves: tuple[GuestService, ...] = ()
    served: bool = False


class DevicePort(NamedTuple):
    """The bridge port of a network's devices, and the frames that the devices may send through the port.

    ``guest_macs`` are the MAC addresses that devices must not use. ``addresses`` are the only allowed IP addresses,
    besides link-local IPv6 addresses. If ``addresses`` is None, all IP addresses are allowed. If a device is the
    network's router, ``routed`` are the network's subnets, and all addresses outside of these subnets are allowed too.
    If ``served`` is true, the devices must not claim the addresses of the hosts' server (`guest_filter_rules.SERVER4`
    and `SERVER6`).
    """

    port: str
    guest_macs: tuple[str, ...] = ()
    addresses: tuple[str, ...] | None = None
    routed: tuple[str, ...] = ()
    served: bool = False


FilteredPort = GuestPort | DevicePort


def list_elements(ports: Iterable[FilteredPort]) -> frozenset[SetElement]:
    """Return the elements of all sets for these ports."""
    return frozenset(
        element
        for port in ports
        for element in (_list_port_elements(port) if isinstance(port, GuestPort) else _list_device_elements(port))
    )


def render_table(ports: Iterable[FilteredPort], rules: Mapping[str, tuple[str, ...]] = RULES) -> str:
    """Return commands that replace the table in one transaction. Without ports, the commands delete the table."""
    delete = f"table {FAMILY} {TABLE} {{ }}\ndelete table {FAMILY} {TABLE}\n"
    elements = sorted(list_elements(ports))
    if not elements:
        return delete
    sets = "".join(_render_set(name, [parts for owner, *parts in elements if owner == name]) for name in SETS)
    rates = "".join(f" set {name} {{ type ifname; size 65535; flags dynamic; }}\n" for name in RATE_SETS)
    chains = "".join(_render_chain(name, chain_rules) for name, chain_rules in rules.items())
    return f"{delete}table {FAMILY} {TABLE} {{\n{sets}{rates}{chains}}}\n"


def _list_port_elements(port: GuestPort) -> Iterator[SetElement]:
    if port.mac is not None:
        yield "ports", port.port
        yield "guests", port.port, port.mac
        any_address, own = ("accept", f"goto {WITHOUT_EXTENSIONS}"), (f"goto {OWN_ADDRESSES}",) * 2
        verdicts = any_address if port.addresses is None else own
        for kind, verdict in zip(("ip", "ip6"), verdicts, strict=True):
            yield "senders", port.port, port.mac, kind, verdict
        if port.addresses is not None:
            yield "addressed", port.port
            yield from _list_addresses(port.port, port.mac, port.addresses)
    if "dhcp" in port.serves or port.mac is None:
        yield "dhcp_servers", port.port
    if "ra" in port.serves or port.mac is None:
        yield "routers", port.port
    if port.served:
        yield "served", port.port


def _list_device_elements(port: DevicePort) -> Iterator[SetElement]:
    yield "vpn_ports", port.port
    yield from (("guest_macs", port.port, mac) for mac in port.guest_macs)
    if port.served:
        yield "served", port.port
    if port.addresses is not None:
        yield "addressed", port.port
        yield from _list_own_addresses(port.port, [ip_interface(address).ip for address in port.addresses])
        for network in _merge_overlapping(port.routed):
            yield f"routed{network.version}", port.port
            single = network.num_addresses == 1
            yield f"subnets{network.version}", port.port, str(network.network_address if single else network)


def _merge_overlapping(subnets: Iterable[str]) -> Iterator[IPv4Network | IPv6Network]:
    """Yield subnets that cover ``subnets`` and do not overlap: the kernel refuses a set with overlapping subnets."""
    networks = [ip_network(subnet) for subnet in subnets]
    yield from collapse_addresses(network for network in networks if isinstance(network, IPv4Network))
    yield from collapse_addresses(network for network in networks if isinstance(network, IPv6Network))


def _list_addresses(port: str, mac: str, addresses: Iterable[str]) -> Iterator[SetElement]:
    yield from _list_own_addresses(
        port, [link_local_address(mac), *(ip_interface(address).ip for address in addresses)]
    )


def _list_own_addresses(port: str, allowed: Iterable[IPv4Address | IPv6Address]) -> Iterator[SetElement]:
    own6 = [address for address in allowed if isinstance(address, IPv6Address)]
    own4 = [address for address in allowed if not isinstance(address, IPv6Address)]
    yield from (("addresses4", port, str(address)) for address in ("0.0.0.0", *own4))  # noqa: S104 - a source address
    yield from (("addresses6", port, str(address)) for address in ("::", *own6))
    yield from (("targets", port, f"{int(address):#x}") for address in own6)


def link_local_address(mac: str) -> IPv6Address:
    """Return the link-local address of a MAC address (RFC 4291, appendix A)."""
    octets = bytes.fromhex(mac.replace(":", ""))
    identifier = bytes([octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:]
    return IPv6Address(b"\xfe\x80" + bytes(6) + identifier)


def _render_set(name: str, elements: list[list[str]]) -> str:
    """Render a set. Unless the set is empty or has intervals, its size is the number of its elements.

    With this size, the kernel finds elements faster. The size is never too small, because each change of the elements
    replaces the whole table.
    """
    kind, colon = ("map", " : ") if is_verdict_map(name) else ("set", " . ")
    listed = ", ".join(
        colon.join([" . ".join((f'"{port}"', *values[:-1])), *values[-1:]]) for port, *values in elements
    )
    size = f"size {len(elements)};" if elements and "interval" not in SETS[name] else ""
    return f" {kind} {name} {{ {SETS[name]}; {size} {f'elements = {{ {listed} }};' if listed else ''} }}\n"


def _render_chain(name: str, rules: Iterable[str]) -> str:
    hook = f" {INGRESS_HOOK}" if name == INGRESS else ""
    lines = "".join(f'  {rule} comment "{digest_rule(rule)}"\n' for rule in rules)
    return f" chain {name} {{{hook}\n{lines} }}\n"
