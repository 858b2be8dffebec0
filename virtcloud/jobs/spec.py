"""The file of a request says the same as the line, and each guest by itself, host by host.

Values are read as on the line; several are a list. It is YAML or JSON.
"""

import re
from collections import OrderedDict
from itertools import chain
from typing import Any, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Tuple

from virtcloud.jobs import values
from virtcloud.jobs.errors import RequestError
from virtcloud.jobs.request import KEYS, LATER, Key, Part, Request, Wish, conflicts
from virtcloud.jobs.values import Kind

TOP = OrderedDict((key, KEYS[key]) for key in ("name", "net", "share", "subnet", "vlan"))
GUEST = OrderedDict(
    [
        ("image", KEYS["image"]._replace(meaning="The guest's image. Required.")),
        ("name", Key(values.NAME, "The guest's name; `g` and its number if not said.", "head")),
        ("mem", Key(values.MEMORY, "Its memory; 256mb if not said.", "4gb")),
        ("ncpus", Key(values.CPUS, "Its processors; one if not said.", "2")),
        ("mac", Key(values.MAC, "Its MAC address; one is made if not said.", "02:00:00:00:00:01")),
        (
            "addresses",
            Key(values.ADDRESSES, "Its addresses; the next of `subnet` if not said, none if `[]`.", "[10.0.0.5/24]"),
        ),
    ]
)
HOSTS = (
    "The hosts of the job take the parts of `hosts` one after the other; the last part holds for all hosts that are "
    "left. There may not be more parts than hosts. In a part that holds for several hosts, guests have no `name`, "
    "`mac` or `addresses`."
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
FIELDS = {"mem": "memory_mb", "ncpus": "cpus"}
OWN = ("name", "mac", "addresses")
"""What only one guest can have."""
NUMBERED = re.compile("g[0-9]+")


class _At(NamedTuple):
    """A place in a file."""

    file: str
    place: Tuple[str, ...] = ()

    def to(self, *parts: object) -> "_At":
        return self._replace(place=self.place + tuple(str(part) for part in parts))

    def wrong(self, expected: str, got: str) -> NoReturn:
        where = ": ".join(filter(None, (self.file, ".".join(self.place))))
        raise RequestError("%s: expected %s, got %s" % (where, expected, got))


def with_spec(request: Request, document: object) -> Request:
    """Give the request with what its file says; raises RequestError that names file and place.

    A name or a network to join that stands on the line comes before the file's.
    """
    at = _At(request.spec or "spec")
    top = _mapping(document, at, (*TOP, "hosts"))
    read = _values(top, TOP, at)
    if "hosts" not in top:
        at.to("hosts").wrong("a list, each with the guests of one host", "nothing")
    parts = tuple(_part(one, at.to("hosts", number)) for number, one in enumerate(_list(top["hosts"], at.to("hosts"))))
    if not parts:
        at.to("hosts").wrong("the guests of one host at least", "none")
    line = {key: value for key, value in (("name", request.name), ("net", request.net)) if value}
    read.update(line)
    for key, expected in conflicts(read):
        at.to(key).wrong(expected, repr(read[key]))
    _check_unlike(parts, at)
    _check_numbered(parts, at)
    return Request(parts=parts, spec=request.spec, **read)


def check_hosts(request: Request, count: int) -> None:
    """Refuse a file with more hosts than the job has, or that gives several hosts what only one guest can have."""
    if request.spec is None:
        return
    at, last = _At(request.spec), len(request.parts) - 1
    if count <= last:
        at.to("hosts").wrong("at most %d, as the job has" % count, str(last + 1))
    if count > last + 1:
        for number, wish in enumerate(request.parts[last]):
            for key in (one for one in OWN if getattr(wish, one)):
                what = "none, since this stands for %d hosts" % (count - last)
                at.to("hosts", last, "guests", number, key).wrong(what, _shown(getattr(wish, key)))


def _part(value: object, at: _At) -> Part:
    given = _mapping(value, at, ("guests",))
    guests = _list(given.get("guests", []), at.to("guests"))
    if len(guests) > values.MOST_GUESTS:
        at.to("guests").wrong("at most %d guests" % values.MOST_GUESTS, str(len(guests)))
    return tuple(_wish(one, at.to("guests", number)) for number, one in enumerate(guests))


def _wish(value: object, at: _At) -> Wish:
    read = _values(_mapping(value, at, tuple(GUEST)), GUEST, at)
    if "image" not in read:
        at.to("image").wrong("the name of an image (see 'virtcloud image list')", "nothing")
    return Wish(**{FIELDS.get(key, key): one for key, one in read.items()})


def _values(given: Mapping[str, object], keys: Mapping[str, Key], at: _At) -> Dict[str, Any]:
    return {key: _value(given[key], keys[key].kind, at.to(key)) for key in keys if key in given}


def _value(value: object, kind: Kind, at: _At) -> object:
    if not kind.many:
        return _one(value, kind, at)
    several = value if isinstance(value, list) else [value]
    return tuple(OrderedDict.fromkeys(_one(one, kind, at.to(n)) for n, one in enumerate(several)))


def _one(value: object, kind: Kind, at: _At) -> object:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        try:
            return kind.read(str(value))
        except ValueError:
            return at.wrong(kind.expected, repr(value))
    return at.wrong(kind.expected, repr(value))


def _mapping(value: object, at: _At, keys: Tuple[str, ...]) -> Dict[str, object]:
    if not isinstance(value, dict):
        at.wrong("a mapping with %s" % ", ".join(keys), "nothing" if value is None else repr(value))
    for key in value:
        if key in LATER:
            raise RequestError("%s: '%s' is not offered here" % (at.file, key))
        if key not in keys:
            at.wrong("one of %s" % ", ".join(keys), repr(key))
    return value


def _list(value: object, at: _At) -> List[object]:
    return value if isinstance(value, list) else at.wrong("a list", repr(value))


def _check_unlike(parts: Tuple[Part, ...], at: _At) -> None:
    """Refuse a name, a MAC or an address that two guests have."""
    seen = {}  # type: Dict[Tuple[str, str], _At]
    for number, part in enumerate(parts):
        for index, wish in enumerate(part):
            here = at.to("hosts", number, "guests", index)
            for key, value in chain(
                [("name", wish.name), ("mac", wish.mac)],
                [("addresses", one.partition("/")[0]) for one in wish.addresses or ()],
            ):
                _once(seen, key, value, here.to(key))


def _check_numbered(parts: Tuple[Part, ...], at: _At) -> None:
    """Refuse a name that a guest without one gets, unless it is the guest with that number."""
    places = [(number, index, wish) for number, part in enumerate(parts) for index, wish in enumerate(part)]
    for count, (number, index, wish) in enumerate(places, 1):
        if wish.name and NUMBERED.fullmatch(wish.name) and wish.name != "g%d" % count:
            here = at.to("hosts", number, "guests", index, "name")
            here.wrong("none such as g1, which guests without a name get", repr(wish.name))


def _once(seen: Dict[Tuple[str, str], _At], key: str, value: Optional[str], here: _At) -> None:
    if value is None:
        return
    if (key, value) in seen:
        here.wrong("none that %s has" % ".".join(seen[key, value].place[:-1]), repr(value))
    seen[key, value] = here


def _shown(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else repr(value)
