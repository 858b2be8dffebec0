"""Torque by its commands."""

from collections.abc import Collection, Mapping

from virtcloud.model.errors import SchedulerSilent
from virtcloud.model.job_word import JobWord
from virtcloud.model.values import ClusterKey
from virtcloud.scheduler import torque_words as words
from virtcloud.scheduler.command import Run
from virtcloud.scheduler.jobs import Job, Server, key_of


class Torque:
    """The Torque server that this machine's commands speak to. It does not count the runs of a job."""

    def __init__(self, run: Run) -> None:
        """Ask by ``run``."""
        self._run = run

    def server(self) -> Server:
        """Say which server answers."""
        return words.server_of(self._run(("qstat", "-B", "-f")))

    def jobs(self, server: Server, asked: Collection[str]) -> Mapping[ClusterKey, Job]:
        """Give all jobs, and what is said of each that is asked for and is not among them."""
        try:
            found = words.jobs_of(self._run(("qstat", "-x")), server)
        except ValueError as error:
            raise SchedulerSilent(f"qstat -x: not XML: {error}") from error
        for number in sorted(asked, key=int):
            if key_of(number, server) not in found:
                found |= self._one(number, server)
        return found

    def nodes(self) -> Collection[str]:
        """Give all nodes."""
        return words.nodes_of(self._run(("pbsnodes", "-x")))

    def word(self, number: str, server: Server, names: Mapping[str, str]) -> JobWord:
        """Return what the server says of one job; raises SchedulerSilent, also for an answer that is not XML."""
        try:
            return words.word_of(self._run(("qstat", "-x", number)), number, server, names)
        except ValueError as error:
            raise SchedulerSilent(f"qstat -x {number}: not XML: {error}") from error

    def _one(self, number: str, server: Server) -> Mapping[ClusterKey, Job]:
        """Ask for one job by its number."""
        try:
            found = words.jobs_of(self._run(("qstat", "-x", number)), server)
        except ValueError:
            found = {}
        job = found.get(key_of(number, server), words.unreadable(number, server))
        return {job.key: job}
