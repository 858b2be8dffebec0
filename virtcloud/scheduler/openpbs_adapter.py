"""Queries OpenPBS with ``qstat -f -F json``, ``qstat -B``, ``qselect`` and ``pbsnodes``, and parses their output.

Jobs are queried by their numbers. ``qstat`` reports a finished or unknown job on stderr. If the caller may not see a
job, ``qstat`` omits the job and nevertheless exits with code 0. Therefore this module raises an error if the output
lacks a job. The parsers were written from output of version 23.06.
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
"""Exit codes of a complete answer: 35 if a job has finished (15139 modulo 256), 153 if a job is unknown (15001)."""
GONE_MESSAGES = (
    (re.compile(r"qstat: Unknown Job Id ([0-9]+)\S*"), "is not known to {server}"),
    (re.compile(r"qstat: ([0-9]+)\S* Job has finished, use .*"), "has finished"),
)
PRERUN_SUBSTATE = 41
"""The substate of a job that has hosts and whose script has not started."""
OPENPBS_STATES = {
    **job_states.COMMON_STATES,
    "U": (JobPhase.RUNNING, "is suspended by its host's user"),
    "M": (JobPhase.UNREADABLE, "it was moved to another server, where it may run"),
    "F": (JobPhase.GONE, "has finished"),
}
"""The states of OpenPBS, except B and X. Only job arrays have the states B and X, and arrays have no clusters."""


def parse_server(result: CommandResult) -> SchedulerServer:
    """Parse ``qstat -B -f -F json``. Raise SchedulerUnavailable unless the output describes a serving server."""
    if result.code != 0:
        raise SchedulerUnavailable(result.failure)
    try:
        ((name, attributes),) = dict(_parse_json(result)["Server"]).items()
        name, state, jobs = str(name), str(attributes["server_state"]), str(attributes["total_jobs"])
    except (KeyError, TypeError, ValueError) as error:
        raise job_states.not_a_server_error(result) from error
    return job_states.build_server(result, name, state, jobs)


def parse_job_numbers(result: CommandResult) -> set[str]:
    """Parse the job numbers in the output of ``qselect``, except the numbers of job arrays.

    Raise SchedulerUnavailable if ``qselect`` failed or printed other output.
    """
    if result.code != 0 or result.err.strip():
        raise SchedulerUnavailable(f"{result.failure}; were the hooks installed (virtcloud pbs install)?")
    lines = [line.strip() for line in result.out.splitlines() if line.strip()]
    invalid = [line for line in lines if not re.fullmatch(r"[0-9]+(\[[0-9]*\])?\.\S+", line)]
    if invalid:
        raise SchedulerUnavailable(f"{result.command}: expected job IDs, got {invalid[0]!r}")
    return {line.partition(".")[0] for line in lines if "[" not in line}


def parse_jobs(result: CommandResult, server: SchedulerServer) -> dict[ClusterKey, SchedulerJob]:
    """Parse ``qstat -f -F json NUMBER…``.

    Raise SchedulerUnavailable if ``qstat`` failed. Raise ValueError if the output is not JSON.
    """
    gone = _parse_gone_jobs(result, server)
    listed = _as_mapping(_parse_json(result).get("Jobs"))
    jobs = (_parse_job(str(name).partition(".")[0], attributes, server) for name, attributes in listed.items())
    return {job.key: job for job in (*gone, *jobs)}


def unreadable_job(number: str, server: SchedulerServer) -> SchedulerJob:
    """Return the state of a job whose environment makes the output of ``qstat`` invalid."""
    return SchedulerJob(
        job_cluster_key(number, server), JobPhase.UNREADABLE, "qstat's output about this job is not JSON"
    )


def parse_nodes(result: CommandResult) -> dict[str, str]:
    """Return the attribute ``Mom`` of each node in the output of ``pbsnodes -a -F json``.

    The name of a node is the name of its vnodes up to ``[``, as in the hooks. ``Mom`` can be a full domain name.

    Raise SchedulerUnavailable if ``pbsnodes`` failed or printed other output.
    """
    if result.code != 0:
        raise SchedulerUnavailable(result.failure)
    try:
        nodes = _parse_json(result)["nodes"]
        return {
            vnode.partition("[")[0]: str(attributes.get("Mom") or vnode).partition(",")[0]
            for vnode, attributes in nodes.items()
        }
    except (KeyError, ValueError, AttributeError) as error:
        raise SchedulerUnavailable(f"{result.command}: expected nodes, got other output") from error


def _parse_json(result: CommandResult) -> dict[str, Any]:
    """Older versions of OpenPBS write control characters in strings unescaped."""
    value = json.loads(result.out, strict=False)
    if not isinstance(value, dict):
        raise ValueError(result.out[:80])  # noqa: TRY004 - the same error as for text that is not JSON
    return value


def _parse_gone_jobs(result: CommandResult, server: SchedulerServer) -> list[SchedulerJob]:
    if result.code not in QSTAT_CODES:
        raise SchedulerUnavailable(result.failure)
    return [_parse_gone_job(line.strip(), result, server) for line in result.err.splitlines() if line.strip()]


def _parse_gone_job(line: str, result: CommandResult, server: SchedulerServer) -> SchedulerJob:
    for pattern, description in GONE_MESSAGES:
        if match := pattern.fullmatch(line):
            return SchedulerJob(
                job_cluster_key(match.group(1), server), JobPhase.GONE, description.format(server=server.name)
            )
    raise SchedulerUnavailable(result.failure)


def _parse_job(number: str, attributes: Mapping[str, Any], server: SchedulerServer) -> SchedulerJob:
    if not isinstance(attributes, dict):
        raise ValueError(number)  # noqa: TRY004 - the same error as for text that is not JSON
    phase, description = job_states.parse_phase(OPENPBS_STATES, str(attributes.get("job_state")))
    requested, used = (_as_mapping(attributes.get(name)) for name in ("Resource_List", "resources_used"))
    return SchedulerJob(
        key=job_cluster_key(number, server),
        phase=phase,
        description=description,
        attempt=_parse_attempt(attributes.get("run_version")),
        wants_cluster=job_states.REQUEST_RESOURCE in requested,
        script_started=attributes.get("substate") != PRERUN_SUBSTATE,
        walltime_s=parse_seconds_or_zero(requested.get("walltime", 0)),
        used_s=parse_seconds_or_zero(used.get("walltime", 0)),
    )


def _as_mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _parse_attempt(value: object) -> int | None:
    return int(value) if isinstance(value, int | str) and str(value).isdecimal() else None


JOBS_PER_QSTAT = 100
"""Maximum number of jobs in one call of qstat. The output is large, because it contains the jobs' environments."""
SELECT_WITH_CLUSTER = ("qselect", "-s", "RSU", "-l", f"{REQUEST_RESOURCE}.ge.a")
"""The command that selects running jobs that requested a cluster.

``qselect`` compares the text of the request with ``a``. Every request is greater than or equal to ``a``. Without a
request, the text is empty, and the empty text is less than ``a``.
"""


class OpenPbsScheduler:
    """The OpenPBS server to which commands on this host connect. A failover pair of servers counts as one server."""

    def __init__(self, run: CommandRunner) -> None:
        """Store the function that runs commands."""
        self._run = run

    def server(self) -> SchedulerServer:
        """Return the server.

        Raise SchedulerUnavailable if the server does not serve, for example during its start.
        """
        return parse_server(self._run(("qstat", "-B", "-f", "-F", "json")))

    def jobs(self, server: SchedulerServer, numbers: Collection[str]) -> Mapping[ClusterKey, SchedulerJob]:
        """Return the jobs with these numbers, and all running jobs that requested a cluster.

        Raise SchedulerUnavailable if a command fails, or if ``qstat`` omits a job.
        """
        wanted = sorted({*numbers, *parse_job_numbers(self._run(SELECT_WITH_CLUSTER))}, key=int)
        jobs: dict[ClusterKey, SchedulerJob] = {}
        for batch in _batches(wanted):
            jobs |= self._read(batch, server)
        omitted = [number for number in wanted if job_cluster_key(number, server) not in jobs]
        if omitted:
            raise SchedulerUnavailable(
                f"qstat omitted job {omitted[0]} ({len(omitted)} in all): qstat must run as root, or as a manager "
                "of the server"
            )
        return jobs

    def nodes(self) -> Mapping[str, str]:
        """Return the host name of each node, by the node's name. Raise SchedulerUnavailable if the command fails."""
        return parse_nodes(self._run(("pbsnodes", "-a", "-F", "json")))

    def _read(self, numbers: Sequence[str], server: SchedulerServer) -> dict[ClusterKey, SchedulerJob]:
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
