"""PURE. How long a running job's cluster must still last: its walltime may have been extended, the job suspended."""

from datetime import datetime

from virtcloud.model.cluster import WANTED
from virtcloud.model.views import ClusterView
from virtcloud.scheduler.jobs import Job, Standing

LOW_S = 120
"""A lease that ends less than this after the job's walltime is extended; so much the two clocks may differ."""
MORE_S = 900
"""… to this much after it, so that a job that does not go on is not extended at each look."""


def extension(cluster: ClusterView, job: Job, now: datetime) -> float | None:
    """Give the seconds from now that a cluster's lease must have, where it has too few."""
    running = job.standing is Standing.RUNNING and cluster.state in WANTED
    if not running or cluster.attempt < (job.attempt or 0):
        return None
    remaining = max(job.walltime_s - job.used_s, 0)
    left = (cluster.lease_ends - now).total_seconds()
    return float(remaining + MORE_S) if left < remaining + LOW_S else None
