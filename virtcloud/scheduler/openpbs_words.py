"""PURE. What OpenPBS prints, read: ``qstat -f -F json``, ``qstat -B``, ``qselect``, ``pbsnodes``, and their complaints.

Recorded from 23.06. A job that has finished or is unknown is told on stderr, by name; a job that the caller may not
see is passed over in silence with exit code 0, so silence says nothing of a job.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from virtcloud.model.errors import SchedulerSilent
from virtcloud.model.values import ClusterKey
from virtcloud.scheduler import pbs_states
from virtcloud.scheduler.ended import Ended
from virtcloud.scheduler.jobs import Job, Server, Standing, key_of, seconds

CODES = frozenset({0, 35, 153})
"""Exit codes of a qstat that was answered; the others: a job has finished, is unknown (15139, 15001 modulo 256)."""
GONE = (
    (re.compile(r"qstat: Unknown Job Id ([0-9]+)\S*"), "is not known to {server}"),
    (re.compile(r"qstat: ([0-9]+)\S* Job has finished, use .*"), "has finished"),
)
PRERUN = 41
"""The substate of a job that is with its hosts, whose script has not been started yet."""
STATES = {
    **pbs_states.STATES,
    "U": (Standing.RUNNING, "is suspended by its host's user"),
    "M": (Standing.UNREADABLE, "it was moved to another server, where it may run"),
    "F": (Standing.GONE, "has finished"),
}
"""B and X are of arrays, which have no clusters."""


def server_of(ended: Ended) -> Server:
    """Read ``qstat -B -f -F json``; raises SchedulerSilent."""
    if ended.code != 0:
        raise SchedulerSilent(ended.complaint)
    try:
        ((name, found),) = dict(_parsed(ended)["Server"]).items()
        told = (str(name), str(found["server_state"]), str(found["total_jobs"]))
    except (KeyError, TypeError, ValueError) as error:
        raise pbs_states.not_a_server(ended) from error
    return pbs_states.server(ended, *told)


def numbers_of(ended: Ended) -> set[str]:
    """Read ``qselect``: the numbers of jobs; arrays are left out. Raises SchedulerSilent."""
    if ended.code != 0 or ended.err.strip():
        raise SchedulerSilent(f"{ended.complaint}; were the hooks installed (virtcloud pbs install)?")
    lines = [line.strip() for line in ended.out.splitlines() if line.strip()]
    strange = [line for line in lines if not re.fullmatch(r"[0-9]+(\[[0-9]*\])?\.\S+", line)]
    if strange:
        raise SchedulerSilent(f"{ended.command}: expected ids of jobs, got {strange[0]!r}")
    return {line.partition(".")[0] for line in lines if "[" not in line}


def jobs_of(ended: Ended, server: Server) -> dict[ClusterKey, Job]:
    """Read ``qstat -f -F json NUMBER…``. Raises SchedulerSilent, and ValueError when the output is not JSON."""
    gone = _gone(ended, server)
    found = _group(_parsed(ended).get("Jobs"))
    running = (_job(str(name).partition(".")[0], facts, server) for name, facts in found.items())
    return {job.key: job for job in (*gone, *running)}


def unreadable(number: str, server: Server) -> Job:
    """Stand for a job that is known, and whose text (its environment is in it) makes the answer unreadable."""
    return Job(key_of(number, server), Standing.UNREADABLE, "what qstat says of it is not JSON")


def nodes_of(ended: Ended) -> set[str]:
    """Read ``pbsnodes -a -F json``: the host of each vnode. Raises SchedulerSilent."""
    if ended.code != 0:
        raise SchedulerSilent(ended.complaint)
    try:
        nodes = _parsed(ended)["nodes"]
        return {str(facts.get("Mom") or name).partition(",")[0] for name, facts in nodes.items()}
    except (KeyError, ValueError, AttributeError) as error:
        raise SchedulerSilent(f"{ended.command}: expected nodes, got something else") from error


def _parsed(ended: Ended) -> dict[str, Any]:
    """Read JSON; control characters in strings are let pass (older versions write them as they are)."""
    found = json.loads(ended.out, strict=False)
    if not isinstance(found, dict):
        raise ValueError(ended.out[:80])  # noqa: TRY004 - as any other text that is no such document
    return found


def _gone(ended: Ended, server: Server) -> list[Job]:
    if ended.code not in CODES:
        raise SchedulerSilent(ended.complaint)
    return [_gone_job(line.strip(), ended, server) for line in ended.err.splitlines() if line.strip()]


def _gone_job(line: str, ended: Ended, server: Server) -> Job:
    for pattern, words in GONE:
        if found := pattern.fullmatch(line):
            return Job(key_of(found.group(1), server), Standing.GONE, words.format(server=server.name))
    raise SchedulerSilent(ended.complaint)


def _job(number: str, facts: Mapping[str, Any], server: Server) -> Job:
    if not isinstance(facts, dict):
        raise ValueError(number)  # noqa: TRY004 - as any other text that is no such document
    standing, words = pbs_states.standing(STATES, str(facts.get("job_state")))
    asked, used = (_group(facts.get(name)) for name in ("Resource_List", "resources_used"))
    return Job(
        key=key_of(number, server),
        standing=standing,
        words=words,
        attempt=_attempt(facts.get("run_version")),
        wants_cluster=pbs_states.RESOURCE in asked,
        begun=facts.get("substate") != PRERUN,
        walltime_s=seconds(asked.get("walltime", 0)),
        used_s=seconds(used.get("walltime", 0)),
    )


def _group(found: object) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _attempt(counted: object) -> int | None:
    return int(counted) if isinstance(counted, int | str) and str(counted).isdecimal() else None
