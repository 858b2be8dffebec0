"""OpenPBS by its commands. Each job is asked for by its number: only what is said of it, by name, counts."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from virtcloud.model.errors import SchedulerSilent
from virtcloud.model.values import ClusterKey
from virtcloud.scheduler import openpbs_words as words
from virtcloud.scheduler.command import Run
from virtcloud.scheduler.jobs import Job, Server, key_of
from virtcloud.scheduler.pbs_states import RESOURCE

AT_ONCE = 100
"""Jobs that one qstat is asked for: users' environments are in the answer, and it is held in memory."""
WITH_CLUSTERS = ("qselect", "-s", "RSU", "-l", f"{RESOURCE}.ge.a")
"""Running jobs that asked for a cluster: requests begin with a letter, and a resource that is not set is below all."""


class OpenPbs:
    """The OpenPBS server that this machine's commands speak to; one of a pair that takes over is the same server."""

    def __init__(self, run: Run) -> None:
        """Ask by ``run``."""
        self._run = run

    def server(self) -> Server:
        """Say which server answers; one that still reads its jobs does not."""
        return words.server_of(self._run(("qstat", "-B", "-f", "-F", "json")))

    def jobs(self, server: Server, asked: Collection[str]) -> Mapping[ClusterKey, Job]:
        """Give what is said of every job that is asked for, and of those that run and want a cluster."""
        numbers = sorted({*asked, *words.numbers_of(self._run(WITH_CLUSTERS))}, key=int)
        found: dict[ClusterKey, Job] = {}
        for some in _some_at_once(numbers):
            found |= self._read(some, server)
        unsaid = [number for number in numbers if key_of(number, server) not in found]
        if unsaid:
            raise SchedulerSilent(
                f"qstat said nothing of job {unsaid[0]} ({len(unsaid)} in all): it must run as root, or as a manager "
                "of the server"
            )
        return found

    def nodes(self) -> Collection[str]:
        """Give the hosts of all vnodes."""
        return words.nodes_of(self._run(("pbsnodes", "-a", "-F", "json")))

    def _read(self, numbers: Sequence[str], server: Server) -> dict[ClusterKey, Job]:
        """Read some jobs; where one of them makes the answer unreadable, read each alone to find out which."""
        try:
            return words.jobs_of(self._run(("qstat", "-f", "-F", "json", *numbers)), server)
        except ValueError:
            if len(numbers) == 1:
                job = words.unreadable(numbers[0], server)
                return {job.key: job}
        return {key: job for number in numbers for key, job in self._read([number], server).items()}


def _some_at_once(numbers: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(numbers), AT_ONCE):
        yield numbers[start : start + AT_ONCE]
