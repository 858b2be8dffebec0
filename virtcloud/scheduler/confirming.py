"""Answering for jobs: hosts that begin one ask SBF for its cluster, and SBF asks the batch system's server.

It runs beside reconciliation, in a thread of its own: a prologue waits for the answer.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from virtcloud.model.errors import NotFound, VirtcloudError
from virtcloud.model.job_word import JobWord
from virtcloud.model.values import ClusterKey
from virtcloud.scheduler.jobs import Server, number_of
from virtcloud.scheduler.ports import Log

WAIT_S = 30.0
BETWEEN_S = 0.5
"""Between two rounds that answered something: a job whose server says no is asked about again and again."""
AGAIN_S = 5.0
"""Until the next try, when the batch system or SBF did not answer."""
OLD_SBF_S = 60.0


class Answers(Protocol):
    """The batch system's server, asked about single jobs."""

    def server(self) -> Server:
        """Return which server answers; raises SchedulerSilent."""

    def word(self, number: str, server: Server, names: Mapping[str, str]) -> JobWord:
        """Return what the server says of a job; ``names`` are SBF's names of nodes. Raises SchedulerSilent."""


class Asked(Protocol):
    """SBF."""

    def asked_jobs(self, server: str, wait: float = 0) -> list[ClusterKey]:
        """Return the jobs that hosts ask about; waits for one."""

    def answer_for_job(self, key: str, word: JobWord) -> None:
        """Return the server's answer about a job."""


def confirm(
    answers: Answers, asked: Asked, names: Mapping[str, str], log: Log, beat: Callable[[], None] = lambda: None
) -> float:
    """Answer for every job that is asked about now, or within ``WAIT_S`` seconds; return how long to pause then.

    Raises nothing of the batch system's or of SBF's: an unanswered question stays.
    """
    try:
        server = answers.server()
        keys = asked.asked_jobs(server.name, WAIT_S)
        for key in keys:
            beat()
            number = number_of(key, server)
            if number is not None:
                word = answers.word(number, server, names)
                asked.answer_for_job(key, word)
                log.info("job_answered", job=key, runs=word.runs, owner=word.owner, hosts=",".join(word.hosts))
    except NotFound as error:
        log.warning("jobs_not_answered", error=f"{error}; upgrade SBF")
        return OLD_SBF_S
    except VirtcloudError as error:
        log.warning("jobs_not_answered", error=error)
        return AGAIN_S
    return BETWEEN_S if keys else 0


def confirm_always(  # noqa: PLR0913, PLR0917 - what it works with
    answers: Answers,
    asked: Asked,
    names: Mapping[str, str],
    log: Log,
    stop: threading.Event,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Answer until ``stop`` is set; a fault of ours is logged, and does not end it. ``beat`` reports progress."""
    while not stop.is_set():
        beat()
        try:
            pause = confirm(answers, asked, names, log, beat)
        except Exception:
            log.exception("fault")
            pause = AGAIN_S
        stop.wait(pause)
