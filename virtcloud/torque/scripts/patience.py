"""So long a job may take to start; whoever waits longer is told why, and the job goes back into its queue."""

import time
from typing import Callable, Optional

from virtcloud.torque.scripts.call import ABORT, DELETED, REQUEUE, Ended

PAUSE_S = 0.5
SISTERS_S = 60.0
"""The longest on a host that is not the job's first: its MoM does nothing else while it runs a script there."""


class Patience:
    """A number of seconds from now."""

    def __init__(self, seconds: float) -> None:
        """Begin now."""
        self._ends = time.monotonic() + seconds
        self.in_vain: Optional[Callable[[], bool]] = None
        """Once set, it is asked at each pause whether nobody waits any more."""

    @property
    def left(self) -> float:
        """The seconds that are left, never less than none."""
        return max(0.0, self._ends - time.monotonic())

    def pause(self, why: str, seconds: float = PAUSE_S) -> None:
        """Wait a moment before something is tried again; raises Ended when that is in vain, or too late."""
        if self.in_vain is not None and self.in_vain():
            raise Ended(ABORT, DELETED)
        if self.left < seconds:
            raise Ended(REQUEUE, "%s; the job will be tried again" % why)
        time.sleep(seconds)
