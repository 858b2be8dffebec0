"""PURE. Which cluster a job's is, and what of it is missing."""

import re
from collections.abc import Mapping, Sequence

from virtcloud.cli.progress import words
from virtcloud.model.cluster import ENDED
from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, NotFound
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import ClusterView, Progress

ID = re.compile("[0-9]+([.][a-z0-9._-]+)?")
VARIABLES = ("VCLUSTER_ID", "PBS_JOBID")
"""What a job's environment has: the key of its cluster, once that is up; the job's id."""


class JobView(Document):
    """A job's cluster, what of it is missing, and all clusters of its network that the caller may see."""

    job: ClusterKey
    missing: tuple[str, ...]
    cluster: ClusterView
    network: tuple[ClusterView, ...]


def job_of(given: str | None, environment: Mapping[str, str]) -> str:
    """Give the id of the job that is meant, lower case; raises BadInput."""
    found = given or next((environment[one] for one in VARIABLES if environment.get(one)), None)
    if found is None:
        names = " nor ".join(VARIABLES)
        raise BadInput(
            f"expected the id of a job, or to be run within one (neither {names} is set); 'qstat' lists your jobs"
        )
    if "[" in found:
        raise BadInput(f"job {found} is of an array: those have no clusters; submit one job for each cluster")
    if not ID.fullmatch(found.lower()):
        raise BadInput(f"expected the id of a job, such as 12.pbssrv, got {found!r}; 'qstat' lists your jobs")
    return found.lower()


def whole_id(job: str, clusters: Sequence[ClusterView]) -> str:
    """Give the whole id of a job that was given by its number; raises BadInput when that is of several servers."""
    if not re.fullmatch("[0-9]+", job):
        return job
    found = sorted({one.key for one in clusters if one.key.startswith(f"{job}.")})
    if len(found) > 1:
        raise BadInput(f"job {job}: expected one, got {', '.join(found)}; give the whole id")
    return found[0] if found else job


def no_cluster(job: str) -> NotFound:
    """Say that a job has no cluster, and why that may be."""
    ended = "has ended (then give its whole id), " if job.isdecimal() else ""
    return NotFound(
        f"job {job} has no cluster: it asked for none (-l vcluster=…), has not been started yet, {ended}or is another "
        f"user's; see 'qstat -f {job}'"
    )


def missing(view: ClusterView) -> tuple[str, ...]:
    """Say for each element that is not as it should be what it is at, and what it says went wrong."""
    late = [part for part in view.placements if part.progress in {Progress.ADDING, Progress.REMOVING} or part.trouble]
    at = "" if view.state not in ENDED else "at its end "
    return tuple(f"{at}{part.kind} {part.element} at {part.site}: {words(part, view)}" for part in late)
