"""Progress callbacks of waiting methods, and long polls that tolerate an unreachable SBF."""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TypeVar

from virtcloud.client.http_errors import compute_retry_pause
from virtcloud.client.sbf import SbfClient
from virtcloud.model.cluster import ENDED_STATES, ClusterState
from virtcloud.model.errors import ClusterFailed, ServiceUnreachable, TimedOut
from virtcloud.model.views import ClusterView

T = TypeVar("T")
ProgressCallback = Callable[[ClusterView], None]
ShownProgress = ProgressCallback | bool | None
"""A function that is called with each new view, or True for a progress bar."""
POLL_S = 1.0
"""The maximum duration of a long poll with a progress callback, in seconds.

This value is also the minimum pause after a failed long poll.
"""
QUIET_POLL_S = 20.0
"""Maximum duration of a long poll without a progress callback, in seconds."""
MAX_PAUSE_S = 5.0
"""The longest pause after a failed long poll, in seconds."""
PATIENCE_S = 30.0
"""A waiting method raises an error if SBF does not answer for this many seconds."""


@contextmanager
def open_progress(progress: ShownProgress) -> Iterator[ProgressCallback | None]:
    """Yield the function that a waiting method calls. If ``progress`` is True, show a progress bar within the block."""
    if progress is True:
        with import_module("virtcloud.client.progress_bar").open_bar() as bar:  # rich takes 0.1 s to import
            yield bar
    else:
        yield progress or None


def pause_after_failed_poll(error: ServiceUnreachable, silence_s: float) -> None:
    """Pause before the next long poll. Raise ``error`` if SBF has not answered for more than ``PATIENCE_S`` seconds.

    ``silence_s`` is the time since SBF's last answer, in seconds.
    """
    if silence_s > PATIENCE_S:
        raise error
    time.sleep(min(compute_retry_pause(error, POLL_S), MAX_PAUSE_S))


def call_until_answered(call: Callable[[], T], clock: Callable[[], float] = time.monotonic) -> T:
    """Repeat an idempotent call until SBF answers. Return the answer. ``clock`` returns monotonic seconds.

    Raise ServiceUnreachable if SBF does not answer for more than ``PATIENCE_S`` seconds.
    """
    began = clock()
    while True:
        try:
            return call()
        except ServiceUnreachable as error:
            pause_after_failed_poll(error, clock() - began)


class PolledCluster:
    """A cluster whose view is read again with long polls. ``view`` is the last answer of SBF."""

    def __init__(self, sbf: SbfClient, view: ClusterView, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an object for an existing cluster. ``clock`` returns monotonic seconds."""
        self._sbf = sbf
        self._clock = clock
        self.view = view

    def _poll_views(
        self, timeout: float | None, poll_s: float, until: Collection[ClusterState] = ()
    ) -> Iterator[ClusterView]:
        """Yield views like `Cluster.poll_views`.

        With ``until``, a change of the cluster ends a poll only if the cluster has one of these states afterwards.
        Without ``until``, every change ends a poll.
        """
        deadline = None if timeout is None else self._clock() + timeout
        answered = self._clock()
        yield self.view
        while self.view.state not in ENDED_STATES and (deadline is None or self._clock() < deadline):
            wait = poll_s if deadline is None else max(0.0, min(poll_s, deadline - self._clock()))
            answered = self._poll(answered, wait, until)
            yield self.view

    def _wait(
        self, until: frozenset[ClusterState], progress: ProgressCallback | None, timeout: float | None, goal: str
    ) -> ClusterView:
        """Poll until the state is in ``until``. Return the view. Raise TimedOut after ``timeout`` seconds.

        ``goal`` is the expected state, for the message of the error.
        """
        views = self._poll_views(timeout, POLL_S) if progress else self._poll_views(timeout, QUIET_POLL_S, until)
        for view in views:
            if progress:
                progress(view)
            if view.state in until:
                return view
        why = f" ({self.view.reason})" if self.view.state is ClusterState.FAILING and self.view.reason else ""
        raise TimedOut(
            f"cluster {self.view.key} is {self.view.state}{why} after {timeout:g} s, not {goal}; SBF continues"
        )

    def _poll(self, answered: float, wait: float, until: Collection[ClusterState]) -> float:
        """Run one long poll of at most ``wait`` seconds for a newer view.

        ``until`` is as in `_poll_views`. ``answered`` is the time of SBF's last answer before the poll. Return the time
        of SBF's last answer, as seconds of ``clock``.
        """
        try:
            view = self._sbf.cluster(self.view.key, self.view.version, wait, self.view.id, until)
        except ServiceUnreachable as error:
            pause_after_failed_poll(error, self._clock() - answered)
            return answered
        self.view = self._check_id(view)
        return self._clock()

    def _check_id(self, view: ClusterView) -> ClusterView:
        """Return ``view``. Raise ClusterFailed if an old SBF sent the view of a later cluster with the same key."""
        if view.id != self.view.id:
            raise ClusterFailed(
                f"cluster {self.view.key} has ended, and a later cluster has its key now (attempt {view.attempt})"
            )
        return view
