"""So long a job may take to start; whoever waits longer is told why, and the job goes back into its queue."""

import time

from virtcloud.torque.scripts.call import REQUEUE, Ended

PAUSE_S = 0.5


class Patience:
    """A number of seconds from now."""

    def __init__(self, seconds: float) -> None:
        """Begin now."""
        self._ends = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """The seconds that are left, never less than none."""
        return max(0.0, self._ends - time.monotonic())

    def pause(self, why: str, seconds: float = PAUSE_S) -> None:
        """Wait a moment before something is tried again; raises Ended when there is no time left for that."""
        if self.left < seconds:
            raise Ended(REQUEUE, "%s; the job will be tried again" % why)
        time.sleep(seconds)
