"""The conditions under which an OpenPBS job can have a cluster: its ``select``, ``place`` and ``walltime``."""

from typing import Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

from virtcloud.jobs.request import HostGuests, JobRequest
from virtcloud.jobs.request_file import check_host_count
from virtcloud.jobs.request_values import RequestError
from virtcloud.jobs.sizes import MIB, format_seconds, parse_bytes, parse_seconds

DEFAULT_PLACE = "scatter:excl"
EXCLUSIVE = ("excl", "exclhost")
SELECT_WANTED = "use -l select=N:ncpus=\N{HORIZONTAL ELLIPSIS}"


class JobShape(NamedTuple):
    """The attributes that decide whether a job can have a cluster, in PBS's notation. An unset attribute is None."""

    select: Optional[str] = None
    nodes: Optional[str] = None
    place: Optional[str] = None
    walltime: Optional[str] = None
    array: bool = False


class Chunk(NamedTuple):
    """A part of a select: a number of hosts, and the resources of each host."""

    hosts: int
    resources: Dict[str, str]


def admit_pbs_job(request: JobRequest, job: JobShape, longest_s: int) -> str:
    """Return the ``place`` of a job. Raise RequestError if the job cannot have a cluster.

    ``longest_s``: the maximum walltime in seconds.
    """
    if job.array:
        raise RequestError("job arrays are not supported")
    if job.nodes is not None or not job.select:
        raise RequestError(SELECT_WANTED)
    check_chunks(request, parse_select(job.select))
    check_walltime(job.walltime, longest_s)
    return _check_place(job.place)


def parse_select(select: str) -> Tuple[Chunk, ...]:
    """Parse a select such as ``2:ncpus=4:mem=8gb+1:ncpus=8``. Raise RequestError for any other form."""
    return tuple(_parse_chunk(text) for text in select.split("+"))


def _parse_chunk(text: str) -> Chunk:
    fields = text.strip().split(":")
    count = int(fields.pop(0)) if fields[0].isdecimal() else 1
    if count < 1 or not all(key and value for key, _, value in (field.partition("=") for field in fields)):
        raise RequestError("%s, got select=%s" % (SELECT_WANTED, text))
    return Chunk(count, {key: value for key, _, value in (field.partition("=") for field in fields)})


def check_chunks(request: JobRequest, chunks: Sequence[Chunk]) -> None:
    """Raise RequestError if guests need more than their host's chunk has, or if a chunk's ``mem`` is invalid.

    Also raise the errors of :func:`check_host_count`.
    """
    if not request.parts:
        return  # the request names a file that is not read yet
    check_host_count(request, sum(chunk.hosts for chunk in chunks))
    first = 0
    for chunk in chunks:
        last = len(request.parts) - 1
        for index in sorted({min(first + n, last) for n in range(min(chunk.hosts, last + 1))}):
            _check_fits(request, index, chunk)
        first += chunk.hosts


def _check_fits(request: JobRequest, index: int, chunk: Chunk) -> None:
    part = request.parts[index]
    position = "" if request.spec is None else "%s: hosts.%d: " % (request.spec, index)
    for needed, available in _find_shortages(part, chunk):
        guests = "guest needs" if len(part) == 1 else "%d guests need" % len(part)
        raise RequestError("%s%s %s, the chunk has %s" % (position, guests, needed, available))


def _find_shortages(part: HostGuests, chunk: Chunk) -> Iterator[Tuple[str, str]]:
    """Yield (needed, available), as texts, for each resource of which a chunk has less than the host's guests need."""
    memory, cpus = chunk.resources.get("mem"), chunk.resources.get("ncpus")
    needed = sum(guest.memory_mb for guest in part) * MIB
    if memory is not None and _parse_size(memory) < needed:
        yield _format_size(needed), memory
    processors = sum(guest.cpus for guest in part)
    if cpus is not None and cpus.isdecimal() and int(cpus) < processors:
        yield "ncpus=%d" % processors, "ncpus=%s" % cpus


def _parse_size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError:
        raise RequestError("%s, got mem=%s" % (SELECT_WANTED, text)) from None


def _format_size(count: int) -> str:
    gib = 1 << 30
    return "%dgb" % (count // gib) if count % gib == 0 else "%dmb" % (count // MIB)


def check_walltime(walltime: Optional[str], longest_s: int) -> None:
    """Raise RequestError for a missing, invalid or too long walltime. The walltime determines the cluster's lease."""
    text = "a walltime is required, at most %s" % format_seconds(longest_s)
    try:
        seconds = 0 if walltime is None else parse_seconds(walltime)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= longest_s:
        raise RequestError(text)


def _check_place(place: Optional[str]) -> str:
    """Return the place, or the default place for None.

    Raise RequestError unless the place contains ``scatter`` (each host of the select is a different machine), and
    ``excl`` or ``exclhost`` (guests and other jobs must not share a host).
    """
    if not place:
        return DEFAULT_PLACE
    fields = place.split(":")
    if "scatter" not in fields or not any(field in EXCLUSIVE for field in fields):
        raise RequestError("a cluster needs one exclusive host per chunk: use -l place=%s" % DEFAULT_PLACE)
    return place
