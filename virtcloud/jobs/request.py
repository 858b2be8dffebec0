"""The request of a job, on one line: ``image=debian12:guests=2:mem=4gb:ncpus=2:subnet=10.0.0.0/24``.

``=`` separates a key from its value, and ``:`` separates pairs, as in a PBS ``select``. A value with colons (an IPv6
network) needs brackets. The parser checks only the syntax, not whether the image and the network exist.
"""

import re
from collections import OrderedDict
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Tuple

from virtcloud.jobs import request_values
from virtcloud.jobs.request_keys import REQUEST_KEYS
from virtcloud.jobs.request_values import NAME_PATTERN, RequestError, ip_versions

PAIR = re.compile(r"([^=:\[\]]*)(=)?(\[[^\[\]]*\]|[^:\[\]]*)")
RESERVED_KEYS = ("access", "publish")


class GuestRequest(NamedTuple):
    """The request of one guest. If ``name`` or ``addresses`` is None, virtcloud assigns a value.

    A guest whose ``addresses`` are empty (``()``) gets no address. If ``disk_mb`` is None, a virtual machine's disk has
    the size of the image, and a container may write any amount of data. If ``pids`` is None, the limit of the host
    applies. If ``bandwidth_mbit`` is None, the rate is not limited.
    """

    image: str = ""
    memory_mb: int = 256
    cpus: int = 1
    name: Optional[str] = None
    mac: Optional[str] = None
    addresses: Optional[Tuple[str, ...]] = None
    disk_mb: Optional[int] = None
    pids: Optional[int] = None
    bandwidth_mbit: Optional[int] = None


HostGuests = Tuple[GuestRequest, ...]


class JobRequest(NamedTuple):
    """A request. Each item of ``parts`` contains the guests of one host. The last item also applies to all later hosts.

    - ``net``: the name of a running network to join, or None for a new network.
    - ``share``: users who may join the new network.
    - ``reach``: further sites of the new network, in addition to the sites of the job's hosts.
    - ``services``: the services of hosts for the guests of the new network, such as DHCP.
    - ``service``: the services of gateways in the new network, such as NFS.
    - ``vpn``: whether SBF connects the cluster to gateways when the job starts. If false, SBF connects the cluster when
      a user creates the first VPN profile.
    - ``outside``: the destinations that guests may reach through a gateway.
    - ``private``: whether ``net=private`` beside ``spec`` overrides ``net`` in the request file.
    - ``spec``: the path of the request file; None if the request has no file. The file contains the parts, so ``parts``
      is empty until the file is read.
    """

    parts: Tuple[HostGuests, ...] = ()
    name: Optional[str] = None
    net: Optional[str] = None
    share: Tuple[str, ...] = ()
    subnet: Tuple[str, ...] = ()
    vlan: Optional[int] = None
    spec: Optional[str] = None
    filters: Optional[str] = None
    reach: Tuple[str, ...] = ()
    services: Tuple[str, ...] = ()
    service: Tuple[str, ...] = ()
    vpn: bool = False
    outside: Tuple[str, ...] = ()
    private: bool = False

    def part(self, host: int) -> HostGuests:
        """Return the guests of the host with this index."""
        return self.parts[min(host, len(self.parts) - 1)]

    @property
    def images(self) -> Tuple[str, ...]:
        """The requested images, without duplicates, in the order of the request."""
        return tuple(OrderedDict.fromkeys(guest.image for part in self.parts for guest in part))


KEYS_BESIDE_SPEC = ("spec", "name", "net")
GUEST_FIELDS = OrderedDict(
    [
        ("image", "image"),
        ("mem", "memory_mb"),
        ("ncpus", "cpus"),
        ("disk", "disk_mb"),
        ("pids", "pids"),
        ("bandwidth", "bandwidth_mbit"),
    ]
)
"""The keys of the request line that describe each guest, with the fields of GuestRequest that store their values."""
NEW_NETWORK_KEYS = ("name", "vlan", "share", "filters", "reach", "services", "service", "outside")


class _Pair(NamedTuple):
    """A key, its value, and the position of the key's first character, counted from 1."""

    key: str
    value: str
    position: int


def parse_request(text: str) -> JobRequest:
    """Parse a request line. Raise RequestError with the key, the expectation, the value, and the position."""
    pairs = OrderedDict()  # type: OrderedDict[str, _Pair]
    for pair in _parse_pairs(text):
        if pair.key in pairs:
            raise _wrong_value(pair, "this key once", "it twice")
        pairs[pair.key] = pair
    values = {key: _read_value(pair) for key, pair in pairs.items()}
    _check_required_keys(pairs)
    for key, expected in find_conflicts(values):
        raise _wrong_value(pairs[key], expected, repr(pairs[key].value))
    return _build_request(values)


def find_conflicts(values: Mapping[str, Any]) -> Iterator[Tuple[str, str]]:
    """Yield each key that conflicts with other keys, and the expected value of this key."""
    if values.get("net"):
        for key in (key for key in NEW_NETWORK_KEYS if values.get(key)):
            yield key, "no value together with net=%s" % values["net"]
    services = values.get("services", ())
    if services and "dhcp" not in services:
        yield "services", "dhcp too, because guests find the servers by DHCP"
    if "metadata" in services and values.get("filters") == "open":
        yield "services", "no metadata together with filters=open"
    versions = ip_versions(values.get("subnet", ()))
    if len(set(versions)) < len(versions):
        yield "subnet", "at most one IPv4 subnet and one IPv6 subnet"


def _build_request(values: Dict[str, Any]) -> JobRequest:
    guest = GuestRequest(**{field: values.pop(key) for key, field in GUEST_FIELDS.items() if key in values})
    count = values.pop("guests", 1)
    if "spec" in values:
        return JobRequest(private="net" in values and values["net"] is None, **values)
    return JobRequest(parts=((guest,) * count,), **values)


def _parse_pairs(text: str) -> Iterator[_Pair]:
    if not text.strip():
        raise RequestError("expected a request such as image=debian12:guests=2, got nothing")
    if text[0].isspace():  # qselect finds only requests that begin with a letter
        raise RequestError("expected a key as the first word, got a space (character 1)")
    start = 0
    while start <= len(text):
        match = PAIR.match(text, start)
        if match is None or (match.end() < len(text) and text[match.end()] != ":"):
            raise RequestError("expected key=value pairs separated by ':', got %r (character %d)" % (text, start + 1))
        yield _parse_pair(match, start + 1)
        start = match.end() + 1


def _parse_pair(match: "re.Match[str]", position: int) -> _Pair:
    key, equals, value = match.group(1).strip(), match.group(2), match.group(3)
    pair = _Pair(key, value.strip("[]") if value.startswith("[") else value, position)
    if key in RESERVED_KEYS:
        raise RequestError("'%s' is not supported here (character %d)" % (key, position))
    if key not in REQUEST_KEYS:
        raise RequestError("expected one of %s, got %r (character %d)" % (", ".join(REQUEST_KEYS), key, position))
    if not equals or not pair.value:
        raise _wrong_value(pair, "a value", "none")
    return pair


def _read_value(pair: _Pair) -> object:
    kind = REQUEST_KEYS[pair.key].kind
    try:
        if kind.many:
            return tuple(OrderedDict.fromkeys(kind.read(item) for item in pair.value.split("+")))
        return kind.read(pair.value)
    except request_values.UnusableAddress as error:
        raise _wrong_value(pair, str(error), repr(pair.value)) from None
    except ValueError:
        if pair.key == "name":
            raise RequestError("name must match %s, got %r" % (NAME_PATTERN, pair.value)) from None
        raise _wrong_value(pair, kind.expected, repr(pair.value)) from None


def _wrong_value(pair: _Pair, expected: str, got: str) -> RequestError:
    return RequestError("%s: expected %s, got %s (character %d)" % (pair.key, expected, got, pair.position))


def _check_required_keys(pairs: Dict[str, _Pair]) -> None:
    """Raise RequestError if a required key is absent, or if a key is not permitted together with ``spec``."""
    if "spec" in pairs:
        for key in (key for key in pairs if key not in KEYS_BESIDE_SPEC):
            raise _wrong_value(pairs[key], "this key in the file %s" % pairs["spec"].value, "it on the line")
    elif "image" not in pairs:
        raise RequestError("image: expected the name of an image, got none; see 'virtcloud image list'")
