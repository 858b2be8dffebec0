"""What the waiting methods of the Python API share: progress callbacks, and long polls that tolerate a silent SBF."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

from virtcloud.client.http_errors import compute_retry_pause
from virtcloud.model.errors import ServiceUnreachable
from virtcloud.model.views import ClusterView

ProgressCallback = Callable[[ClusterView], None]
ShownProgress = ProgressCallback | bool | None
"""A function that is called with each new view, or True for a progress bar."""
POLL_S = 1.0
"""Maximum duration of a long poll with a progress callback, and shortest pause after a failed long poll, in seconds."""
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
