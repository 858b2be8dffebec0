"""Confirms jobs to SBF. SBF requires this confirmation before it creates a cluster that a host requested for a job.

A separate thread confirms jobs, because a job's prologue waits for the confirmation.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from virtcloud.model.errors import NoSuchCall, SchedulerUnavailable, VirtcloudError
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import JobStatement
from virtcloud.scheduler.job_states import SchedulerServer, parse_job_number
from virtcloud.scheduler.protocols import Log

QUERY_WAIT_S = 30.0
PAUSE_S = 0.5
"""Pause in seconds after statements were sent. While a host repeats its request for a job that does not run, SBF
repeats its query. The pause limits how often the agent queries the batch system about this job."""
RETRY_S = 5.0
"""Pause in seconds after the batch system or SBF did not answer."""
OLD_SBF_PAUSE_S = 60.0


class ConfirmingScheduler(Protocol):
    """A batch system that can be queried about a single job.

    Both methods raise SchedulerUnavailable if the answer is missing or incomplete.
    """

    def server(self) -> SchedulerServer:
        """Return the batch system's server."""

    def describe_job(self, number: str, server: SchedulerServer, names: Mapping[str, str]) -> JobStatement:
        """Return the server's statement about a job. ``names`` maps nodes to SBF's names of hosts."""


class JobConfirmationApi(Protocol):
    """The calls to SBF by which a batch system's agent confirms jobs."""

    def requested_jobs(self, server: str, wait: float = 0) -> list[ClusterKey]:
        """Return the jobs that ``server`` must confirm. If there is no such job, wait up to ``wait`` seconds."""

    def send_job_statement(self, key: str, statement: JobStatement) -> None:
        """Send the server's statement about a job."""


def confirm_requested_jobs(
    scheduler: ConfirmingScheduler,
    sbf: JobConfirmationApi,
    names: Mapping[str, str],
    log: Log,
    beat: Callable[[], None] = lambda: None,
) -> float:
    """Wait for SBF's next queries about jobs and answer them. Return the seconds to pause before the next call.

    Errors of the batch system and of SBF are only logged, because SBF repeats unanswered queries. ``beat`` reports
    progress.
    """
    pause = 0.0
    try:
        server = scheduler.server()
        for key in sbf.requested_jobs(server.name, QUERY_WAIT_S):
            beat()
            pause = max(pause, _confirm_job(key, server, scheduler, sbf, names, log))
    except NoSuchCall as error:
        log.warning("jobs_not_answered", error=error)  # the message asks to upgrade SBF
        return OLD_SBF_PAUSE_S
    except VirtcloudError as error:
        log.warning("jobs_not_answered", error=error)
        return RETRY_S
    return pause


def _confirm_job(  # noqa: PLR0913, PLR0917 - the collaborators of its caller
    key: ClusterKey,
    server: SchedulerServer,
    scheduler: ConfirmingScheduler,
    sbf: JobConfirmationApi,
    names: Mapping[str, str],
    log: Log,
) -> float:
    """Return the seconds to pause afterwards. Raise the errors of SBF."""
    number = parse_job_number(key, server)
    if number is None:
        return PAUSE_S
    try:
        statement = scheduler.describe_job(number, server, names)
    except SchedulerUnavailable as error:
        log.warning("job_not_answered", job=key, error=error)
        return RETRY_S
    sbf.send_job_statement(key, statement)
    log.info("job_answered", job=key, runs=statement.runs, owner=statement.owner, hosts=",".join(statement.hosts))
    return PAUSE_S


def confirm_until_stopped(  # noqa: PLR0913, PLR0917 - its collaborators
    scheduler: ConfirmingScheduler,
    sbf: JobConfirmationApi,
    names: Mapping[str, str],
    log: Log,
    stop: threading.Event,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Answer SBF's queries until ``stop`` is set. Unexpected errors are logged. Call ``beat`` to report progress."""
    while not stop.is_set():
        beat()
        try:
            pause = confirm_requested_jobs(scheduler, sbf, names, log, beat)
        except Exception:
            log.exception("fault")
            pause = RETRY_S
        stop.wait(pause)
