"""Queries OpenPBS with ``qstat -f -F json``, ``qstat -B``, ``qselect`` and ``pbsnodes``, and parses their output.

Each job is queried by its number. The parsers are written from output of version 23.06. ``qstat`` names a finished or
unknown job on stderr. It omits a job that the caller may not see and exits with code 0, so a missing job is an
error.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from virtcloud.model.errors import SchedulerUnavailable
from virtcloud.model.values import ClusterKey
from virtcloud.scheduler import job_states
from virtcloud.scheduler.command import CommandResult, CommandRunner
from virtcloud.scheduler.job_states import (
    REQUEST_RESOURCE,
    JobPhase,
    SchedulerJob,
    SchedulerServer,
    job_cluster_key,
    parse_seconds_or_zero,
)

QSTAT_CODES = frozenset({0, 35, 153})
"""Exit codes of a complete answer. 35 and 153 mean that a job has finished or is unknown (15139, 15001 modulo 256)."""
GONE_MESSAGES = (
    (re.compile(r"qstat: Unknown Job Id ([0-9]+)\S*"), "is not known to {server}"),
    (re.compile(r"qstat: ([0-9]+)\S* Job has finished, use .*"), "has finished"),
)
PRERUN_SUBSTATE = 41
"""The substate of a job that is on its hosts and whose script has not started."""
OPENPBS_STATES = {
    **job_states.COMMON_STATES,
    "U": (JobPhase.RUNNING, "is suspended by its host's user"),
    "M": (JobPhase.UNREADABLE, "it was moved to another server, where it may run"),
    "F": (JobPhase.GONE, "has finished"),
}
"""The states of OpenPBS; B and X are states of arrays, which have no clusters."""


def parse_server(ended: CommandResult) -> SchedulerServer:
    """Parse ``qstat -B -f -F json``. Raises SchedulerUnavailable."""
    if ended.code != 0:
        raise SchedulerUnavailable(ended.complaint)
    try:
        ((name, found),) = dict(_parse_json(ended)["Server"]).items()
        facts_of_server = (str(name), str(found["server_state"]), str(found["total_jobs"]))
    except (KeyError, TypeError, ValueError) as error:
        raise job_states.not_a_server_error(ended) from error
    return job_states.build_server(ended, *facts_of_server)


def parse_job_numbers(ended: CommandResult) -> set[str]:
    """Return the job numbers in the output of ``qselect``, without arrays. Raises SchedulerUnavailable."""
    if ended.code != 0 or ended.err.strip():
        raise SchedulerUnavailable(f"{ended.complaint}; were the hooks installed (virtcloud pbs install)?")
    lines = [line.strip() for line in ended.out.splitlines() if line.strip()]
    strange = [line for line in lines if not re.fullmatch(r"[0-9]+(\[[0-9]*\])?\.\S+", line)]
    if strange:
        raise SchedulerUnavailable(f"{ended.command}: expected ids of jobs, got {strange[0]!r}")
    return {line.partition(".")[0] for line in lines if "[" not in line}


def parse_jobs(ended: CommandResult, server: SchedulerServer) -> dict[ClusterKey, SchedulerJob]:
    """Parse ``qstat -f -F json NUMBER…``. Raises SchedulerUnavailable, and ValueError if the output is not JSON."""
    gone = _parse_gone_jobs(ended, server)
    found = _as_mapping(_parse_json(ended).get("Jobs"))
    running = (_parse_job(str(name).partition(".")[0], facts, server) for name, facts in found.items())
    return {job.key: job for job in (*gone, *running)}


def unreadable_job(number: str, server: SchedulerServer) -> SchedulerJob:
    """Return a job whose environment makes the output of ``qstat`` invalid."""
    return SchedulerJob(job_cluster_key(number, server), JobPhase.UNREADABLE, "qstat's output about it is not JSON")


def parse_nodes(ended: CommandResult) -> set[str]:
    """Return the host of each vnode in the output of ``pbsnodes -a -F json``. Raises SchedulerUnavailable."""
    if ended.code != 0:
        raise SchedulerUnavailable(ended.complaint)
    try:
        nodes = _parse_json(ended)["nodes"]
        return {str(facts.get("Mom") or name).partition(",")[0] for name, facts in nodes.items()}
    except (KeyError, ValueError, AttributeError) as error:
        raise SchedulerUnavailable(f"{ended.command}: expected nodes, got something else") from error


def _parse_json(ended: CommandResult) -> dict[str, Any]:
    """Parse a JSON object. Older versions of OpenPBS write control characters in strings unescaped."""
    found = json.loads(ended.out, strict=False)
    if not isinstance(found, dict):
        raise ValueError(ended.out[:80])  # noqa: TRY004 - the same error as for text that is not JSON
    return found


def _parse_gone_jobs(ended: CommandResult, server: SchedulerServer) -> list[SchedulerJob]:
    if ended.code not in QSTAT_CODES:
        raise SchedulerUnavailable(ended.complaint)
    return [_parse_gone_job(line.strip(), ended, server) for line in ended.err.splitlines() if line.strip()]


def _parse_gone_job(line: str, ended: CommandResult, server: SchedulerServer) -> SchedulerJob:
    for pattern, description in GONE_MESSAGES:
        if found := pattern.fullmatch(line):
            return SchedulerJob(
                job_cluster_key(found.group(1), server), JobPhase.GONE, description.format(server=server.name)
            )
    raise SchedulerUnavailable(ended.complaint)


def _parse_job(number: str, facts: Mapping[str, Any], server: SchedulerServer) -> SchedulerJob:
    if not isinstance(facts, dict):
        raise ValueError(number)  # noqa: TRY004 - the same error as for text that is not JSON
    phase, description = job_states.parse_phase(OPENPBS_STATES, str(facts.get("job_state")))
    asked, used = (_as_mapping(facts.get(name)) for name in ("Resource_List", "resources_used"))
    return SchedulerJob(
        key=job_cluster_key(number, server),
        phase=phase,
        description=description,
        attempt=_parse_attempt(facts.get("run_version")),
        wants_cluster=job_states.REQUEST_RESOURCE in asked,
        script_started=facts.get("substate") != PRERUN_SUBSTATE,
        walltime_s=parse_seconds_or_zero(asked.get("walltime", 0)),
        used_s=parse_seconds_or_zero(used.get("walltime", 0)),
    )


def _as_mapping(found: object) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _parse_attempt(counted: object) -> int | None:
    return int(counted) if isinstance(counted, int | str) and str(counted).isdecimal() else None


JOBS_PER_QSTAT = 100
"""Number of jobs per qstat: the output contains users' environments and is held in memory."""
SELECT_WITH_CLUSTER = ("qselect", "-s", "RSU", "-l", f"{REQUEST_RESOURCE}.ge.a")
"""Options that select running jobs with a request. Requests begin with a letter; an unset resource sorts before
letters.
"""


class OpenPbsScheduler:
    """The OpenPBS server that the commands of this host reach. The servers of a failover pair count as one server."""

    def __init__(self, run: CommandRunner) -> None:
        """Store the function that runs commands."""
        self._run = run

    def server(self) -> SchedulerServer:
        """Return the server. Raises SchedulerUnavailable while the server reads its jobs after a start."""
        return parse_server(self._run(("qstat", "-B", "-f", "-F", "json")))

    def jobs(self, server: SchedulerServer, asked: Collection[str]) -> Mapping[ClusterKey, SchedulerJob]:
        """Return every job whose number is in ``asked``, and the running jobs with a request."""
        numbers = sorted({*asked, *parse_job_numbers(self._run(SELECT_WITH_CLUSTER))}, key=int)
        found: dict[ClusterKey, SchedulerJob] = {}
        for some in _batches(numbers):
            found |= self._read(some, server)
        omitted = [number for number in numbers if job_cluster_key(number, server) not in found]
        if omitted:
            raise SchedulerUnavailable(
                f"qstat omitted job {omitted[0]} ({len(omitted)} in all): it must run as root, or as a manager "
                "of the server"
            )
        return found

    def nodes(self) -> Collection[str]:
        """Return the hosts of all vnodes."""
        return parse_nodes(self._run(("pbsnodes", "-a", "-F", "json")))

    def _read(self, numbers: Sequence[str], server: SchedulerServer) -> dict[ClusterKey, SchedulerJob]:
        """Read some jobs. If the output is invalid, read each job separately."""
        try:
            return parse_jobs(self._run(("qstat", "-f", "-F", "json", *numbers)), server)
        except ValueError:
            if len(numbers) == 1:
                job = unreadable_job(numbers[0], server)
                return {job.key: job}
        return {key: job for number in numbers for key, job in self._read([number], server).items()}


def _batches(numbers: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(numbers), JOBS_PER_QSTAT):
        yield numbers[start : start + JOBS_PER_QSTAT]
