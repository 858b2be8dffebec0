"""The pause before a repeated call to SBF.

SBF states in ``Retry-After`` when a refused call may return. The pauses of many callers differ at random, so that the
callers do not return simultaneously after a restart of SBF.
"""

import random
from collections.abc import Callable

from virtcloud.model.errors import ServiceBusy, TooManyRequests, VirtcloudError

SPREAD = 0.5
"""The largest random part of a pause, as a fraction of the pause."""


def compute_retry_pause(error: VirtcloudError, pause_s: float, jitter: Callable[[], float] = random.random) -> float:
    """Return the seconds before a call is repeated: ``pause_s``, or SBF's ``Retry-After`` if it is longer.

    A random part is added. ``jitter`` returns a random number from 0 to 1.
    """
    wanted_s = error.retry_after_s if isinstance(error, TooManyRequests | ServiceBusy) else 0
    return max(pause_s, wanted_s) * (1 + SPREAD * jitter())
