"""How a request travels with a Torque job.

Torque tells a host only of resources that it knows itself: ``vcluster`` is none of them and stays with the server.
``other`` is one that is free for a site's own use, so the submit filter writes the request there too. Sites whose
Torque has a resource ``net`` (``net=private``, ``net=ID``) use it for a network without guests of ours.
"""

import re
from typing import Dict, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from virtcloud.jobs.torque import resources

CARRIER = "other"
MARK = "vcluster="
DIRECTIVE = "#PBS"
CARRIED = "%s -l %s=%s" % (DIRECTIVE, CARRIER, MARK)
LINE = re.compile(r"[^\n]*\n|[^\n]+")
FLAGS = "-[EfhInVxXz]*"
"""Options of qsub without a value, which may stand before the last one in a word."""


def request_of(wanted: Mapping[str, str]) -> Optional[str]:
    """Give the request among a job's resources: ``vcluster`` itself, or else the one that travels; nothing if none."""
    carried = wanted.get(CARRIER, "")
    return wanted.get("vcluster", carried[len(MARK) :] if carried.startswith(MARK) else None)


class Submission(NamedTuple):
    """What qsub was given: its resources, whether it makes an array, and whether directives begin with another word."""

    resources: Dict[str, str]
    array: bool
    prefixed: bool


def submission_of(arguments: Sequence[str], script: str) -> Submission:
    """Read qsub's arguments and the directives of the script; the command line goes before, and the later before."""
    words = [word for line in _directives(script) for word in line.split()]
    found = {}  # type: Dict[str, str]
    for given in (*_values(words, "l"), *_values(arguments, "l")):
        found.update(resources(given))
    array = any(True for given in (words, arguments) for _ in _values(given, "t"))
    return Submission(found, array, any(one != DIRECTIVE for one in _values(arguments, "C")))


def carrying(script: str, request: str) -> str:
    """Give the script with the request in ``other``, in one directive; the same again changes nothing."""
    lines = [line for line in LINE.findall(script) if not line.startswith(CARRIED)]
    first = 1 if lines and lines[0].startswith("#!") else 0
    if first and not lines[0].endswith("\n"):
        lines[0] += "\n"
    return "".join([*lines[:first], CARRIED + request + "\n", *lines[first:]])


def carried_by(script: str) -> Optional[str]:
    """Give the request that was put into a script."""
    return next((line[len(CARRIED) :].strip() for line in script.split("\n") if line.startswith(CARRIED)), None)


def _directives(script: str) -> Iterator[str]:
    """Give what stands behind ``#PBS``, up to the first line that a shell would run, as qsub does."""
    lines = iter(script.replace("\r\n", "\n").split("\n"))
    for line in lines:
        text = line.lstrip()
        if text.startswith(DIRECTIVE):
            while text.endswith("\\"):
                text = text[:-1] + next(lines, "")
            yield text[len(DIRECTIVE) :]
        elif text and not text.startswith("#") and not line.startswith(":"):
            return


def _values(words: Iterable[str], option: str) -> Iterator[str]:
    """Give the values of an option: ``-l x``, ``-lx``, ``-Il x``."""
    pattern = re.compile("%s%s(.*)" % (FLAGS, option))
    rest = iter(words)
    for word in rest:
        found = pattern.fullmatch(word)
        if found is not None:
            yield (found.group(1) or next(rest, "")).strip("\"'")
