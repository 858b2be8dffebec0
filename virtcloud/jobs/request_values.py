"""The kinds of values in a request line or file, and the error for an invalid request."""

import ipaddress
import re
from typing import Callable, NamedTuple, Tuple

from virtcloud.jobs.sizes import parse_mib

NAME_PATTERN = r"[a-z][a-z0-9-]{0,31}"
PRIVATE_NETWORK = "private"
MAX_GUESTS = 64
MIN_MEMORY_MB = 16
MAX_MEMORY_MB = 16 * 1024 * 1024
MIN_DISK_MB = 16
MAX_DISK_MB = 64 * 1024 * 1024
SPECIAL_NETWORKS = {
    "0.0.0.0/8": "unspecified",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "::/96": "unspecified, loopback or IPv4-compatible",
    "::ffff:0:0/96": "IPv4-mapped",
    "fe80::/10": "link-local",
    "ff00::/8": "multicast",
}
"""The networks whose addresses no guest can use, with their kinds. SBF refuses the same networks
(``sbf_service/domain/subnets.py``).
"""
_SPECIAL = tuple((ipaddress.ip_network(text), text, kind) for text, kind in SPECIAL_NETWORKS.items())
_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_MAC = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}")


class ValueKind(NamedTuple):
    """A kind of value. ``expected`` describes valid values. The parser ``read`` raises ValueError for other values.

    ``many``: several values are allowed, separated by ``+`` on the request line, or in a list in a request file.
    """

    expected: str
    read: Callable[[str], object]
    many: bool = False


def integer_between(lowest: int, highest: int, name: str = "a number") -> ValueKind:
    """Return the kind of integers from ``lowest`` to ``highest``. Messages call these integers ``name``."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text) or not lowest <= int(text) <= highest:
            raise ValueError(text)
        return int(text)

    return ValueKind("%s from %d to %d" % (name, lowest, highest), read)


def _matcher(pattern: "re.Pattern[str]") -> Callable[[str], str]:
    def read(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise ValueError(text)
        return text

    return read


def _read_network_name(text: str) -> object:
    return None if text == PRIVATE_NETWORK else NAME.read(text)


def size_between(lowest_mb: int, highest_mb: int, expected: str) -> ValueKind:
    """Return the kind of sizes such as ``4gb``. The parser returns a size in MiB."""

    def read(text: str) -> int:
        size_mb = parse_mib(text)
        if not lowest_mb <= size_mb <= highest_mb:
            raise ValueError(text)
        return size_mb

    return ValueKind(expected, read)


class UnusableAddress(ValueError):
    """An address or network that no guest can use. The message describes the expected network."""


def _read_interface(text: str) -> str:
    if "/" not in text:
        raise ValueError(text)
    interface = ipaddress.ip_interface(text)
    for special, known, kind in _SPECIAL:
        if interface.network.overlaps(special):
            raise UnusableAddress("a network without %s addresses (%s)" % (kind, known))
    return str(interface)


def _read_yes_or_no(text: str) -> bool:
    if text not in {"yes", "no"}:
        raise ValueError(text)
    return text == "yes"


def _read_path(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(text)
    return text


NAME = ValueKind("a name that matches " + NAME_PATTERN, _matcher(re.compile(NAME_PATTERN)))
NETWORK = ValueKind(NAME.expected, _read_network_name)
OWNERS = ValueKind("names of users such as bob+carol", _matcher(_OWNER), many=True)
MEMORY = size_between(MIN_MEMORY_MB, MAX_MEMORY_MB, "a size from %dmb to 16tb, such as 4gb" % MIN_MEMORY_MB)
CPUS = integer_between(1, 1024)
DISK = size_between(MIN_DISK_MB, MAX_DISK_MB, "a size from %dmb to 64tb, such as 10gb" % MIN_DISK_MB)
PIDS = integer_between(16, 4000000)
BANDWIDTH = integer_between(1, 400000, "Mbit/s")
FILTERS = ValueKind("addresses or open", _matcher(re.compile("addresses|open")))
SERVICES = ValueKind("dhcp, dns or metadata, such as dhcp+dns", _matcher(re.compile("dhcp|dns|metadata")), many=True)
GATEWAY_SERVICES = ValueKind("nfs", _matcher(re.compile("nfs")), many=True)
YES_OR_NO = ValueKind("yes or no", _read_yes_or_no)
SITES = ValueKind("names of sites such as brno+praha", NAME.read, many=True)
DESTINATIONS = ValueKind("names of destinations such as archive+web", NAME.read, many=True)
GUESTS = integer_between(1, MAX_GUESTS)
VLAN = integer_between(2, 4094, "a VLAN ID")
SUBNET = ValueKind(
    "a network such as 10.0.0.0/24 or [fd00::/64], or a first address such as 10.0.0.50/24",
    _read_interface,
    many=True,
)
ADDRESSES = ValueKind("an address with its prefix length such as 10.0.0.5/24", _read_interface, many=True)
MAC = ValueKind("a unicast MAC address such as 02:00:00:00:00:01", lambda text: _matcher(_MAC)(text.lower()))
PATH = ValueKind("a path that starts with /", _read_path)


def ip_versions(subnets: Tuple[str, ...]) -> Tuple[int, ...]:
    """Return the IP version of each subnet."""
    return tuple(ipaddress.ip_interface(subnet).version for subnet in subnets)


class RequestError(Exception):
    """An invalid request. The message is a line for the user and starts with ``vcluster:``."""

    def __init__(self, text: str) -> None:
        """Store the message. ``text`` contains the key, the expectation and the value."""
        super().__init__("vcluster: " + text)
