"""PURE. What Torque prints, read: ``qstat -x`` (XML), ``qstat -B -f`` and ``pbsnodes -x``.

Written from Torque's documentation (2.4 to 6.1) and its users' parsers; tried by hand on 2.5.13 and 6.1.3.
"""

import re
from collections.abc import Mapping
from xml.etree import ElementTree as ET

from virtcloud.jobs.errors import RequestError
from virtcloud.jobs.request import parse
from virtcloud.jobs.torque_travel import request_of
from virtcloud.model.errors import BadInput, SchedulerSilent
from virtcloud.model.job_word import JobWord
from virtcloud.model.values import ClusterKey, Name, UserName
from virtcloud.scheduler import pbs_states
from virtcloud.scheduler.ended import Ended
from virtcloud.scheduler.jobs import Job, Server, Standing, key_of, number_of, seconds
from virtcloud.scheduler.nodes import element_of

PRIVATE = "private"
"""``net=private``: a new network."""
CODES = frozenset({0, 153})
UNKNOWN = re.compile(r"qstat: Unknown Job Id(?: Error)? ([0-9]+)\S*")
NOT_OF_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""What users' environments may hold (a prompt's ESC), and qstat writes as it is."""
STATES = {**pbs_states.STATES, "C": (Standing.GONE, "has finished")}


def server_of(ended: Ended) -> Server:
    """Read ``qstat -B -f``; raises SchedulerSilent."""
    if ended.code != 0:
        raise SchedulerSilent(ended.complaint)
    found = dict(re.findall(r"^\s*(Server: |[a-z_]+ = )(.*?)\s*$", ended.out, re.MULTILINE))
    try:
        told = (found["Server: "], found["server_state = "], found["total_jobs = "])
    except KeyError as error:
        raise pbs_states.not_a_server(ended) from error
    return pbs_states.server(ended, *told)


def jobs_of(ended: Ended, server: Server) -> dict[ClusterKey, Job]:
    """Read ``qstat -x`` with or without numbers; arrays, and jobs of other servers, are left out.

    Raises SchedulerSilent, and ValueError (not XML).
    """
    if ended.code not in CODES:
        raise SchedulerSilent(ended.complaint)
    gone = [_unknown(line.strip(), ended, server) for line in ended.err.splitlines() if line.strip()]
    listed = {_text(one, "Job_Id").lower(): one for one in _root(ended).iter("Job")}
    found = [_job(number, one, server) for key, one in listed.items() if (number := number_of(key, server))]
    others = [key for key in listed if "[" not in key]
    if others and not found:
        what = f"expected ids of jobs that end in .{server.name.lower()}, got {others[0]!r}"
        raise SchedulerSilent(f"{ended.command}: {what}: see display_job_server_suffix and job_suffix_alias in qmgr")
    return {job.key: job for job in (*gone, *found)}


def word_of(ended: Ended, number: str, server: Server, names: Mapping[str, str]) -> JobWord:
    """Read ``qstat -x NUMBER`` for a host that begins the job. Raises SchedulerSilent, and ValueError (not XML)."""
    job = jobs_of(ended, server).get(key_of(number, server))
    if job is None or job.standing is not Standing.RUNNING:
        return JobWord(runs=False, words=f"is not known to {server.name}" if job is None else job.words)
    element = next(one for one in _root(ended).iter("Job") if _text(one, "Job_Id").lower() == job.key)
    wanted = {one.tag: one.text or "" for one in element.iterfind("Resource_List/*")}
    asked = request_of(wanted)
    if asked is None and "net" not in wanted:
        return JobWord(runs=False, words=f"{job.words}, and asked for no cluster")
    try:
        net = wanted.get("net") if asked is None else parse(asked).net
        return JobWord(
            runs=True,
            owner=UserName(_text(element, "euser") or _text(element, "Job_Owner").partition("@")[0]),
            hosts=tuple(sorted({Name(element_of(node, names)) for node in _nodes(_text(element, "exec_host"))})),
            network=None if net in {None, PRIVATE} else ClusterKey(str(net)),
            words=job.words,
        )
    except (BadInput, RequestError) as error:
        return JobWord(runs=False, words=f"{job.words}, and cannot have a cluster: {error}"[:1000])


def _nodes(text: str) -> set[str]:
    """Return the nodes of ``n1/0+n1/1+n2/0-3``."""
    return {one.partition("/")[0] for one in text.split("+") if one}


def unreadable(number: str, server: Server) -> Job:
    """Stand for a job that is known, and whose text makes the answer unreadable."""
    return Job(key_of(number, server), Standing.UNREADABLE, "what qstat says of it is not XML")


def nodes_of(ended: Ended) -> set[str]:
    """Read ``pbsnodes -x``. Raises SchedulerSilent."""
    try:
        if ended.code != 0:
            raise SchedulerSilent(ended.complaint)
        return {_text(element, "name") for element in _root(ended).iter("Node")}
    except ValueError as error:
        raise SchedulerSilent(f"{ended.command}: expected nodes, got something else") from error


def _root(ended: Ended) -> ET.Element:
    """Parse; nothing at all is what qstat prints when there is no job."""
    try:
        text = NOT_OF_XML.sub("?", ended.out)
        return ET.fromstring(text) if text.strip() else ET.Element("Data")  # noqa: S314 - qstat wrote it
    except ET.ParseError as error:
        raise ValueError(str(error)) from error


def _unknown(line: str, ended: Ended, server: Server) -> Job:
    if found := UNKNOWN.fullmatch(line):
        return Job(key_of(found.group(1), server), Standing.GONE, f"is not known to {server.name}")
    raise SchedulerSilent(ended.complaint)


def _job(number: str, element: ET.Element, server: Server) -> Job:
    standing, words = pbs_states.standing(STATES, _text(element, "job_state"))
    return Job(
        key=key_of(number, server),
        standing=standing,
        words=words,
        wants_cluster=request_of({one.tag: one.text or "" for one in element.iterfind("Resource_List/*")}) is not None,
        walltime_s=seconds(_text(element, "Resource_List/walltime")),
        used_s=seconds(_text(element, "resources_used/walltime")),
    )


def _text(element: ET.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()
