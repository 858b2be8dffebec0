"""What Torque says of a job (``-l nodes=3:ppn=4,walltime=4:00:00,vcluster=…``), and what it must be like."""

import re
from collections import OrderedDict
from typing import Dict, Mapping, Optional, Tuple

from virtcloud.jobs.errors import RequestError
from virtcloud.jobs.pbs import Chunk, check_chunks, check_walltime
from virtcloud.jobs.request import Request

ITEM = re.compile(r"(?:\[[^\]]*\]|[^,])+")
NODES_WANTED = "use -l nodes=N:ppn=\N{HORIZONTAL ELLIPSIS}"


def resources(text: str) -> Dict[str, str]:
    """Read a list of resources as Torque writes it for its prologue and as ``-l`` takes it.

    A comma within brackets does not part it.
    """
    pairs = (pair.partition("=") for pair in ITEM.findall(text))
    return OrderedDict((key.strip(), value.strip()) for key, _, value in pairs if key.strip())


def admit(request: Request, wanted: Mapping[str, str], longest_s: Optional[int], array: bool = False) -> None:
    """Raise RequestError for a job that cannot have a cluster; ``wanted`` are its resources.

    ``longest_s`` is the longest walltime allowed, in seconds; nothing while a queue may still give one.
    ``neednodes`` is ``nodes`` again; a list that is too long has one of them only. Torque has no word for hosts
    that no other job shares: that is for its scheduler's configuration.
    """
    check_no_array(array)
    if request.spec is not None:
        raise RequestError("spec: expected the request in one line, got a file: it does not travel with a Torque job")
    check_chunks(request, chunks(wanted.get("nodes") or wanted.get("neednodes", "")))
    if longest_s is not None:
        check_walltime(wanted.get("walltime"), longest_s)


def check_no_array(array: bool) -> None:
    """Refuse an array, whose jobs have ids that no cluster can have."""
    if array:
        raise RequestError("job arrays are not supported")


def chunks(nodes: str) -> Tuple[Chunk, ...]:
    """Read ``3:ppn=4+n7:ppn=8:big``: so many hosts, or one by its name, its processors and its properties."""
    return tuple(_chunk(text) for text in nodes.split("+"))


def _chunk(text: str) -> Chunk:
    first, *words = text.strip().split(":")
    pairs = {key: value for key, _, value in (word.partition("=") for word in words)}
    ppn = pairs.get("ppn", "1")
    if not first or first == "0" or not ppn.isdigit():
        raise RequestError("%s, got nodes=%s" % (NODES_WANTED, text) if text else NODES_WANTED)
    return Chunk(int(first) if first.isdigit() else 1, {"ncpus": ppn} if "ppn" in pairs else {})


def hosts_of(nodefile: str) -> Tuple[str, ...]:
    """Give the hosts of a ``PBS_NODEFILE``, which has a line for each processor: each once, in order."""
    return tuple(OrderedDict.fromkeys(line.strip() for line in nodefile.splitlines() if line.strip()))
