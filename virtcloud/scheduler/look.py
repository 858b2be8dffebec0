"""One look at both sides: SBF's clusters first, then the jobs that they belong to."""

from dataclasses import dataclass

from virtcloud.model.access import Role
from virtcloud.model.views import ClusterView
from virtcloud.scheduler.decide import Seen
from virtcloud.scheduler.jobs import Server, number_of
from virtcloud.scheduler.ports import Clusters, Scheduler

MACHINES = tuple(f"{role}@" for role in (Role.SCHEDULER, Role.JOB_STARTER))
"""So those who ask for jobs' clusters are called, as SBF keeps who asked for one."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen, and of which server."""

    server: Server
    seen: Seen


def look(scheduler: Scheduler, clusters: Clusters) -> Look:
    """Look once. Raises SchedulerSilent, and what SBF raises: then nothing was seen at all.

    A cluster that is made meanwhile is not among those that were asked for, so that no job can be missing for it.
    """
    server = scheduler.server()
    ours = [one for one in clusters.clusters() if is_ours(one, server)]
    asked = {number for one in ours if (number := number_of(one.key, server))}
    jobs = scheduler.jobs(server, asked)
    return Look(server, Seen(ours, jobs, server.empty))


def is_ours(cluster: ClusterView, server: Server) -> bool:
    """Say whether a cluster is a job's of this server: its key says so, and no person asked for it.

    Of one from before SBF kept who asked, the key decides.
    """
    by_machine = cluster.created_by is None or cluster.created_by.startswith(MACHINES)
    return by_machine and number_of(cluster.key, server) is not None
