"""Waiting for a cluster before the user's eyes."""

import click

from virtcloud.cli import ends
from virtcloud.cli.progress import ShowProgress
from virtcloud.cluster import Cluster
from virtcloud.model.cluster import State


def watch(context: click.Context, watched: Cluster, goes_on: str, goal: State, timeout: float | None = None) -> float:
    """Wait for ``goal`` with progress shown, and give the seconds that it took."""
    try:
        with ShowProgress() as progress:
            (watched.wait_active if goal == State.ACTIVE else watched.wait_ended)(progress, timeout)
            return progress.seconds
    except KeyboardInterrupt:
        key = watched.key
        delete = f"; delete it: virtcloud cluster delete {key}" if goal == State.ACTIVE else ""
        ends.interrupted(context, f"cluster {key} {goes_on}; look at it: virtcloud cluster show {key}{delete}")
