"""The request of a job, one line: ``image=debian12:guests=2:mem=4gb:ncpus=2:subnet=10.0.0.0/24``.

Keys and values are joined by ``=``, pairs by ``:``, as in a PBS ``select``. A value with colons (an IPv6 network)
stands in brackets. Nothing here looks at the world: whether an image or a network is there is for others to say.
"""

import ipaddress
import re
from collections import OrderedDict
from typing import Callable, Dict, Iterator, NamedTuple, Optional, Union

from virtcloud.jobs.errors import RequestError
from virtcloud.jobs.sizes import bytes_of

PRIVATE = "private"
NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
PAIR = re.compile(r"([^=:\[\]]*)(=)?(\[[^\[\]]*\]|[^:\[\]]*)")
MOST_GUESTS = 64
MOST_CPUS = 1024
LEAST_MB = 16
MOST_MB = 16 * 1024 * 1024
MIB = 1 << 20
LATER = ("access", "publish", "outside", "services")
"""Keys that have a meaning in the papers, and none here yet."""

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


class Request(NamedTuple):
    """What was asked for. Memory is in MiB, for each guest; ``guests`` are on each host.

    ``net`` is the name of a running network to join, nothing for one of its own. ``spec`` is a file that says it all.
    """

    image: Optional[str] = None
    name: Optional[str] = None
    net: Optional[str] = None
    guests: int = 1
    memory_mb: int = 256
    cpus: int = 1
    subnet: Optional[str] = None
    vlan: Optional[int] = None
    spec: Optional[str] = None


class _Word(NamedTuple):
    """A key and its value, and where the pair starts (characters from 1)."""

    key: str
    value: str
    place: int


def parse(text: str) -> Request:
    """Read a request; raises RequestError that names the key, what it expects, what it got, and where."""
    values = OrderedDict()  # type: OrderedDict[str, _Word]
    for word in _words(text):
        if word.key in values:
            raise _wrong(word, "the key once", "it twice")
        values[word.key] = word
    read = {FIELDS[key]: READERS[key](word) for key, word in values.items()}
    _check_together(values)
    return Request(**read)  # type: ignore[arg-type]


def _words(text: str) -> Iterator[_Word]:
    if not text.strip():
        raise RequestError("expected a request such as image=debian12:guests=2, got nothing")
    place = 0
    while place <= len(text):
        found = PAIR.match(text, place)
        if found is None or (found.end() < len(text) and text[found.end()] != ":"):
            raise RequestError("expected key=value pairs joined by ':', got %r (character %d)" % (text, place + 1))
        yield _word(found, place + 1)
        place = found.end() + 1


def _word(found: "re.Match[str]", place: int) -> _Word:
    key, equals, value = found.group(1).strip(), found.group(2), found.group(3)
    word = _Word(key, value.strip("[]") if value.startswith("[") else value, place)
    if key in LATER:
        raise RequestError("'%s' is not offered here (character %d)" % (key, place))
    if key not in READERS:
        raise RequestError("expected one of %s, got %r (character %d)" % (", ".join(READERS), key, place))
    if not equals or not word.value:
        raise _wrong(word, "a value", "none")
    return word


def _wrong(word: _Word, expected: str, got: str) -> RequestError:
    return RequestError("%s: expected %s, got %s (character %d)" % (word.key, expected, got, word.place))


def _name(word: _Word) -> str:
    if NAME.fullmatch(word.value) is None:
        raise RequestError("%s must match %s, got %r" % (word.key, NAME.pattern, word.value))
    return word.value


def _network(word: _Word) -> Optional[str]:
    return None if word.value == PRIVATE else _name(word)


def _number(lowest: int, highest: int) -> Callable[[_Word], int]:
    def read(word: _Word) -> int:
        if not re.fullmatch("[0-9]{1,9}", word.value) or not lowest <= int(word.value) <= highest:
            raise _wrong(word, "a number from %d to %d" % (lowest, highest), repr(word.value))
        return int(word.value)

    return read


def _memory(word: _Word) -> int:
    try:
        found = bytes_of(word.value) // MIB
    except ValueError:
        found = -1
    if not LEAST_MB <= found <= MOST_MB:
        raise _wrong(word, "a size from %dmb to 16tb, such as 4gb" % LEAST_MB, repr(word.value))
    return found


def _subnet(word: _Word) -> str:
    try:
        return str(ipaddress.ip_network(word.value))
    except ValueError:
        raise _wrong(word, "a network such as 10.0.0.0/24 or [fd00::/64]", repr(word.value)) from None


def _file(word: _Word) -> str:
    if not word.value.startswith("/"):
        raise _wrong(word, "a path that starts with /", repr(word.value))
    return word.value


READERS = OrderedDict(
    [
        ("image", _name),
        ("name", _name),
        ("net", _network),
        ("guests", _number(1, MOST_GUESTS)),
        ("mem", _memory),
        ("ncpus", _number(1, MOST_CPUS)),
        ("subnet", _subnet),
        ("vlan", _number(2, 4094)),
        ("spec", _file),
    ]
)  # type: Dict[str, Callable[[_Word], object]]
FIELDS = dict({key: key for key in READERS}, mem="memory_mb", ncpus="cpus")
WITH_SPEC = ("spec", "name", "net")


def _check_together(values: Dict[str, _Word]) -> None:
    """Refuse keys that cannot stand together."""
    if "spec" in values:
        for key in (one for one in values if one not in WITH_SPEC):
            raise _wrong(values[key], "it in the file %s" % values["spec"].value, "it beside spec")
    elif "image" not in values:
        raise RequestError("image: expected the name of an image, got none; see 'virtcloud image list'")
    if "net" in values and values["net"].value != PRIVATE:
        for key in (one for one in ("name", "vlan") if one in values):
            raise _wrong(values[key], "none, since net=%s has one" % values["net"].value, repr(values[key].value))
