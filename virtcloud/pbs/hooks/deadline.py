"""One moment by which everything must be over: a hook in pbs_server's only thread stops the whole batch system."""

import time
from typing import Optional


class LateError(Exception):
    """The time is up."""


class Deadline:
    """So many seconds from a moment on, by a clock that nobody sets (``time.monotonic``)."""

    def __init__(self, seconds: float, began: Optional[float] = None) -> None:
        """Begin at that moment, or now."""
        self._start = time.monotonic() if began is None else began
        self._end = self._start + seconds

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._start

    def left(self) -> float:
        """Give the seconds that are left; raises LateError when there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise LateError
        return left
