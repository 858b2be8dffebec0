"""Torque jobs: their resources (``-l nodes=3:ppn=4,walltime=4:00:00,vcluster=…``), and how a request reaches the hosts.

Torque does not know the resource ``vcluster``, and passes only known resources to a host. One known resource is
``other``, which Torque reserves for local use. Therefore the submit filter copies the request into ``other``.

A site can define the resource ``net`` in its Torque. In a job, ``net=private`` or ``net=ID`` requests a network without
guests.
"""

import re
from collections import OrderedDict
from typing import Dict, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple

from virtcloud.jobs.openpbs_request import Chunk, check_chunks, check_walltime
from virtcloud.jobs.request import JobRequest
from virtcloud.jobs.request_values import RequestError

RESOURCE_ITEM = re.compile(r"(?:\[[^\]]*\]|[^,])+")
NODES_WANTED = "use -l nodes=N:ppn=\N{HORIZONTAL ELLIPSIS}"


def parse_resources(text: str) -> Dict[str, str]:
    """Parse a list of resources as in ``-l`` and prologue arguments. Commas in brackets are no separators."""
    pairs = (pair.partition("=") for pair in RESOURCE_ITEM.findall(text))
    return OrderedDict((key.strip(), value.strip()) for key, _, value in pairs if key.strip())


def admit_torque_job(
    request: JobRequest, wanted: Mapping[str, str], longest_s: Optional[int], array: bool = False
) -> None:
    """Raise RequestError if the job with the resources ``wanted`` cannot have a cluster.

    ``longest_s`` is the maximum walltime in seconds. If ``longest_s`` is None, the walltime is not checked, because a
    queue may set the walltime later. In a truncated list of resources, either ``nodes`` or ``neednodes``, which have
    the same value, can be missing. A job of Torque cannot request exclusive hosts. Therefore administrators must
    configure exclusive hosts in Torque's scheduler.
    """
    check_no_array(array)
    if request.spec is not None:
        raise RequestError(
            "spec: expected the request in -l vcluster=REQUEST, got a file: Torque passes no file to hosts"
        )
    check_chunks(request, parse_nodes(wanted.get("nodes") or wanted.get("neednodes", "")))
    if longest_s is not None:
        check_walltime(wanted.get("walltime"), longest_s)


def check_no_array(array: bool) -> None:
    """Raise RequestError for a job array, because the IDs of its jobs are not valid cluster keys."""
    if array:
        raise RequestError("job arrays are not supported")


def parse_nodes(nodes: str) -> Tuple[Chunk, ...]:
    """Parse ``3:ppn=4+n7:ppn=8:big``.

    Each part begins with a number of hosts or a host's name. Properties (``big``) and the number of processors
    (``ppn=4``) can follow, each after a colon. Raise RequestError for an empty part, 0 hosts, or an invalid number of
    processors.
    """
    return tuple(_parse_chunk(text) for text in nodes.split("+"))


def _parse_chunk(text: str) -> Chunk:
    first, *words = text.strip().split(":")
    pairs = {key: value for key, _, value in (word.partition("=") for word in words)}
    ppn = pairs.get("ppn", "1")
    hosts = int(first) if first.isdecimal() else 1
    if not first or not hosts or not ppn.isdecimal():
        raise RequestError("%s, got nodes=%s" % (NODES_WANTED, text) if text else NODES_WANTED)
    return Chunk(hosts, {"ncpus": ppn} if "ppn" in pairs else {})


CARRIER_RESOURCE = "other"
REQUEST_MARK = "vcluster="
DIRECTIVE = "#PBS"
CARRIED_DIRECTIVE = "%s -l %s=%s" % (DIRECTIVE, CARRIER_RESOURCE, REQUEST_MARK)
LINE = re.compile(r"[^\n]*\n|[^\n]+")
OPTION = re.compile("-[EfhInVxXz]*([aAbcCdDeFjJkKlLmMNopPqrStTuvwW])(.*)", re.DOTALL)
"""An option of qsub with a value, which may be the next word. Options without a value may precede in the same word."""
DIRECTIVE_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|\\.|\S)+""")


def find_request(wanted: Mapping[str, str]) -> Optional[str]:
    """Return the request in a job's resources: ``vcluster``, or the copy in ``other``, or None."""
    carried = wanted.get(CARRIER_RESOURCE, "")
    return wanted.get("vcluster", carried[len(REQUEST_MARK) :] if carried.startswith(REQUEST_MARK) else None)


class QsubSubmission(NamedTuple):
    """A call of qsub.

    ``array``: whether the call submits a job array. ``prefixed``: whether option ``-C`` replaces the prefix ``#PBS``.
    """

    resources: Dict[str, str]
    array: bool
    prefixed: bool


def parse_submission(arguments: Sequence[str], script: str) -> QsubSubmission:
    """Parse qsub's arguments and the script's directives.

    The resources of all options ``-l`` are merged. The last value of a resource is used. Arguments override directives.
    """
    given = list(_parse_options(arguments))
    directives = (DIRECTIVE_WORD.findall(line) for line in _parse_directives(script))
    options = [*(option for words in directives for option in _parse_options(words)), *given]
    resources = {}  # type: Dict[str, str]
    for text in (value for name, value in options if name == "l"):
        resources.update(parse_resources(text))
    array = any(name == "t" for name, _ in options)
    return QsubSubmission(resources, array, any(name == "C" and value != DIRECTIVE for name, value in given))


def add_request_directive(script: str, request: str) -> str:
    """Return the script with exactly one directive that sets ``other`` to the request. Idempotent."""
    lines = [line for line in LINE.findall(script) if not line.startswith(CARRIED_DIRECTIVE)]
    position = 1 if lines and lines[0].startswith("#!") else 0
    if position and not lines[0].endswith("\n"):
        lines[0] += "\n"
    return "".join([*lines[:position], CARRIED_DIRECTIVE + request + "\n", *lines[position:]])


def find_carried_request(script: str) -> Optional[str]:
    """Return the request in the directive that `add_request_directive` adds, or None if the directive is missing."""
    return next(
        (line[len(CARRIED_DIRECTIVE) :].strip() for line in script.split("\n") if line.startswith(CARRIED_DIRECTIVE)),
        None,
    )


def _parse_directives(script: str) -> Iterator[str]:
    """Yield the text after ``#PBS`` of each directive. Like qsub, stop at the first line that a shell would execute."""
    lines = iter(script.replace("\r\n", "\n").split("\n"))
    for line in lines:
        text = line.lstrip()
        if text.startswith(DIRECTIVE):
            while text.endswith("\\"):
                text = text[:-1] + next(lines, "")
            yield text[len(DIRECTIVE) :]
        elif text and not text.startswith("#") and not line.startswith(":"):
            return


def _parse_options(words: Iterable[str]) -> Iterator[Tuple[str, str]]:
    """Yield the letter and the value of each option that has a value: ``-l x``, ``-lx`` or ``-Il x``.

    qsub passes its arguments to the filter without quotation marks, and omits empty values. So a value can be missing,
    or consist of several words, of which only the first is used. A word that looks like an option with a value
    therefore begins a new option, except directly after ``-F``, whose value may look like an option (``-F "-t 8"``).
    """
    waiting = ""  # the option whose value is the next word
    for word in words:
        match = OPTION.fullmatch(word)
        if waiting and (waiting == "F" or match is None):
            yield waiting, word.strip("\"'")
            waiting = ""
        elif match is not None and match.group(2):
            yield match.group(1), match.group(2).strip("\"'")
            waiting = ""
        elif match is not None:
            waiting = match.group(1)
