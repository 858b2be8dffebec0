"""The request file of a job, in YAML or JSON. The file has the keys of the request line, and lists the guests.

Values have the notation of the request line. Several values of one key form a list.
"""

import re
from collections import OrderedDict
from itertools import chain
from typing import Any, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Tuple

from virtcloud.jobs import request_values
from virtcloud.jobs.request import GUEST_FIELDS, RESERVED_KEYS, GuestRequest, HostGuests, JobRequest, find_conflicts
from virtcloud.jobs.request_keys import REQUEST_KEYS, RequestKey
from virtcloud.jobs.request_values import RequestError, ValueKind

TOP_KEYS = OrderedDict(
    (key, REQUEST_KEYS[key])
    for key in ("name", "net", "share", "subnet", "vlan", "filters", "reach", "services", "service", "vpn", "outside")
)
GUEST_KEYS = OrderedDict(
    [
        ("image", REQUEST_KEYS["image"]._replace(meaning="The image of the guest. Required.")),
        ("name", RequestKey(request_values.NAME, "The name of the guest; default: `g1`, `g2` and so on.", "head")),
        ("mem", RequestKey(request_values.MEMORY, "The memory of the guest; default: 256mb.", "4gb")),
        ("ncpus", RequestKey(request_values.CPUS, "Number of processors of the guest; default: 1.", "2")),
        (
            "disk",
            REQUEST_KEYS["disk"]._replace(
                meaning="The size of a virtual machine's disk (default: the image's size), or the amount of data that "
                "a container can write (default: no limit)."
            ),
        ),
        ("pids", REQUEST_KEYS["pids"]._replace(meaning="Maximum processes and threads of a container.")),
        ("bandwidth", REQUEST_KEYS["bandwidth"]._replace(meaning="Maximum rate in Mbit/s in each direction.")),
        ("mac", RequestKey(request_values.MAC, "The MAC address; default: generated.", "02:00:00:00:00:01")),
        (
            "addresses",
            RequestKey(
                request_values.ADDRESSES,
                "The addresses of the guest; default: the next addresses of `subnet`; `[]`: no address.",
                "[10.0.0.5/24]",
            ),
        ),
    ]
)
HOSTS_TEXT = (
    "The first item of `hosts` applies to the job's first host, and so on. The last item also applies to all further "
    "hosts. A job must have at least as many hosts as `hosts` has items. If an item applies to several hosts, its "
    "guests must not have `name`, `mac` or `addresses`."
)
EXAMPLE = """\
name: mine
share: [bob, carol]
subnet: [10.0.0.50/24, "fd00::/64"]
hosts:
  - guests:                   # the first host
      - {image: debian12, name: head, mem: 4gb, ncpus: 2, addresses: [10.0.0.1/24]}
  - guests:                   # each further host
      - {image: debian12, mem: 2gb}
      - {image: debian12, mem: 2gb}
"""
SINGLE_GUEST_KEYS = ("name", "mac", "addresses")
"""Keys whose values must differ from guest to guest."""
DEFAULT_NAME = re.compile("g[0-9]+")


class _FilePosition(NamedTuple):
    file: str
    path: Tuple[str, ...] = ()

    def to(self, *keys: object) -> "_FilePosition":
        return self._replace(path=self.path + tuple(str(key) for key in keys))

    def fail(self, expected: str, got: str) -> NoReturn:
        position = ": ".join(filter(None, (self.file, ".".join(self.path))))
        raise RequestError("%s: expected %s, got %s" % (position, expected, got))


def merge_request_file(request: JobRequest, document: object) -> JobRequest:
    """Return the request with the content of its file.

    ``name`` and ``net`` on the request line override ``name`` and ``net`` in the file. If the file has a fault, raise
    RequestError with the file's name and the fault's position.
    """
    at = _FilePosition(request.spec or "spec")
    top = _check_mapping(document, at, (*TOP_KEYS, "hosts"))
    values = _parse_values(top, TOP_KEYS, at)
    if "hosts" not in top:
        at.to("hosts").fail("a list with the guests of each host", "nothing")
    hosts = _check_list(top["hosts"], at.to("hosts"))
    parts = tuple(_parse_host(part, at.to("hosts", index)) for index, part in enumerate(hosts))
    if not parts:
        at.to("hosts").fail("the guests of at least one host", "none")
    if request.net or request.private:
        values["net"] = request.net
    if request.name:
        values["name"] = request.name
    for key, expected in find_conflicts(values):
        at.to(key).fail(expected, repr(values[key]))
    _check_unique(parts, at)
    _check_default_names(parts, at)
    return JobRequest(parts=parts, spec=request.spec, **values)


def check_host_count(request: JobRequest, count: int) -> None:
    """Raise RequestError if the file has more parts (items of ``hosts``) than the job has hosts.

    Also raise RequestError if the last part applies to several hosts and has a guest with ``name``, ``mac`` or
    ``addresses``: guests must not share these values.
    """
    if request.spec is None:
        return
    at, last = _FilePosition(request.spec), len(request.parts) - 1
    if count <= last:
        at.to("hosts").fail("at most %d parts, one for each host of the job" % count, str(last + 1))
    if count > last + 1:
        for index, guest in enumerate(request.parts[last]):
            for key in (key for key in SINGLE_GUEST_KEYS if getattr(guest, key)):
                expected = "no value, because this part applies to %d hosts" % (count - last)
                at.to("hosts", last, "guests", index, key).fail(expected, _format_value(getattr(guest, key)))


def _parse_host(value: object, at: _FilePosition) -> HostGuests:
    part = _check_mapping(value, at, ("guests",))
    guests = _check_list(part.get("guests", []), at.to("guests"))
    if len(guests) > request_values.MAX_GUESTS:
        at.to("guests").fail("at most %d guests" % request_values.MAX_GUESTS, str(len(guests)))
    return tuple(_parse_guest(guest, at.to("guests", index)) for index, guest in enumerate(guests))


def _parse_guest(value: object, at: _FilePosition) -> GuestRequest:
    values = _parse_values(_check_mapping(value, at, tuple(GUEST_KEYS)), GUEST_KEYS, at)
    if "image" not in values:
        at.to("image").fail("the name of an image (see 'virtcloud image list')", "nothing")
    return GuestRequest(**{GUEST_FIELDS.get(key, key): value for key, value in values.items()})


def _parse_values(mapping: Mapping[str, object], keys: Mapping[str, RequestKey], at: _FilePosition) -> Dict[str, Any]:
    return {key: _parse_value(mapping[key], keys[key].kind, at.to(key)) for key in keys if key in mapping}


def _parse_value(value: object, kind: ValueKind, at: _FilePosition) -> object:
    if not kind.many:
        return _parse_single(value, kind, at)
    items = value if isinstance(value, list) else [value]
    return tuple(OrderedDict.fromkeys(_parse_single(item, kind, at.to(index)) for index, item in enumerate(items)))


def _parse_single(value: object, kind: ValueKind, at: _FilePosition) -> object:
    if kind is request_values.YES_OR_NO and isinstance(value, bool):  # YAML parses unquoted yes and no as booleans
        return value
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        try:
            return kind.read(str(value))
        except request_values.UnusableAddress as error:
            return at.fail(str(error), repr(value))
        except ValueError:
            return at.fail(kind.expected, repr(value))
    return at.fail(kind.expected, repr(value))


def _check_mapping(value: object, at: _FilePosition, keys: Tuple[str, ...]) -> Dict[str, object]:
    if not isinstance(value, dict):
        at.fail("a mapping with %s" % ", ".join(keys), "nothing" if value is None else repr(value))
    for key in value:
        if key in RESERVED_KEYS:
            raise RequestError("%s: '%s' is not supported here" % (at.file, key))
        if key not in keys:
            at.fail("one of %s" % ", ".join(keys), repr(key))
    return value


def _check_list(value: object, at: _FilePosition) -> List[object]:
    return value if isinstance(value, list) else at.fail("a list", repr(value))


def _check_unique(parts: Tuple[HostGuests, ...], at: _FilePosition) -> None:
    used = {}  # type: Dict[Tuple[str, str], _FilePosition]
    for host_index, part in enumerate(parts):
        for index, guest in enumerate(part):
            position = at.to("hosts", host_index, "guests", index)
            for key, value in chain(
                [("name", guest.name), ("mac", guest.mac)],
                [("addresses", address.partition("/")[0]) for address in guest.addresses or ()],
            ):
                _check_first_use(used, key, value, position.to(key))


def _check_default_names(parts: Tuple[HostGuests, ...], at: _FilePosition) -> None:
    """Raise RequestError if a guest's name has the form of default names, but is not the guest's own default name.

    For example, the first guest of the file may have the name ``g1``, but not the name ``g2``.
    """
    guests = [(host, index, guest) for host, part in enumerate(parts) for index, guest in enumerate(part)]
    for number, (host, index, guest) in enumerate(guests, 1):
        if guest.name and DEFAULT_NAME.fullmatch(guest.name) and guest.name != "g%d" % number:
            position = at.to("hosts", host, "guests", index, "name")
            position.fail("a name unlike g1, g2 and so on (default names of guests)", repr(guest.name))


def _check_first_use(
    used: Dict[Tuple[str, str], _FilePosition], key: str, value: Optional[str], position: _FilePosition
) -> None:
    if value is None:
        return
    if (key, value) in used:
        position.fail("a value that %s does not have" % ".".join(used[key, value].path[:-1]), repr(value))
    used[key, value] = position


def _format_value(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else repr(value)
