"""The request file of a job, in YAML or JSON. It has the keys of the request line, and describes each guest.

Values have the notation of the request line. Several values form a list.
"""

import re
from collections import OrderedDict
from itertools import chain
from typing import Any, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Tuple

from virtcloud.jobs import request_values
from virtcloud.jobs.request import (
    REQUEST_KEYS,
    RESERVED_KEYS,
    GuestRequest,
    HostGuests,
    JobRequest,
    RequestKey,
    find_conflicts,
)
from virtcloud.jobs.request_values import RequestError, ValueKind

TOP_KEYS = OrderedDict((key, REQUEST_KEYS[key]) for key in ("name", "net", "share", "subnet", "vlan"))
GUEST_KEYS = OrderedDict(
    [
        ("image", REQUEST_KEYS["image"]._replace(meaning="The image of the guest. Required.")),
        ("name", RequestKey(request_values.NAME, "The name of the guest; default: `g` and its number.", "head")),
        ("mem", RequestKey(request_values.MEMORY, "Its memory; default: 256mb.", "4gb")),
        ("ncpus", RequestKey(request_values.CPUS, "Its processors; default: one.", "2")),
        ("mac", RequestKey(request_values.MAC, "Its MAC address; default: generated.", "02:00:00:00:00:01")),
        (
            "addresses",
            RequestKey(
                request_values.ADDRESSES,
                "Its addresses; default: the next of `subnet`; `[]`: none.",
                "[10.0.0.5/24]",
            ),
        ),
    ]
)
HOSTS_TEXT = (
    "The job's hosts get the parts of `hosts` in order; the last part applies to all remaining hosts. There may not be "
    "more parts than hosts. In a part for several hosts, guests have no `name`, `mac` or `addresses`."
)
EXAMPLE = """\
name: mine
share: [bob, carol]
subnet: [10.0.0.50/24, "fd00::/64"]
hosts:
  - guests:                   # the first host
      - {image: debian12, name: head, mem: 4gb, ncpus: 2, addresses: [10.0.0.1/24]}
  - guests:                   # each of the others
      - {image: debian12, mem: 2gb}
      - {image: debian12, mem: 2gb}
"""
GUEST_FIELDS = {"mem": "memory_mb", "ncpus": "cpus"}
SINGLE_GUEST_KEYS = ("name", "mac", "addresses")
"""Keys whose values must differ from guest to guest."""
NUMBERED_NAME = re.compile("g[0-9]+")


class _FilePosition(NamedTuple):
    """A position in a request file."""

    file: str
    place: Tuple[str, ...] = ()

    def to(self, *parts: object) -> "_FilePosition":
        return self._replace(place=self.place + tuple(str(part) for part in parts))

    def wrong(self, expected: str, got: str) -> NoReturn:
        where = ": ".join(filter(None, (self.file, ".".join(self.place))))
        raise RequestError("%s: expected %s, got %s" % (where, expected, got))


def merge_request_file(request: JobRequest, document: object) -> JobRequest:
    """Return the request with the content of its file. Raises RequestError with the file's name and the position.

    ``name`` and ``net`` on the request line override those in the file.
    """
    at = _FilePosition(request.spec or "spec")
    top = _check_mapping(document, at, (*TOP_KEYS, "hosts"))
    read = _parse_values(top, TOP_KEYS, at)
    if "hosts" not in top:
        at.to("hosts").wrong("a list, each with the guests of one host", "nothing")
    parts = tuple(
        _parse_host(one, at.to("hosts", number)) for number, one in enumerate(_check_list(top["hosts"], at.to("hosts")))
    )
    if not parts:
        at.to("hosts").wrong("the guests of one host at least", "none")
    line = {key: value for key, value in (("name", request.name), ("net", request.net)) if value}
    read.update(line)
    for key, expected in find_conflicts(read):
        at.to(key).wrong(expected, repr(read[key]))
    _check_unique(parts, at)
    _check_numbered(parts, at)
    return JobRequest(parts=parts, spec=request.spec, **read)


def check_host_count(request: JobRequest, count: int) -> None:
    """Raise RequestError for more parts than hosts, and for unique values in a part that several hosts get."""
    if request.spec is None:
        return
    at, last = _FilePosition(request.spec), len(request.parts) - 1
    if count <= last:
        at.to("hosts").wrong("at most %d, as the job has" % count, str(last + 1))
    if count > last + 1:
        for number, guest in enumerate(request.parts[last]):
            for key in (one for one in SINGLE_GUEST_KEYS if getattr(guest, one)):
                what = "none, since this stands for %d hosts" % (count - last)
                at.to("hosts", last, "guests", number, key).wrong(what, _format_value(getattr(guest, key)))


def _parse_host(value: object, at: _FilePosition) -> HostGuests:
    given = _check_mapping(value, at, ("guests",))
    guests = _check_list(given.get("guests", []), at.to("guests"))
    if len(guests) > request_values.MAX_GUESTS:
        at.to("guests").wrong("at most %d guests" % request_values.MAX_GUESTS, str(len(guests)))
    return tuple(_parse_guest(one, at.to("guests", number)) for number, one in enumerate(guests))


def _parse_guest(value: object, at: _FilePosition) -> GuestRequest:
    read = _parse_values(_check_mapping(value, at, tuple(GUEST_KEYS)), GUEST_KEYS, at)
    if "image" not in read:
        at.to("image").wrong("the name of an image (see 'virtcloud image list')", "nothing")
    return GuestRequest(**{GUEST_FIELDS.get(key, key): one for key, one in read.items()})


def _parse_values(given: Mapping[str, object], keys: Mapping[str, RequestKey], at: _FilePosition) -> Dict[str, Any]:
    return {key: _parse_value(given[key], keys[key].kind, at.to(key)) for key in keys if key in given}


def _parse_value(value: object, kind: ValueKind, at: _FilePosition) -> object:
    if not kind.many:
        return _parse_single(value, kind, at)
    several = value if isinstance(value, list) else [value]
    return tuple(OrderedDict.fromkeys(_parse_single(one, kind, at.to(n)) for n, one in enumerate(several)))


def _parse_single(value: object, kind: ValueKind, at: _FilePosition) -> object:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        try:
            return kind.read(str(value))
        except ValueError:
            return at.wrong(kind.expected, repr(value))
    return at.wrong(kind.expected, repr(value))


def _check_mapping(value: object, at: _FilePosition, keys: Tuple[str, ...]) -> Dict[str, object]:
    if not isinstance(value, dict):
        at.wrong("a mapping with %s" % ", ".join(keys), "nothing" if value is None else repr(value))
    for key in value:
        if key in RESERVED_KEYS:
            raise RequestError("%s: '%s' is not supported here" % (at.file, key))
        if key not in keys:
            at.wrong("one of %s" % ", ".join(keys), repr(key))
    return value


def _check_list(value: object, at: _FilePosition) -> List[object]:
    return value if isinstance(value, list) else at.wrong("a list", repr(value))


def _check_unique(parts: Tuple[HostGuests, ...], at: _FilePosition) -> None:
    """Raise RequestError if two guests have the same name, MAC or address."""
    used = {}  # type: Dict[Tuple[str, str], _FilePosition]
    for number, part in enumerate(parts):
        for index, guest in enumerate(part):
            here = at.to("hosts", number, "guests", index)
            for key, value in chain(
                [("name", guest.name), ("mac", guest.mac)],
                [("addresses", one.partition("/")[0]) for one in guest.addresses or ()],
            ):
                _check_first_use(used, key, value, here.to(key))


def _check_numbered(parts: Tuple[HostGuests, ...], at: _FilePosition) -> None:
    """Raise RequestError for a name like ``g2`` that is the default name of another guest."""
    places = [(number, index, guest) for number, part in enumerate(parts) for index, guest in enumerate(part)]
    for count, (number, index, guest) in enumerate(places, 1):
        if guest.name and NUMBERED_NAME.fullmatch(guest.name) and guest.name != "g%d" % count:
            here = at.to("hosts", number, "guests", index, "name")
            here.wrong("none such as g1, which guests without a name get", repr(guest.name))


def _check_first_use(
    used: Dict[Tuple[str, str], _FilePosition], key: str, value: Optional[str], here: _FilePosition
) -> None:
    if value is None:
        return
    if (key, value) in used:
        here.wrong("none that %s has" % ".".join(used[key, value].place[:-1]), repr(value))
    used[key, value] = here


def _format_value(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else repr(value)
