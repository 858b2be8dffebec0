"""Queries Torque with ``qstat -x`` (XML), ``qstat -B -f`` and ``pbsnodes -x``, and parses their output.

The parsers of this module were written from Torque's documentation (2.4 to 6.1) and from parsers of other programs.
This module was tested manually with Torque 2.5.13 and 6.1.3.
"""

import re
from collections.abc import Collection, Mapping
from xml.etree import ElementTree as ET

from virtcloud.jobs.host_names import element_of_host, parse_exec_host
from virtcloud.jobs.request import parse_request
from virtcloud.jobs.request_values import PRIVATE_NETWORK, RequestError
from virtcloud.jobs.torque_request import find_request
from virtcloud.model.errors import BadInput, SchedulerUnavailable
from virtcloud.model.values import ClusterKey, Name, UserName
from virtcloud.model.views import JobStatement
from virtcloud.scheduler import job_states
from virtcloud.scheduler.command import CommandResult, CommandRunner
from virtcloud.scheduler.job_states import (
    JobPhase,
    SchedulerJob,
    SchedulerServer,
    job_cluster_key,
    parse_job_number,
    parse_seconds_or_zero,
)

QSTAT_CODES = frozenset({0, 153})
UNKNOWN_JOB = re.compile(r"qstat: Unknown Job Id(?: Error)? ([0-9]+)\S*")
INVALID_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that are invalid in XML, such as ESC. qstat does not escape these characters in jobs' environments (a
prompt in the variable ``PS1`` may contain ESC).
"""
TORQUE_STATES = {**job_states.COMMON_STATES, "C": (JobPhase.GONE, "has finished")}


def parse_server(result: CommandResult) -> SchedulerServer:
    """Parse ``qstat -B -f``. Raise SchedulerUnavailable unless the output describes a serving server."""
    if result.code != 0:
        raise SchedulerUnavailable(result.failure)
    attributes = dict(re.findall(r"^\s*(Server: |[a-z_]+ = )(.*?)\s*$", result.out, re.MULTILINE))
    try:
        name, state, jobs = (attributes[key] for key in ("Server: ", "server_state = ", "total_jobs = "))
    except KeyError as error:
        raise job_states.not_a_server_error(result) from error
    return job_states.build_server(result, name, state, jobs)


def parse_jobs(result: CommandResult, server: SchedulerServer) -> dict[ClusterKey, SchedulerJob]:
    """Return the jobs in an output of ``qstat -x``. Omit job arrays, and jobs of other servers.

    Raise SchedulerUnavailable if ``qstat`` failed or lists only jobs of other servers. Raise ValueError if the output
    is not XML.
    """
    if result.code not in QSTAT_CODES:
        raise SchedulerUnavailable(result.failure)
    gone = [_parse_unknown_job(line.strip(), result, server) for line in result.err.splitlines() if line.strip()]
    listed = {_find_text(element, "Job_Id").lower(): element for element in _parse_xml(result).iter("Job")}
    jobs = [
        _parse_job(number, element, server)
        for key, element in listed.items()
        if (number := parse_job_number(key, server))
    ]
    job_ids = [key for key in listed if "[" not in key]
    if job_ids and not jobs:
        raise SchedulerUnavailable(
            f"{result.command}: expected job IDs that end in .{server.name.lower()}, got {job_ids[0]!r}: "
            "check display_job_server_suffix and job_suffix_alias in qmgr"
        )
    return {job.key: job for job in (*gone, *jobs)}


def parse_job_statement(
    result: CommandResult, number: str, server: SchedulerServer, names: Mapping[str, str]
) -> JobStatement:
    """Parse ``qstat -x NUMBER`` and return the server's statement about the job.

    Raise the errors of :func:`parse_jobs`.
    """
    job = parse_jobs(result, server).get(job_cluster_key(number, server))
    if job is None or job.phase is not JobPhase.RUNNING:
        return JobStatement(runs=False, words=f"is not known to {server.name}" if job is None else job.description)
    element = next(node for node in _parse_xml(result).iter("Job") if _find_text(node, "Job_Id").lower() == job.key)
    resources = _find_resources(element)
    request = find_request(resources)
    if not _wants_cluster(resources):
        return JobStatement(runs=False, words=f"{job.description} and requested no cluster")
    try:
        net = resources.get("net") if request is None else parse_request(request).net
        return JobStatement(
            runs=True,
            owner=UserName(_find_text(element, "euser") or _find_text(element, "Job_Owner").partition("@")[0]),
            hosts=tuple(
                sorted(
                    {Name(element_of_host(node, names)) for node in parse_exec_host(_find_text(element, "exec_host"))}
                )
            ),
            network=None if net in {None, PRIVATE_NETWORK} else ClusterKey(str(net)),
            words=job.description,
        )
    except (BadInput, RequestError) as error:
        return JobStatement(runs=False, words=f"{job.description} and cannot have a cluster: {error}"[:1000])


def unreadable_job(number: str, server: SchedulerServer) -> SchedulerJob:
    """Return the state of a job whose environment makes the output of ``qstat`` invalid."""
    return SchedulerJob(
        job_cluster_key(number, server), JobPhase.UNREADABLE, "qstat's output about this job is not XML"
    )


def parse_nodes(result: CommandResult) -> dict[str, str]:
    """Return the nodes in the output of ``pbsnodes -x``. In Torque, the name of a node is its host name.

    Raise SchedulerUnavailable if ``pbsnodes`` failed, or if its output is not XML.
    """
    try:
        if result.code != 0:
            raise SchedulerUnavailable(result.failure)
        names = [_find_text(element, "name") for element in _parse_xml(result).iter("Node")]
        return {name: name for name in names}
    except ValueError as error:
        raise SchedulerUnavailable(f"{result.command}: expected nodes, got other output") from error


def _parse_xml(result: CommandResult) -> ET.Element:
    """Parse XML. Empty output means that there are no jobs. Raise ValueError if the output is not XML."""
    try:
        text = INVALID_XML.sub("?", result.out)
        return ET.fromstring(text) if text.strip() else ET.Element("Data")  # noqa: S314 - qstat wrote it
    except ET.ParseError as error:
        raise ValueError(str(error)) from error


def _parse_unknown_job(line: str, result: CommandResult, server: SchedulerServer) -> SchedulerJob:
    if match := UNKNOWN_JOB.fullmatch(line):
        return SchedulerJob(job_cluster_key(match.group(1), server), JobPhase.GONE, f"is not known to {server.name}")
    raise SchedulerUnavailable(result.failure)


def _parse_job(number: str, element: ET.Element, server: SchedulerServer) -> SchedulerJob:
    phase, description = job_states.parse_phase(TORQUE_STATES, _find_text(element, "job_state"))
    return SchedulerJob(
        key=job_cluster_key(number, server),
        phase=phase,
        description=description,
        wants_cluster=_wants_cluster(_find_resources(element)),
        walltime_s=parse_seconds_or_zero(_find_text(element, "Resource_List/walltime")),
        used_s=parse_seconds_or_zero(_find_text(element, "resources_used/walltime")),
    )


def _find_resources(element: ET.Element) -> dict[str, str]:
    return {resource.tag: resource.text or "" for resource in element.iterfind("Resource_List/*")}


def _wants_cluster(resources: Mapping[str, str]) -> bool:
    return find_request(resources) is not None or "net" in resources


def _find_text(element: ET.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


class TorqueScheduler:
    """The Torque server to which commands on this host connect. Torque does not count the runs of a job."""

    def __init__(self, run: CommandRunner) -> None:
        """Store the function that runs commands."""
        self._run = run

    def server(self) -> SchedulerServer:
        """Return the server. Raise SchedulerUnavailable unless the server serves."""
        return parse_server(self._run(("qstat", "-B", "-f")))

    def jobs(self, server: SchedulerServer, numbers: Collection[str]) -> Mapping[ClusterKey, SchedulerJob]:
        """Return all jobs. If the list of jobs lacks one of ``numbers``, this job is queried separately.

        Raise SchedulerUnavailable if a command fails, or if the list of jobs is not XML.
        """
        try:
            jobs = parse_jobs(self._run(("qstat", "-x")), server)
        except ValueError as error:
            raise SchedulerUnavailable(f"qstat -x: expected XML, got other output: {error}") from error
        for number in sorted(numbers, key=int):
            if job_cluster_key(number, server) not in jobs:
                jobs |= self._read_job(number, server)
        return jobs

    def nodes(self) -> Mapping[str, str]:
        """Return the host name of each node, by the node's name. Raise SchedulerUnavailable if the command fails."""
        return parse_nodes(self._run(("pbsnodes", "-x")))

    def describe_job(self, number: str, server: SchedulerServer, names: Mapping[str, str]) -> JobStatement:
        """Return the server's statement about a job.

        Raise SchedulerUnavailable if the command fails, if its output is not XML, or if the output lists only jobs of
        other servers.
        """
        try:
            return parse_job_statement(self._run(("qstat", "-x", number)), number, server, names)
        except ValueError as error:
            raise SchedulerUnavailable(f"qstat -x {number}: expected XML, got other output: {error}") from error

    def _read_job(self, number: str, server: SchedulerServer) -> Mapping[ClusterKey, SchedulerJob]:
        try:
            jobs = parse_jobs(self._run(("qstat", "-x", number)), server)
        except ValueError:
            jobs = {}
        job = jobs.get(job_cluster_key(number, server), unreadable_job(number, server))
        return {job.key: job}
