"""Confirms jobs to SBF. SBF requires this confirmation before it creates a cluster that a host requested for a job.

The confirmations run in a separate thread, not in reconciliation, because a prologue waits for them.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from virtcloud.model.errors import NotFound, VirtcloudError
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import JobStatement
from virtcloud.scheduler.job_states import SchedulerServer, parse_job_number
from virtcloud.scheduler.protocols import Log

QUESTION_WAIT_S = 30.0
PAUSE_S = 0.5
"""Seconds between two rounds with confirmations: SBF repeats a query after a negative answer."""
RETRY_S = 5.0
"""Seconds until the next try if the batch system or SBF did not answer."""
OLD_SBF_PAUSE_S = 60.0


class JobAnswerer(Protocol):
    """The batch system's server, queried about single jobs."""

    def server(self) -> SchedulerServer:
        """Return the server that answers. Raises SchedulerUnavailable."""

    def describe_job(self, number: str, server: SchedulerServer, names: Mapping[str, str]) -> JobStatement:
        """Return the server's statement about a job; ``names`` are SBF's names of nodes.

        Raises SchedulerUnavailable.
        """


class JobQuestions(Protocol):
    """SBF's queries about jobs."""

    def requested_jobs(self, server: str, wait: float = 0) -> list[ClusterKey]:
        """Return the jobs that SBF queries. Wait up to ``wait`` seconds until there is such a job."""

    def send_job_statement(self, key: str, statement: JobStatement) -> None:
        """Send the server's statement about a job."""


def answer_questions(
    answers: JobAnswerer,
    questions: JobQuestions,
    names: Mapping[str, str],
    log: Log,
    beat: Callable[[], None] = lambda: None,
) -> float:
    """Answer the queries of the next ``QUESTION_WAIT_S`` seconds. Return the seconds to pause afterwards.

    Errors of the batch system and of SBF are logged. SBF repeats unanswered queries.
    """
    try:
        server = answers.server()
        keys = questions.requested_jobs(server.name, QUESTION_WAIT_S)
        for key in keys:
            beat()
            number = parse_job_number(key, server)
            if number is not None:
                statement = answers.describe_job(number, server, names)
                questions.send_job_statement(key, statement)
                log.info(
                    "job_answered", job=key, runs=statement.runs, owner=statement.owner, hosts=",".join(statement.hosts)
                )
    except NotFound as error:
        log.warning("jobs_not_answered", error=f"{error}; upgrade SBF")
        return OLD_SBF_PAUSE_S
    except VirtcloudError as error:
        log.warning("jobs_not_answered", error=error)
        return RETRY_S
    return PAUSE_S if keys else 0


def answer_until_stopped(  # noqa: PLR0913, PLR0917 - its collaborators
    answers: JobAnswerer,
    questions: JobQuestions,
    names: Mapping[str, str],
    log: Log,
    stop: threading.Event,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Answer queries until ``stop`` is set. Unexpected errors are logged. ``beat`` reports progress."""
    while not stop.is_set():
        beat()
        try:
            pause = answer_questions(answers, questions, names, log, beat)
        except Exception:
            log.exception("fault")
            pause = RETRY_S
        stop.wait(pause)
