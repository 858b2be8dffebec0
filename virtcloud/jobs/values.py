"""The kinds of value that a request has, the same on a job's line and in its file."""

import ipaddress
import re
from typing import Callable, NamedTuple, Tuple

from virtcloud.jobs.sizes import bytes_of

NAME_PATTERN = r"[a-z][a-z0-9-]{0,31}"
PRIVATE = "private"
MOST_GUESTS = 64
LEAST_MB = 16
MOST_MB = 16 * 1024 * 1024
MIB = 1 << 20
_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_MAC = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}")


class Kind(NamedTuple):
    """What a value must be, and how it is read from text: ``read`` raises ValueError for what it is not.

    Of a kind with ``many`` there may be several: joined by ``+`` on a line, a list in a file.
    """

    expected: str
    read: Callable[[str], object]
    many: bool = False


def number(lowest: int, highest: int) -> Kind:
    """Give the kind of whole numbers between two."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text) or not lowest <= int(text) <= highest:
            raise ValueError(text)
        return int(text)

    return Kind("a number from %d to %d" % (lowest, highest), read)


def _matching(pattern: "re.Pattern[str]") -> Callable[[str], str]:
    def read(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise ValueError(text)
        return text

    return read


def _network_name(text: str) -> object:
    return None if text == PRIVATE else NAME.read(text)


def _memory(text: str) -> int:
    found = bytes_of(text) // MIB
    if not LEAST_MB <= found <= MOST_MB:
        raise ValueError(text)
    return found


def _interface(text: str) -> str:
    """Write an address with its prefix length the canonical way."""
    if "/" not in text:
        raise ValueError(text)
    return str(ipaddress.ip_interface(text))


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(text)
    return text


NAME = Kind("a name that matches " + NAME_PATTERN, _matching(re.compile(NAME_PATTERN)))
NETWORK = Kind(NAME.expected, _network_name)
OWNERS = Kind("names of users such as bob+carol", _matching(_OWNER), many=True)
MEMORY = Kind("a size from %dmb to 16tb, such as 4gb" % LEAST_MB, _memory)
CPUS = number(1, 1024)
GUESTS = number(1, MOST_GUESTS)
VLAN = number(2, 4094)
SUBNET = Kind(
    "a network such as 10.0.0.0/24 or [fd00::/64], or its first address such as 10.0.0.50/24", _interface, many=True
)
ADDRESSES = Kind("an address with its prefix length such as 10.0.0.5/24", _interface, many=True)
MAC = Kind("a unicast MAC address such as 02:00:00:00:00:01", lambda text: _matching(_MAC)(text.lower()))
PATH = Kind("a path that starts with /", _path)


def families(subnets: Tuple[str, ...]) -> Tuple[int, ...]:
    """Give the version of IP of each."""
    return tuple(ipaddress.ip_interface(one).version for one in subnets)
